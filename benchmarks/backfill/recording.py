"""A cluster's snapshots second by second, and slurmctld's own account of its backfill cycles, in one file.

The file is one of `benchmarks.backfill.snapshot_log`, compressed with xz, with lines of other kinds among the
snapshots, in the order of time: {"begin_s": ...} is a cycle. Its head says which recipe of the impact benchmark ran on
which release of Slurm, with which seed, how busy the machine was at most (the load), and which jobs the main scheduler
started.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.backfill import cycle_log, snapshot_log
from benchmarks.backfill.cycle_log import Cycle, Failure, Planned, Start
from benchmarks.impact import logs, record
from slurm_plugin.nodeset import expand, fold
from slurm_plugin.read.scheduler import with_rules
from slurm_plugin.read.types import Snapshot


@dataclass(frozen=True, slots=True)
class Recording:
    """The snapshots of one run, and the backfill cycles that began after the first of them."""

    name: str
    head: Mapping[str, Any]
    snapshots: Sequence[Snapshot]
    cycles: Sequence[Cycle]


def pack(run: Path, kept: Path, file: Path) -> None:
    """Make a recording of a run of the impact benchmark, of which `kept` are the logs; it appears when it is whole."""
    done = record.load(run)
    with gzip.open(kept / "slurmctld.log.gz", "rt", errors="replace") as log:
        said = log.readlines()
    with lzma.open(kept / "snapshots.xz", "rt") as snapshots:
        snapshot_log.head(next(snapshots))
        lines = [(json.loads(line)["time_s"], line) for line in snapshots]
    head = {
        "format": snapshot_log.FORMAT,
        "version": snapshot_log.VERSION,
        "recipe": done.recipe,
        "release": done.release,
        "seed": done.seed,
        "jobs": done.count,
        "stretch": done.stretch,
        "load_most": round(done.load_most, 1),
        "note": done.note,
        "by_main": sorted((job for job, start in logs.starts(said).items() if start.by == "main"), key=int),
    }
    for cycle in cycle_log.cycles(said):
        if cycle.tested:
            lines.append((cycle.begin_s, json.dumps(_of_cycle(cycle), separators=(",", ":")) + "\n"))
    lines.sort(key=itemgetter(0))
    unfinished = file.with_suffix(".part")
    with lzma.open(unfinished, "wt", preset=9 | lzma.PRESET_EXTREME) as packed:
        packed.write(json.dumps(head) + "\n")
        packed.writelines(line for _, line in lines)
    unfinished.rename(file)


def load(file: Path) -> Recording:
    """Read a recording; raises ValueError for another file."""
    try:
        with lzma.open(file, "rt") as packed:
            head = snapshot_log.head(next(packed))
            lines = list(packed)
        cycles = [_to_cycle(json.loads(line)) for line in lines if line.startswith('{"begin_s"')]
        read = snapshot_log.read(line for line in lines if not line.startswith('{"begin_s"'))
        # Worked out anew: a recording may be older than what is known of its release.
        snapshots = [replace(one, scheduler=with_rules(one.scheduler, head["release"])) for one in read]
    except (lzma.LZMAError, KeyError, TypeError, StopIteration, ValueError) as error:
        raise ValueError(f"{file} is no recording of benchmarks.backfill.recorder ({error})") from error
    cycles = [cycle for cycle in cycles if snapshots and cycle.begin_s > snapshots[0].time_s]
    return Recording(file.stem, head, snapshots, cycles)


def _of_cycle(cycle: Cycle) -> dict[str, Any]:
    return {
        "begin_s": cycle.begin_s,
        "end_s": cycle.end_s,
        "tested": cycle.tested,
        "planned": {job: [one.start_s, one.end_s, fold(one.nodes)] for job, one in cycle.planned.items()},
        "started": {job: [one.at_s, fold(one.nodes)] for job, one in cycle.started.items()},
        "failed": {job: [one.at_s, fold(one.nodes), one.preempted] for job, one in cycle.failed.items()},
    }


def _to_cycle(row: Mapping[str, Any]) -> Cycle:
    return Cycle(
        begin_s=row["begin_s"],
        end_s=row["end_s"],
        tested=tuple(row["tested"]),
        planned={job: Planned(start_s, end_s, _nodes(on)) for job, (start_s, end_s, on) in row["planned"].items()},
        started={job: Start(at_s, _nodes(on)) for job, (at_s, on) in row["started"].items()},
        failed={job: Failure(at_s, _nodes(on), tuple(gone)) for job, (at_s, on, gone) in row["failed"].items()},
    )


def _nodes(text: str) -> tuple[str, ...]:
    return tuple(expand(text))
