"""Node-seconds: which of them were idle, and which pilots had. Pure interval arithmetic on a run's record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.impact.record import Run

Interval = tuple[float, float]

_AT_ONCE_S = 2.0
"""A job that waits no longer is just being started, and makes no queue."""


def standing_s(run: Run) -> float:
    """From the stream's start to the start of its last job: the time in which there was something to be late for."""
    return max((row.start_s for row in run.jobs if row.start_s is not None), default=run.length_s)


def makespan_s(run: Run) -> float:
    """From the stream's start to the end of its last job, as it would end undisturbed."""
    return max((row.start_s + (row.run_s or 0.0) for row in run.jobs if row.start_s is not None), default=run.length_s)


def queue_intervals(run: Run) -> list[Interval]:
    """When at least one job waited for nodes, each from when it could run (what it depends on is over) to its start."""
    ended = {row.number: row.ended_s for row in run.jobs}
    waits = []
    for row in run.jobs:
        if row.kind == "reservation":
            continue
        since_s = row.submit_s
        if row.depends_on is not None:
            since_s = max(since_s, ended.get(row.depends_on) or since_s)
        until_s = run.waited_until_s(row)
        if until_s - since_s > _AT_ONCE_S:
            waits.append((since_s, until_s))
    return union(waits)


def regular_node_s(run: Run, windows: Sequence[Interval]) -> float:
    """Node-seconds of regular jobs within `windows`."""
    return sum(
        len(row.nodes) * overlap_s((row.began_s, run.length_s if row.ended_s is None else row.ended_s), windows)
        for row in run.jobs
        if row.began_s is not None
    )


def pilot_node_s(run: Run, windows: Sequence[Interval]) -> float:
    """Node-seconds of pilots within `windows`."""
    return sum(overlap_s((row.began_s, row.ended_s), windows) for row in run.pilots)


def idle_node_s(run: Run, windows: Sequence[Interval]) -> float:
    """Node-seconds without a regular job within `windows`, whoever else had the node."""
    return run.nodes * sum(end - begin for begin, end in windows) - regular_node_s(run, windows)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as `intervals`, without overlaps and in order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > begin:
            joined.append((begin, end))
    return joined


def overlap_s(interval: Interval, windows: Sequence[Interval]) -> float:
    """Seconds of `interval` within `windows`, which do not overlap each other."""
    return sum(max(0.0, min(interval[1], end) - max(interval[0], begin)) for begin, end in windows)
