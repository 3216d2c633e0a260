"""Snapshots through pyslurm, which queries slurmctld itself instead of calling Slurm's commands.

pyslurm must match the site's Slurm release. It runs in a child process (`pyslurm_child`) that is killed if it does not
answer in time and started again at the next snapshot.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.clients.ending import end
from slurm_plugin.clients.pyslurm_child import WITH_RESERVATIONS, WITHOUT_RESERVATIONS
from slurm_plugin.clients.slow_settings import RESERVATIONS
from slurm_plugin.errors import SlurmError, SnapshotError, one_line
from slurm_plugin.nodeset import expand
from slurm_plugin.read import parse, request
from slurm_plugin.read.types import NO_REQUEST, Job, JobRequest, Node, Reservation, Snapshot

_ANSWER_BYTES = 1 << 20  # the most that is read at once; a pipe holds less
_SENSELESS = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # what values of other types raise


class PyslurmClient(SlurmClient):
    """A SlurmClient whose snapshots come from pyslurm; all other calls use Slurm's commands.

    It holds a process: call `close`, or use it as a context manager.
    """

    def __init__(self, conf: Path | None = None, timeout_s: float = 5.0, commands_dir: Path | None = None) -> None:
        super().__init__(conf, timeout_s, commands_dir)
        self._child: _Child | None = None

    def __enter__(self) -> PyslurmClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process; the next snapshot starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def snapshot(self) -> Snapshot:
        """Read nodes, jobs and reservations; raise SnapshotError unless every answer is there and complete."""
        begun_s, turn = time.time(), self._slow.turn(time.monotonic())
        answer = self._ask(WITH_RESERVATIONS if turn == RESERVATIONS else WITHOUT_RESERVATIONS)
        try:
            nodes = self.checked_nodes({node.name: node for node in map(_node, answer["nodes"])})
            jobs = tuple(map(_job, answer["jobs"]))
            if turn == RESERVATIONS:
                self._slow.keep_reservations(tuple(map(_reservation, answer["reservations"])), time.monotonic())
        except _SENSELESS as error:
            raise SnapshotError(f"pyslurm's answer makes no sense: {error!r}") from error
        if turn is not None and turn != RESERVATIONS:
            self._slow.read(turn, time.monotonic())
        return self._made(nodes, jobs, begun_s)

    def _ask(self, request: str) -> dict[str, Any]:
        if self._child is None:
            try:
                self._child = _Child(self.environ())
            except OSError as error:
                raise SnapshotError(f"pyslurm's process cannot be started: {error.strerror}") from error
        outcome, begun_s = "ok", time.monotonic()
        try:
            text = self._child.ask(request, self.timeout_s)
        except SnapshotError:
            outcome = "unanswered"
            self.close()
            raise
        finally:
            self.waited_s = time.monotonic() - begun_s
            self.watch("pyslurm", outcome, self.waited_s)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.close()
            raise SnapshotError("pyslurm's answer is cut short") from error
        if not isinstance(answer, dict):
            raise SnapshotError(f"pyslurm's answer makes no sense: {text[:80]!r}")
        if "error" in answer:
            raise SnapshotError(f"pyslurm failed: {one_line(str(answer['error']))}")
        return answer


class _Child:
    """The process that imports pyslurm."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - kept until kill()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slurm_plugin.clients.pyslurm_child"],
            env=environ,
            cwd="/",  # python -m looks for modules where it starts
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,
        )

    def ask(self, request: str, limit_s: float) -> bytes:
        """Send a request and wait for its answer, one line; raise SnapshotError if there is none in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise SnapshotError(self._last_words()) from None
        return self._line(self._process.stdout.fileno(), time.monotonic() + limit_s, limit_s)

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        end(self._process)
        self._complaints.close()

    def _line(self, descriptor: int, deadline_s: float, limit_s: float) -> bytes:
        parts: list[bytes] = []
        answer = select.poll()  # a daemon with many connections has descriptors that are too high for select()
        answer.register(descriptor, select.POLLIN)
        while not (parts and parts[-1].endswith(b"\n")):
            if not answer.poll(1000.0 * max(0.0, deadline_s - time.monotonic())):
                raise SnapshotError(f"pyslurm gave no answer for {limit_s:g} s: is slurmctld up?")
            part = os.read(descriptor, _ANSWER_BYTES)
            if not part:
                raise SnapshotError(self._last_words())
            parts.append(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        if "No module named 'pyslurm'" in last:
            return 'pyslurm is not installed: install the one of this Slurm release, or set [slurm] backend = "text"'
        return f"the pyslurm process ended: {last}"


def _node(row: dict[str, Any]) -> Node:
    state, flags = parse.node_state(row["state"])
    gres, gpus = parse.node_gpus(",".join(f"{name}:{count}" for name, count in row["gres"].items()))
    return Node(
        name=_text(row["name"]),
        state=state,
        flags=flags,
        partitions=tuple(row["partitions"]),
        features=tuple(row["features"]),
        gres=gres,
        gpus=gpus,
        cpus=_whole(row["cpus"]),
        memory_bytes=_whole(row["memory_mb"]) * 2**20,
        reason=_text(row["reason"]),
        weight=_whole(row["weight"]),
        cpus_used=_whole(row["cpus_used"]),
        memory_used_bytes=_whole(row["memory_used_mb"]) * 2**20,
        gpus_used=parse.node_gpus(",".join(f"{name}:{count}" for name, count in row["gres_used"].items() if count))[1],
    )


def _job(row: dict[str, Any]) -> Job:
    """Return a parsed job; an unreadable pending job becomes a waiting one, any other raises SnapshotError."""
    try:
        return _readable_job(row)
    except (*_SENSELESS, SnapshotError) as error:
        if row.get("state") != "PENDING":
            raise SnapshotError(f"pyslurm shows a job that cannot be read ({error!r}): {one_line(str(row))}") from None
        why = row.get("unreadable") or f"{error!r}"
        return parse.unreadable_job(f"{why}: {row}", str(row.get("id") or ""), str(row.get("partition") or ""))


def _readable_job(row: dict[str, Any]) -> Job:
    limit_min, start_s = row["time_limit_min"], row["start_s"]
    state, expedited = parse.job_state(row["state"], row["nodes"])
    return Job(
        id=_text(row["id"]),
        user=_text(row["user"]),
        partition=tuple(row["partition"].split(",")),
        state=state,
        name=_text(row["name"]),
        nodes=_nodeset(row["nodes"]),
        sched_nodes=_nodeset(row["sched_nodes"]),
        start_s=None if start_s is None else _time_s(start_s),
        submit_s=_time_s(row["submit_s"]),
        time_limit_s=None if limit_min is None else _time_s(_whole(limit_min) * 60.0),
        reason=_text(row["reason"]),
        node_count=_whole(row["node_count"]),
        comment=_text(row["comment"]),
        dependency=_text(row["dependency"]),
        priority=_whole(row["priority"]),
        reservation=_text(row["reservation"]),
        account=_text(row["account"]),
        expedited=expedited,
        request=_request(row.get("request")),
    )


def _request(asked: Any) -> JobRequest:
    """Return a job's request, or NO_REQUEST if any part of it cannot be read."""
    try:
        return JobRequest(
            features=_text(asked["features"]),
            required=_nodeset(asked["required"]),
            excluded=_nodeset(asked["excluded"]),
            contiguous=bool(asked["contiguous"]),
            least_s=_time_s(_whole(asked["least_min"]) * 60.0) if asked["least_min"] else None,
            exclusive=not request.is_shared(asked["sharing"]),
            cpus=_whole(asked["cpus"]),
            cpus_per_node=_whole(asked["cpus_per_node"]),
            memory_bytes=_whole(asked["memory_mb"]) * 2**20,
            memory_per_cpu=bool(asked["memory_per_cpu"]),
            gres=request.gres_asked(asked["gres"]),
            switches=_whole(asked["switches"]),
        )
    except (*_SENSELESS, SnapshotError):
        return NO_REQUEST


def _reservation(row: dict[str, Any]) -> Reservation:
    return Reservation(
        name=_text(row["name"]),
        nodes=_nodeset(row["nodes"]),
        start_s=_time_s(row["start_s"]),
        end_s=_time_s(row["end_s"]),
        flags=frozenset(row["flags"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{one_line(str(value))} is no text")
    return value


def _whole(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 2**63:
        raise ValueError(f"{one_line(str(value))} is no number of anything")
    return number


def _time_s(value: Any) -> float:
    time_s = float(value)
    if not 0.0 <= time_s <= parse.LATEST_S:
        raise ValueError(f"{one_line(str(value))} is no time")
    return time_s


def _nodeset(text: str) -> tuple[str, ...]:
    try:
        return tuple(expand(text)) if text else ()
    except SlurmError as error:
        raise SnapshotError(str(error)) from error
