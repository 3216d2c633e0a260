"""The figures of one recipe from its runs: waits, plans, harvest and what it costs the controller."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations

from benchmarks.impact.analysis import causal, occupancy, stats
from benchmarks.impact.analysis.causal import Figures
from benchmarks.impact.record import JobRow, Run

_SAME_PLAN_S = 1.0
_EARLY_S = 5.0
"""Jobs end up to four seconds before their limits; what begins earlier than that did not begin by its plan."""

_READING = (
    "REQUEST_NODE_INFO",
    "REQUEST_JOB_INFO",
    "REQUEST_PARTITION_INFO",
    "REQUEST_RESERVATION_INFO",
    "REQUEST_BUILD_INFO",
    "REQUEST_STATS_INFO",
    "REQUEST_PING",  # scontrol greets the controller after it has shown the settings
)
_ONE_A_POLL = "REQUEST_NODE_INFO"
_PLAN_READ_RPCS = 2
"""squeue asks for the jobs and for the partitions."""

_OWN_RPCS = 1
"""The benchmark asks for the statistics as the stream begins; its question at the end is not in the answer."""


def figures(runs: Sequence[Run]) -> Figures:
    """All figures of the runs of one recipe; those that the runs do not give are None."""
    a = sorted((run for run in runs if run.kind == "A"), key=_place)
    b = sorted((run for run in runs if run.kind == "B"), key=_place)
    by_place = {_place(run): run for run in a}
    pairs = [(by_place[_place(run)], run) for run in b if _place(run) in by_place]
    return {
        "jobs": runs[0].count if runs else 0,
        "pairs": len(pairs),
        "seeds": sorted({run.seed for _, run in pairs}),
        **_aa(a),
        "ba": waited_longer(b, a),
        **_ba(pairs),
        **causal.figures(a, b),
        **_makespan(pairs),
        **_planned(pairs),
        **_harvest(pairs, b),
        "rpc_per_poll": _rpc_per_poll(a),
        "rpc_per_s": {kind: _rpc_rates(some) for kind, some in (("a", a), ("b", b))},
        "pilots_per_run": stats.mean([len(run.pilots) for run in b]),
        "slurmctld_cpu_share": {kind: _cpu_share(some) for kind, some in (("a", a), ("b", b))},
        "notes": [f"{run.kind}, seed {run.seed}, pair {run.pair}: {run.note}" for run in runs if run.note],
        "never_started": sum(row.start_s is None for run in runs for row in run.jobs),
        "stream_s": {
            kind: stats.mean([occupancy.standing_s(run) for run in some]) for kind, some in (("a", a), ("b", b))
        },
    }


def _place(run: Run) -> tuple[int, int]:
    return run.seed, run.pair


def wait_s(run: Run, row: JobRow) -> float:
    """From submission to the job's first line; a job that never started has waited to the run's end."""
    return run.waited_until_s(row) - row.submit_s


def differences(one: Run, other: Run) -> list[float]:
    """How much longer each job waited in `other` than in `one`, in the order of the jobs."""
    waits = {row.number: wait_s(one, row) for row in one.jobs}
    return [wait_s(other, row) - waits[row.number] for row in other.jobs]


def _aa(a: Sequence[Run]) -> Figures:
    pairs = [differences(one, other) for one, other in combinations(a, 2) if one.seed == other.seed]
    both_ways = [sign * value for pair in pairs for value in pair for sign in (1, -1)]
    by_pair = [sum(pair) / len(pair) for pair in pairs]
    return {
        "aa_mean_diff_s": stats.mean([abs(value) for value in by_pair]),
        "aa_p95_diff_s": stats.percentile(both_ways, 0.95),
        "aa_max_diff_s": max(both_ways, default=None),
        "aa_pairs": len(pairs),
        "aa_mean_diff_by_pair_s": by_pair,
    }


def _ba(pairs: Sequence[tuple[Run, Run]]) -> Figures:
    every = [value for one, other in pairs for value in differences(one, other)]
    return {"ba_p95_diff_s": stats.percentile(every, 0.95), "ba_max_diff_s": max(every, default=None)}


def waited_longer(b: Sequence[Run], others: Sequence[Run]) -> Figures:
    """How much longer jobs waited with bftd than in `others`, by stream: the mean of its runs less that of theirs."""
    with_s, without_s = _waits_s(b), _waits_s(others)
    by_seed = {seed: with_s[seed] - without_s[seed] for seed in sorted(with_s.keys() & without_s.keys())}
    told = stats.of_streams(list(by_seed.values()), stats.mean([without_s[seed] for seed in by_seed]))
    return {**told, "by_seed_s": by_seed}


def _waits_s(runs: Iterable[Run]) -> dict[int, float]:
    """The mean wait in each stream, of which every run counts alike."""
    found: dict[int, list[float]] = {}
    for run in runs:
        found.setdefault(run.seed, []).append(statistics.mean(wait_s(run, row) for row in run.jobs))
    return {seed: statistics.mean(values) for seed, values in found.items()}


def _planned(pairs: Sequence[tuple[Run, Run]]) -> Figures:
    """How much later than planned jobs began, with bftd against without; those it was preempted for are told above."""
    a = [lateness for one, _ in pairs for row in one.jobs if (lateness := lateness_s(row)) is not None]
    b = [lateness for _, other in pairs for row in other.jobs if (lateness := lateness_s(row)) is not None]
    return {
        "planned_mean_diff_s": sum(b) / len(b) - sum(a) / len(a) if a and b else None,
        "planned_jobs": {"a": len(a), "b": len(b)},
    }


def lateness_s(row: JobRow) -> float | None:
    """Start minus planned start, of a job whose plan was made well ahead, stayed, and was what it began by.

    None for the others: where the plan changed, where something ended early and the job began before its plan, and
    where Slurm had to preempt.
    """
    if row.planned_s is None or row.last_plan_s is None or row.start_s is None or row.preempt_s is not None:
        return None
    if abs(row.last_plan_s - row.planned_s) > _SAME_PLAN_S or row.planned_s - row.start_s > _EARLY_S:
        return None
    return row.start_s - row.planned_s


def _harvest(pairs: Sequence[tuple[Run, Run]], b: Sequence[Run]) -> Figures:
    idle = used = 0.0
    for one, other in pairs:
        # Until the first of the two is over: after its last job's start there are no pilots to be counted.
        window = [(0.0, min(occupancy.standing_s(one), occupancy.standing_s(other)))]
        idle += occupancy.idle_node_s(one, window)
        used += occupancy.pilot_node_s(other, window)
    queued = [(run, occupancy.queue_intervals(run)) for run in b]
    queue_idle = sum(occupancy.idle_node_s(run, windows) for run, windows in queued)
    queue_used = sum(occupancy.pilot_node_s(run, windows) for run, windows in queued)
    return {
        "harvested_share": used / idle if idle else None,
        "harvested_share_queue": queue_used / queue_idle if queue_idle else None,
        "idle_share": stats.mean(
            [
                occupancy.idle_node_s(one, [(0.0, end)]) / one.nodes / end
                for one, _ in pairs
                if (end := occupancy.standing_s(one))
            ]
        ),
        "queue_stands_share": stats.mean(
            [sum(end - begin for begin, end in windows) / occupancy.standing_s(run) for run, windows in queued]
        ),
    }


def _makespan(pairs: Sequence[tuple[Run, Run]]) -> Figures:
    """From the stream's start to the end of its last job, and how much longer that is with bftd, as a share."""
    a, b = (stats.mean([occupancy.makespan_s(pair[side]) for pair in pairs]) for side in (0, 1))
    return {"makespan_s": {"a": a, "b": b}, "makespan_longer_share": b / a - 1.0 if a and b else None}


def _rpc_per_poll(a: Sequence[Run]) -> float | None:
    """Reading requests of the poller, which reads what the daemon reads; less those of the benchmark's own looks."""
    polls = sum(run.rpcs.get(_ONE_A_POLL, 0) for run in a)
    asked = sum(
        sum(run.rpcs.get(name, 0) for name in _READING) - _PLAN_READ_RPCS * run.plan_reads - _own_rpcs(run) for run in a
    )
    return asked / polls if polls else None


def _own_rpcs(run: Run) -> int:
    return min(_OWN_RPCS, run.rpcs.get("REQUEST_STATS_INFO", 0))


def _rpc_rates(runs: Sequence[Run]) -> dict[str, float]:
    length_s = sum(run.length_s for run in runs)
    names = sorted({name for run in runs for name in run.rpcs})
    return {name: round(sum(run.rpcs.get(name, 0) for run in runs) / length_s, 3) for name in names}


def _cpu_share(runs: Sequence[Run]) -> float | None:
    return sum(run.controller_cpu_s for run in runs) / sum(run.length_s for run in runs) if runs else None
