"""Hold the copy of Slurm's planner against Slurm itself: recorded snapshots replayed beside slurmctld's own account.

    python -m benchmarks.backfill.replay [--json] [-v] FILE...

The files are what benchmarks.backfill.recorder writes; without any, those of the tests. No pilot was on these clusters,
so what the copy says at a snapshot is what Slurm should do next:

- Of the jobs that a backfill cycle started, or tried to start: how many could start by the copy at the last snapshot
  before the cycle began, and at the last one that was at least a second before ("ahead"). A cycle may last long and
  start a job at its end: "in time" is a second before the job itself was started.
- Of the jobs that could start by the copy as a cycle began: how many had started at its end, by whichever scheduler.
- Of the earmarks that bftd would have made (bftd/pool/earmarks.py, folded over all snapshots): how many led to a start.
- Of the starts that both plan for later: how many are within two seconds of each other.

Jobs in a reservation are left out: no node is earmarked for those.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.backfill.cycle_log import Cycle
from benchmarks.backfill.recording import Recording, load
from benchmarks.evidence.model import Benchmark
from benchmarks.impact.site import PILOTS
from benchmarks.markdown import percent
from benchmarks.markdown import table as markdown
from bftd.pool.availability import survey
from bftd.pool.earmarks import EarmarkMemory
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import occupy
from bftd.pool.prediction import earmark_nodes, slurms_next_cycle
from slurm_plugin.nodeset import fold
from slurm_plugin.read.types import Snapshot

RECORDINGS = Path(__file__).resolve().parents[2] / "tests" / "recordings" / "backfill"
SEEN = ("1", "11")
"""The seeds by whose recordings the copy was mended."""
EVERY_SECOND = "tuned"
"""The recipe in which most jobs start before anybody could have seen that they fit."""
LEAST_PREDICTED, LEAST_USEFUL = 0.92, 0.75
AHEAD_S = 1.0
SAME_S = 2.0
_HARVEST = Harvest.of(PILOTS)


@dataclass(slots=True)
class Counts:
    """What was compared; see the top of this file."""

    cycles: int = 0
    by_main: int = 0
    starts: int = 0
    predicted: int = 0
    ahead: int = 0
    in_time: int = 0
    said: int = 0
    came: int = 0
    earmarks: int = 0
    useful: int = 0
    node_s: float = 0.0
    wasted_node_s: float = 0.0
    plans: int = 0
    same: int = 0

    def add(self, other: Counts) -> None:
        """Add what was counted elsewhere."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    @property
    def predicted_share(self) -> float:
        """Of backfill's starts."""
        return self.predicted / self.starts if self.starts else 1.0

    @property
    def useful_share(self) -> float:
        """Of earmarks."""
        return self.useful / self.earmarks if self.earmarks else 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What the copy says at one snapshot: the jobs that could start now with their nodes, and the others' plans."""

    now: Mapping[str, tuple[str, ...]]
    later: Mapping[str, tuple[float, tuple[str, ...]]]


@dataclass(slots=True)
class Replayed:
    """One recording replayed: the counts, and in `told` a paragraph for each miss."""

    name: str
    counts: Counts
    told: list[str] = field(default_factory=list)


def replay(recording: Recording) -> Replayed:
    """Ask the copy at every snapshot, and compare."""
    snapshots = recording.snapshots
    times_s = [snapshot.time_s for snapshot in snapshots]
    looks = [look(snapshot) for snapshot in snapshots]
    reserved = {job.id for snapshot in snapshots for job in snapshot.jobs if job.reservation}
    begun_s = _begun(snapshots)
    done = Replayed(recording.name, Counts(by_main=len(set(recording.head["by_main"]) - reserved)))
    counts = done.counts
    for cycle in recording.cycles:
        index = bisect_left(times_s, cycle.begin_s) - 1
        if index < 0:
            continue
        counts.cycles += 1
        at_s = {job: started.at_s for job, started in cycle.started.items() if job not in reserved}
        at_s |= {job: failed.at_s for job, failed in cycle.failed.items() if job not in reserved}
        ahead = looks[max(0, bisect_right(times_s, cycle.begin_s - AHEAD_S) - 1)]
        just = looks[index]
        for job, start_s in at_s.items():
            counts.starts += 1
            counts.predicted += _whole(job) in just.now
            counts.ahead += _whole(job) in ahead.now
            counts.in_time += _whole(job) in looks[max(0, bisect_right(times_s, start_s - AHEAD_S) - 1)].now
        over_s = cycle.begin_s if cycle.end_s is None else cycle.end_s
        would = {_whole(job) for job in at_s}
        # squeue shows whole seconds
        false = {job for job in just.now.keys() - would if not begun_s.get(job, over_s + 2.0) <= over_s + 1.0}
        counts.said += len(just.now)
        counts.came += len(just.now) - len(false)
        for job, plan in cycle.planned.items():
            if job in just.later:
                counts.plans += 1
                counts.same += abs(just.later[job][0] - plan.start_s) < SAME_S
        missed = would - just.now.keys()
        if missed or false:
            done.told.append(_tell(recording.name, cycle, snapshots[index], just, missed, false))
    counts.earmarks, counts.useful, counts.node_s, counts.wasted_node_s = _earmarks(snapshots)
    return done


def look(snapshot: Snapshot) -> Look:
    """What the copy says at a snapshot of a cluster without pilots."""
    jobs = occupy(snapshot, _HARVEST)
    if not jobs.near:
        return Look({}, {})
    ground = survey(snapshot, jobs, _HARVEST, {}, (), EarmarkMemory().numbering)
    _, outcome = slurms_next_cycle(snapshot, jobs, ground, kept={}, backed_off=())
    names = ground.numbering.of_mask
    return Look(
        {_whole(job): names(mask) for job, mask in outcome.now.items()},
        {job: (plan.start_s, names(plan.mask)) for job, plan in outcome.later.items()},
    )


def _begun(snapshots: Sequence[Snapshot]) -> dict[str, float]:
    """When each job started, of an array its first task."""
    begun_s: dict[str, float] = {}
    for snapshot in snapshots:
        for job in snapshot.jobs:
            if job.state != "PENDING" and job.start_s is not None:
                begun_s.setdefault(_whole(job.id), job.start_s)
    return begun_s


def _earmarks(snapshots: Sequence[Snapshot]) -> tuple[int, int, float, float]:
    """The earmarks that there would be: all, those that led to a start; the node-seconds of all, of the others."""
    memory = EarmarkMemory()
    earmarks = useful = 0
    node_s = wasted_node_s = 0.0
    for snapshot in snapshots:
        memory, over = earmark_nodes(memory, snapshot, occupy(snapshot, _HARVEST), _HARVEST, {})
        if memory.fault is not None:
            raise memory.fault
        for one in over:
            kept_s = len(one.earmark.nodes) * (snapshot.time_s - one.earmark.since_s)
            earmarks, node_s = earmarks + 1, node_s + kept_s
            if one.end == "started":
                useful += 1
            else:
                wasted_node_s += kept_s
    return earmarks, useful, node_s, wasted_node_s


def _whole(job: str) -> str:
    """The array of a task, or the job of a component."""
    return job.partition("_")[0].partition("+")[0]


def _tell(name: str, cycle: Cycle, snapshot: Snapshot, said: Look, missed: Iterable[str], false: Iterable[str]) -> str:
    """A cycle in which the copy and Slurm differ: what each of them says of every job, in Slurm's order."""
    lines = [
        f"{name} {_clock(cycle.begin_s)}, by the snapshot of {_clock(snapshot.time_s)}: "
        f"missed {', '.join(sorted(missed)) or 'none'}; not started {', '.join(sorted(false)) or 'none'}"
    ]
    jobs = {_whole(job.id): job for job in snapshot.jobs}
    for id_ in dict.fromkeys([*map(_whole, cycle.tested), *said.now, *said.later]):
        words = [f"  {id_}"]
        if (job := jobs.get(id_)) is None:
            words.append("(not in the snapshot)")
        else:
            request = job.request
            asks = [request.features, "contiguous" * request.contiguous, fold(request.required)]
            words.append(
                f"{job.node_count} nodes, {(job.time_limit_s or 0) / 60:.0f} min, {job.reason} {' '.join(asks).strip()}"
            )
        words.append(f"| Slurm: {_of_slurm(cycle, id_)} | copy: {_of_copy(said, id_)}")
        lines.append(" ".join(words))
    return "\n".join(lines)


def _of_slurm(cycle: Cycle, job: str) -> str:
    if (start := cycle.started.get(job)) is not None:
        return f"started {_clock(start.at_s)} on {fold(start.nodes)}"
    if (failure := cycle.failed.get(job)) is not None:
        return f"could not start {_clock(failure.at_s)} on {fold(failure.nodes)}"
    if (plan := cycle.planned.get(job)) is not None:
        return f"{_clock(plan.start_s)} to {_clock(plan.end_s)} on {fold(plan.nodes)}"
    return "no plan" if job in cycle.tested else "not looked at"


def _of_copy(said: Look, job: str) -> str:
    if job in said.now:
        return f"now on {fold(said.now[job])}"
    if job in said.later:
        start_s, nodes = said.later[job]
        return f"{_clock(start_s)} on {fold(nodes)}"
    return "nothing"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%H:%M:%S.%f")[:-5]


def table(found: Mapping[str, Counts]) -> str:
    """The counts of recordings by name, summed up by recipe and release, and all but those of cycles a second apart."""
    groups: dict[str, list[str]] = {}
    for name in found:
        recipe, release, _ = name.split("-")
        groups.setdefault(f"{recipe}, {release}", []).append(name)
    every = [name for name in found if not name.startswith(EVERY_SECOND)]
    rows = [_row(group, [found[name] for name in names], _held_out(found, names)) for group, names in groups.items()]
    if len(groups) > 1 and every:
        rows.append(_row(f"all but {EVERY_SECOND}", [found[name] for name in every], _held_out(found, every)))
    head = ["recipe, release", "recordings (held out)", "backfill's starts predicted", "the same, held out"]
    head += ["a second ahead", "earmarks that led to a start", "the same, held out", "wasted"]
    return markdown([*head, "plans within 2 s"], rows)


def _held_out(found: Mapping[str, Counts], names: Iterable[str]) -> list[Counts]:
    return [found[name] for name in names if name.rpartition("-")[2] not in SEEN]


def _row(group: str, counts: Sequence[Counts], held_out: Sequence[Counts]) -> list[str]:
    every, others = Counts(), Counts()
    for total, parts in ((every, counts), (others, held_out)):
        for part in parts:
            total.add(part)
    bounded = not group.startswith(EVERY_SECOND)
    predicted = [one.predicted_share < LEAST_PREDICTED and bounded for one in (every, others)]
    useful = [one.useful_share < LEAST_USEFUL and bounded for one in (every, others)]
    return [
        group,
        f"{len(counts)} ({len(held_out)})",
        _share(every.predicted, every.starts, predicted[0]),
        _share(others.predicted, others.starts, predicted[1]),
        _share(every.ahead, every.starts),
        _share(every.useful, every.earmarks, useful[0]),
        _share(others.useful, others.earmarks, useful[1]),
        percent(every.wasted_node_s / every.node_s, 0) if every.node_s else "-",
        _share(every.same, every.plans),
    ]


def _share(count: int, of: int, missed: bool = False) -> str:
    return f"{count:,} of {of:,}, {count / of:.1%}{', missed' if missed else ''}".replace("%", " %") if of else "-"


EVIDENCE = {
    "backfill_replay": Benchmark(
        ("benchmarks.backfill.replay",),
        2.0,
        {"starts": lambda result: table({name: Counts(**counts) for name, counts in result.items()})},
    )
}


def main() -> int:
    """Replay the recordings; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backfill.replay", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="recordings [those of the tests]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell of cycles in which copy and Slurm differ")
    options = parser.parse_args()
    try:
        replayed = [replay(load(file)) for file in options.files or sorted(RECORDINGS.glob("*.xz"))]
    except (OSError, ValueError) as error:
        print(f"backfill.replay: {error}", file=sys.stderr)
        return 1
    if options.verbose:
        for one in replayed:
            print("\n".join(one.told), file=sys.stderr)
    if options.json:
        print(json.dumps({one.name: asdict(one.counts) for one in replayed}, indent=2))
    else:
        print(table({one.name: one.counts for one in replayed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
