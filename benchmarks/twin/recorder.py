r"""Record a stream of short jobs on a private cluster with one feature of Slurm, for benchmarks.twin.features.

    python -m benchmarks.twin.recorder [--out FOLDER] [--log FILE] FEATURE=SEED...

A run takes three to seven minutes. Features with accounts need slurmdbd and MariaDB. With another release than this
machine's nothing stays but what is printed:

    tools/slurm_root.sh SUITE \
        sh -c 'python -m benchmarks.twin.recorder --out /tmp/r plain=20 >&2; tar -c -C /tmp/r .' | tar -x
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from benchmarks.backfill.cycle_log import cycles
from benchmarks.twin.features import (
    FEATURES,
    INTERVAL_S,
    NODES,
    RECORDINGS,
    Feature,
    FeatureRecording,
    StreamJob,
    drawn,
)
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SandboxError, SlurmError
from slurm_plugin.nodeset import expand
from slurm_plugin.sandbox.accounting import AccountedSandbox

_CONF = f"""\
SchedulerParameters=bf_interval={INTERVAL_S:.0f}
MinJobAge=3600
DebugFlags=Backfill,BackfillMap,HetJob,Priority
SlurmctldDebug=debug2
"""
_WORD = re.compile(r"(?:^| )(\w+)=(\S+)")
_RELEASE = re.compile(r"slurmctld version (\d+\.\d+\.\d+)")
_START = re.compile(r"\[(\S+)\] (?:sched: Allocate|sched/backfill: _start_job: (?:HETJOB: )?Started) JobId=(\d+) ")
_WAIT_S, _MOST_S = 150.0, 900.0
_DONE = {"COMPLETED", "TIMEOUT"}


class _Cluster(AccountedSandbox):
    def __init__(self, feature: Feature) -> None:
        super().__init__(feature.statements or None, nodes=NODES, extra_conf=_CONF)
        self._feature = feature

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        more = self._feature.conf.replace("{root}", str(self.root))
        for name, text in self._feature.files.items():
            file = self.root / name
            file.write_text(text)
            file.chmod(0o755)
        self.conf.write_text(f"{self.conf.read_text()}\n{more}\n")
        (self.root / "job_submit.lua").unlink()
        self.conf.write_text(self.conf.read_text().replace("JobSubmitPlugins=lua\n", ""))

    @property
    def log(self) -> Path:
        """The controller's log."""
        return self.root / "log" / "slurmctld.log"


def recorded(name: str, seed: int, log: Path | None = None) -> FeatureRecording:
    """Run a stream on a private cluster; a copy of the controller's log goes to `log`."""
    feature = FEATURES[name]
    cluster = _Cluster(feature)
    with cluster:
        client = cluster.client(20.0)
        try:
            _await_line(cluster.log, feature.begins_after)
            begin_s = time.time()
            for place, one in enumerate(feature.reserved):
                _asked(
                    client, "create", "reservation", f"StartTime=now+{one.start_s:.0f}seconds", "Users=root",
                    f"Duration={one.length_min}", f"Nodes={one.nodes}", f"ReservationName=r{place}",
                )  # fmt: skip
            jobs, ids = _submitted(client, feature, drawn(feature, seed), begin_s)
            rows = _ended(client)
            said = cluster.log.read_text(errors="replace")
        finally:
            if log is not None:
                log.write_text(cluster.log.read_text(errors="replace"))
    if (release := _RELEASE.search(said)) is None:
        raise SandboxError("the controller's log does not tell its release")
    starts_s = {id_: datetime.fromisoformat(at).timestamp() for at, id_ in _START.findall(said)}
    found = tuple(
        replace(
            job,
            start_s=round(starts_s[id_] - begin_s, 3),
            on=tuple(expand(rows[id_]["NodeList"])),
        )
        for id_, job in zip(ids, jobs, strict=True)
    )
    return FeatureRecording(name, release[1], seed, round(begin_s, 3), *phases(said, begin_s), found)


def phases(said: str, begin_s: float) -> tuple[float, float, float, float]:
    """Return when a log tells first of a backfill cycle, a look, one at the whole queue, and one at limits."""
    firsts = [min(one.begin_s for one in cycles(said.splitlines()) if one.begin_s > begin_s)]
    for like in ("Running job scheduler", "Running job scheduler for full queue", "Testing job time limits"):
        times_s = (datetime.fromisoformat(at).timestamp() for at in re.findall(rf"\[(\S+)\] .*{like}", said))
        firsts.append(min(at_s for at_s in times_s if at_s > begin_s))
    backfill_s, look_s, full_s, limits_s = (round(first_s - begin_s, 3) for first_s in firsts)
    return backfill_s, look_s, full_s, limits_s


def _await_line(log: Path, like: str) -> None:
    """Wait for a new line in the log."""
    if not like:
        return
    before, deadline_s = len(re.findall(like, log.read_text(errors="replace"))), time.monotonic() + _WAIT_S
    while len(re.findall(like, log.read_text(errors="replace"))) == before:
        if time.monotonic() > deadline_s:
            raise SandboxError(f"the controller's log has no new line like {like!r}")
        time.sleep(0.1)


def _asked(client: SlurmClient, *words: str) -> None:
    answer = client.run("scontrol", *words)
    if answer.code:
        raise SandboxError(f"scontrol {' '.join(words)} failed: {answer.complaint}")


def _submitted(
    client: SlurmClient, feature: Feature, jobs: Sequence[StreamJob], begin_s: float
) -> tuple[list[StreamJob], list[str]]:
    """Submit the jobs at their times, and change nodes' states; returns the jobs with their real times, and ids."""
    found: list[StreamJob] = []
    ids: list[str] = []
    plan: list[tuple[float, StreamJob | int]] = [(job.at_s, job) for job in jobs]
    plan += [(change.at_s, place) for place, change in enumerate(feature.changes)]
    for at_s, what in sorted(plan, key=lambda one: one[0]):
        time.sleep(max(0.0, begin_s + at_s - time.time()))
        if isinstance(what, int):
            change = feature.changes[what]
            _asked(client, "update", f"NodeName=n{change.node}", f"State={change.state}", "Reason=test")
            continue
        answer = client.run("sbatch", *_options(what, ids))
        if answer.code:
            raise SandboxError(f"sbatch failed: {answer.complaint}")
        found.append(replace(what, at_s=round(time.time() - begin_s, 3)))
        ids.append(answer.out.strip())
    return found, ids


def _options(job: StreamJob, ids: Sequence[str]) -> Iterator[str]:
    yield from ("--parsable", f"--partition={job.partition}", f"--nodes={job.nodes}", f"--time={job.limit_min}")
    yield from ("--output=/dev/null", "--chdir=/tmp", f"--wrap=exec sleep {job.run_s}")
    if job.user:
        yield from (f"--uid={job.user}", f"--account={job.account}")
    if job.qos:
        yield f"--qos={job.qos}"
    if job.begin_s:
        yield f"--begin=now+{job.begin_s}seconds"
    if job.after is not None:
        yield f"--dependency=afterany:{ids[job.after]}"
    if job.booked is not None:
        yield f"--reservation=r{job.booked}"


def _ended(client: SlurmClient) -> dict[str, dict[str, str]]:
    """Wait for the end of all jobs; returns what Slurm shows of each, by id."""
    deadline_s = time.monotonic() + _MOST_S
    while True:
        shown = [dict(_WORD.findall(row)) for row in client.run("scontrol", "-o", "show", "jobs").out.splitlines()]
        left = [row for row in shown if row["JobState"] not in _DONE]
        if not left:
            return {row["JobId"]: row for row in shown}
        if time.monotonic() > deadline_s:
            states = ", ".join(f"{row['JobId']} {row['JobState']} {row.get('Reason', '')}" for row in left)
            raise SandboxError(f"jobs have not ended: {states}")
        time.sleep(1.0)


def main() -> int:
    """Record; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin.recorder", description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="FEATURE=SEED", help=f"of {', '.join(FEATURES)}")
    parser.add_argument("--out", type=Path, default=RECORDINGS, help="folder for the recordings [%(default)s]")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="where the controller's logs are kept [nowhere]")
    options = parser.parse_args()
    runs = [(name, seed) for name, _, seed in (run.partition("=") for run in options.runs)]
    if wrong := [name for name, seed in runs if name not in FEATURES or not seed.isdecimal()]:
        parser.error(f"no run of a feature: {', '.join(wrong)}")
    for name, seed in runs:
        log = options.log / f"{name}-{seed}.log" if options.log else None
        try:
            print(recorded(name, int(seed), log).write(options.out), flush=True)
        except SlurmError as error:
            print(f"twin.recorder: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
