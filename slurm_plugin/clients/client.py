"""The only access to Slurm's commands: every call has a time-out, and a failed call never counts as an empty answer."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.clients.ending import end, left
from slurm_plugin.clients.env import READABLE, scrubbed
from slurm_plugin.clients.slow_settings import Background
from slurm_plugin.errors import CommandError, NoAnswer, SlurmMissing, SnapshotError, UnknownPartition
from slurm_plugin.read import parse
from slurm_plugin.read.types import Job, Node, NodeAddress, Partition, Snapshot

_TERM_GRACE_S = 1.0  # an salloc that gets SIGTERM releases its allocation, one that is killed does not
_ALREADY_OVER = re.compile("Invalid job id|already completing|completed")
# Messages of commands that end without the controller's answer, in the releases 22.05 to 26.05.
_UNHEARD = re.compile("timed out|[Uu]nable to contact|[Zz]ero [Bb]ytes|[Cc]onnection|[Tt]ransport endpoint")
# Without these options, partitions that are hidden, or closed to this user's groups (AllowGroups), are left out with
# all their jobs, and a federation with fed_display shows those of its other clusters.
_ALL_HERE = ("--all", "--local")
# The jobs that they start inherit their environment.
_STARTING = frozenset({"sbatch", "salloc", "srun"})
_MOST_LEFT = 8  # with this many commands hanging in the kernel, no more are started
# The outcomes of a call: success, an error from Slurm, no answer in time, or not started at all.
OUTCOMES = ("ok", "failed", "unanswered", "not_run")
_JOB_ID = re.compile(r"\d+(_\d+|\+\d+)?$")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a finished command."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The command's last line of output, as a reason."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"

    @property
    def is_unheard(self) -> bool:
        """Whether the command failed because no answer came from the controller."""
        return self.code != 0 and _UNHEARD.search(self.err) is not None


class SlurmClient:
    """A client that reads from and submits to the cluster of `conf` (default: $SLURM_CONF, or Slurm's own default).

    The commands come from `commands_dir`, or from PATH. No call lasts longer than `timeout_s` plus two seconds.
    `waited_s` is the time that the last snapshot waited for Slurm, answered or not. `before_exec` is called in the
    process of sbatch, salloc and srun before the command starts: sbatch passes its own resource limits on to the job.
    `watch` is told of every call, in the thread that makes it: the command, one of OUTCOMES, and seconds.
    """

    def __init__(
        self,
        conf: Path | None = None,
        timeout_s: float = 5.0,
        commands_dir: Path | None = None,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.waited_s = 0.0
        self.watch: Callable[[str, str, float], None] = lambda command, outcome, took_s: None
        self._conf = conf
        self._commands_dir = commands_dir
        self._before_exec = before_exec
        self._slow = Background(self._read, _ALL_HERE)
        self._node_names: frozenset[str] = frozenset()
        self._shares_gpus = False

    def snapshot(self) -> Snapshot:
        """Read nodes, jobs and reservations; raise SnapshotError unless every answer is there and complete.

        Partitions, the scheduler and rare wishes of jobs are read with later snapshots, one after another.
        """
        self.waited_s, begun_s = 0.0, time.time()
        nodes = self.checked_nodes(self.nodes())
        jobs = self._jobs()
        if (turn := self._slow.turn(time.monotonic(), jobs)) is not None:
            self._slow.read(turn, time.monotonic())
        return self._made(nodes, self._slow.granted(jobs), begun_s)

    def _made(self, nodes: dict[str, Node], jobs: tuple[Job, ...], begun_s: float) -> Snapshot:
        slow = self._slow
        return Snapshot(time.time(), nodes, jobs, slow.reservations, slow.partitions, slow.scheduler, begun_s=begun_s)

    def nodes(self) -> dict[str, Node]:
        """Read all nodes by name."""
        details = ("-d",) if self._shares_gpus else ()
        found = parse.nodes(self._read("scontrol", "show", "nodes", "-o", *details, *_ALL_HERE))
        # Without AccountingStorageTRES=gres/gpu only the details show the GPUs in use on a node. They make the answer a
        # little longer, so they are requested only once a node needs them.
        self._shares_gpus |= any(_tells_no_gpus(node) for node in found.values())
        return found

    def nodes_with_gpus_used(self) -> dict[str, Node]:
        """Read all nodes by name, with the GPUs in use from the first call on."""
        self._shares_gpus = True
        return self.nodes()

    def node_addresses(self) -> dict[str, NodeAddress]:
        """Read the network address of each node, by node name."""
        return parse.node_addresses(self._read("scontrol", "show", "nodes", "-o", *_ALL_HERE))

    def pending(self) -> tuple[Job, ...]:
        """List the pending jobs of all users, with the scheduler's plan for them; two RPCs (jobs, partitions)."""
        return self._jobs("--states=PENDING")

    def own_jobs(self, name: str, partition: str) -> tuple[Job, ...]:
        """List this user's pending and running jobs with a name in a partition."""
        return self._jobs(f"--user={os.getuid()}", f"--name={name}", f"--partition={partition}")

    def job(self, job_id: str) -> Job | None:
        """Look up one job; None if it is no longer among Slurm's pending and running jobs."""
        _check_ids([job_id])
        try:
            found = self._jobs(f"--jobs={job_id}")
        except SnapshotError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        return found[0] if found else None

    def partitions(self) -> dict[str, Partition]:
        """Read all partitions by name."""
        return parse.partitions(self._read("scontrol", "show", "partition", "-o", *_ALL_HERE))

    def partition(self, name: str) -> Partition:
        """Look up one partition; UnknownPartition names the nearest one, or all that exist."""
        known = self.partitions()
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
        raise UnknownPartition(f"no partition {name}: {hint}")

    def cancel(self, job_ids: Iterable[str], signal: str | None = None) -> None:
        """End jobs, or send them a signal. Jobs that are already over are no error.

        "KILL" ends them at once. For a whole job, Slurm would first send SIGTERM and kill later (5-7 s at KillWait 2,
        for a process that ignores SIGTERM). So the signal goes to each step before the job is cancelled.
        """
        ids = list(job_ids)
        if not ids:  # without ids scancel would cancel all jobs that match its other options
            return
        _check_ids(ids)
        if signal == "KILL":
            if steps := self._steps(ids):
                self._scancel("--signal=KILL", *steps)
            self._scancel(*ids)
        else:
            self._scancel(*([f"--signal={signal}"] if signal else []), *ids)

    def submit(self, argv: Sequence[str], script: str, env: Mapping[str, str] | None = None) -> str:
        """Submit a batch script with sbatch's options `argv` and return the job's id.

        `env` is the environment the job inherits (default: the caller's), less Slurm's own variables. Raise
        CommandError with Slurm's reason if the job is refused, and NoAnswer if there may be a job of unknown id.
        """
        answer = self.run("sbatch", "--parsable", *argv, stdin=script, env=env)
        if answer.code != 0:
            refused = NoAnswer if answer.is_unheard else CommandError
            raise refused(f"sbatch refused the job: {answer.complaint.removeprefix('sbatch: error: ')}")
        job_id = answer.out.strip().split("\n")[-1].split(";")[0]
        if not _JOB_ID.match(job_id):
            raise NoAnswer(f"sbatch gave no job id: {answer.complaint}")
        return job_id

    def submit_shown(self, argv: Sequence[str], script: str) -> int:
        """Submit a batch script as `submit` does, but let sbatch print, and wait where it waits; return its exit code.

        It is for options such as --wait and --test-only.
        """
        words = [self.path("sbatch"), *argv]
        try:
            done = subprocess.run(words, input=script, text=True, env=self.environ(reading=False), check=False)
        except FileNotFoundError:
            raise SlurmMissing("sbatch not found: install Slurm's client commands, or put them on PATH") from None
        except OSError as error:
            raise CommandError(f"cannot run sbatch: {error.strerror}") from error
        return done.returncode if done.returncode >= 0 else 128 - done.returncode

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run one of Slurm's commands; raise NoAnswer after the time-out and SlurmMissing if it is not installed.

        Raise CommandError if it cannot be run at all.
        """
        outcome, begun_s = "not_run", time.monotonic()
        try:
            answer = self._run(command, arguments, stdin, env, self.timeout_s if timeout_s is None else timeout_s)
            is_well = answer.code == 0 or _ALREADY_OVER.search(answer.err)
            outcome = "ok" if is_well else "unanswered" if answer.is_unheard else "failed"
        except NoAnswer:
            outcome = "unanswered"
            raise
        finally:
            self.watch(command, outcome, time.monotonic() - begun_s)
        return answer

    def _run(
        self, command: str, arguments: Sequence[str], stdin: str, env: Mapping[str, str] | None, limit_s: float
    ) -> CommandResult:
        argv = [self.path(command), *arguments]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                argv,
                env=self.environ(env, reading=command not in _STARTING),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                errors="replace",
                start_new_session=True,  # a Ctrl-C meant for us must not end an allocation that is being made
                preexec_fn=self._before_exec if command in _STARTING else None,
            )
        except FileNotFoundError:
            raise SlurmMissing(f"{command} not found: install Slurm's client commands, or put them on PATH") from None
        except OSError as error:
            raise CommandError(f"cannot run {command}: {error.strerror}") from error
        try:
            out, err = process.communicate(stdin, timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(process, _TERM_GRACE_S)
            raise NoAnswer(f"{command} gave no answer for {limit_s:g} s: is slurmctld up?") from None
        except BaseException:
            end(process)
            raise
        return CommandResult(process.returncode, out, err)

    def path(self, command: str) -> str:
        """Return the path of the command for this client's Slurm."""
        return str(self._commands_dir / command) if self._commands_dir else command

    def environ(self, env: Mapping[str, str] | None = None, reading: bool = True) -> dict[str, str]:
        """Make an environment in which Slurm's commands reach this cluster and, for `reading`, print what we can read.

        An environment passed on to jobs is not for reading: their own commands print as usual.
        """
        environ = scrubbed(os.environ if env is None else env)
        if self._conf is not None:
            environ["SLURM_CONF"] = str(self._conf)
        return {**environ, **READABLE} if reading else environ

    def checked_nodes(self, nodes: dict[str, Node]) -> dict[str, Node]:
        """Accept the nodes of an answer, unless some of the last answer's are missing (SnapshotError)."""
        if not nodes:
            raise SnapshotError("Slurm shows no node at all")
        before, self._node_names = self._node_names, frozenset(nodes)
        if gone := before - self._node_names:  # once counts as a truncated answer, twice as an administrator's change
            raise SnapshotError(f"{len(gone)} of {len(before)} nodes are no longer shown: waiting for a second answer")
        return nodes

    def _jobs(self, *filters: str) -> tuple[Job, ...]:
        separator = f"\x1f{secrets.token_hex(3)}"
        form = f"--format={parse.job_format(separator)}"
        return parse.jobs(self._read("squeue", form, *_ALL_HERE, *filters), separator)

    def _steps(self, job_ids: Sequence[str]) -> list[str]:
        try:
            jobs = f"--jobs={','.join(job_ids)}"
            answer = self.run("squeue", "--steps", "--noheader", "--format=%i", "--local", jobs)
        except CommandError:
            return []  # the jobs end without the signal too, only more slowly
        # A signal to the batch step takes the slow way of the whole job, and would take the other steps with it.
        return [step for step in answer.out.split() if not step.endswith((".batch", ".extern"))]

    def _scancel(self, *arguments: str) -> None:
        answer = self.run("scancel", *arguments)
        # One line for each job that scancel could not end: one that is over says nothing about the others.
        complaints = [line for line in answer.err.splitlines() if line.strip()]
        if answer.code != 0 and not (complaints and all(map(_ALREADY_OVER.search, complaints))):
            raise CommandError(f"scancel failed: {answer.complaint}")

    def _read(self, command: str, *arguments: str, timeout_s: float | None = None) -> str:
        """Run a reading command, for `timeout_s` at most; raise SnapshotError for anything but a clean answer."""
        begun_s = time.monotonic()
        if (stuck := left()) >= _MOST_LEFT:
            raise SnapshotError(f"{stuck} of Slurm's commands hang though they were killed: is a file server away?")
        try:
            answer = self.run(command, *arguments, timeout_s=min(self.timeout_s, timeout_s or self.timeout_s))
        except CommandError as error:
            raise SnapshotError(str(error)) from error
        finally:
            self.waited_s += time.monotonic() - begun_s
        if answer.code != 0 or "error" in answer.err.lower():
            raise SnapshotError(f"{command} failed: {answer.complaint}")
        if not answer.out:
            raise SnapshotError(f"{command} gave an empty answer: is slurmctld up?")
        return answer.out


def _tells_no_gpus(node: Node) -> bool:
    return node.state == "MIXED" and bool(node.gpus) and not node.gpus_used


def _check_ids(job_ids: Sequence[str]) -> None:
    for job_id in job_ids:
        if not _JOB_ID.match(job_id):
            raise CommandError(f"not a job id: {job_id!r}")
