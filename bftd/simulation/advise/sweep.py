"""The grid: one replay for each pair of t_fwd and pj_max, and the figures of that setting."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from bftd.base.errors import UsageError
from bftd.simulation import replay
from bftd.simulation.advise.units import in_node_seconds
from bftd.simulation.advise.workers import Progress, each
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay import Options, Result

if TYPE_CHECKING:
    from bftd.simulation.trace import Trace

WEEK_H = 168.0
DAY_S = 86400.0


@dataclass(frozen=True)
class Day:
    """A day of a replay: its length, and the node-hours recovered in it."""

    hours: float
    node_hours: float


@dataclass(frozen=True)
class KindOutcome:
    """The number of completed trainers of a kind, and their mean run time, None if there are none."""

    completed: int
    mean_runtime_s: float | None


@dataclass(frozen=True)
class SweepPoint:
    """The outcome of a replay with `t_fwd_s` and `pj_max`.

    `node_hours_per_week` is the training done, in node-hours of a dedicated node. `training_node_hours_per_week` and
    `held_node_hours_per_week` are the node-hours that trainers trained on and held for it. `efficiency` is
    `node_hours_per_week` over the idle node-hours. `u` is the paper's U, which compares with dedicated nodes under the
    same pj_max, so it cannot be compared between values of pj_max. `rescale_share` and `preempt_share` are the parts of
    the idle node-hours that are lost to resizes and preemptions.

    `mean_runtime_s`, from admission to completion, also counts unfinished trainers (see `_mean_runtime_s`);
    `completed_runtime_s` is the mean over the `completed` ones only, None if there are none. `unfinished` trainers were
    running at the end.
    """

    t_fwd_s: float
    pj_max: int
    efficiency: float
    u: float
    node_hours_per_week: float
    training_node_hours_per_week: float
    held_node_hours_per_week: float
    mean_runtime_s: float
    completed_runtime_s: float | None
    completed: int
    unfinished: int
    preemptions: int
    rescale_share: float
    preempt_share: float
    kinds: Mapping[str, KindOutcome] = field(default_factory=dict)
    days: tuple[Day, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the days as JSON data; an infinite run time is null."""
        data = asdict(self)
        del data["days"]
        if not isfinite(self.mean_runtime_s):
            data["mean_runtime_s"] = None
        return data


def sweep(
    trace: Trace,
    trainers: Sequence[SimTrainer],
    t_fwds_s: Sequence[float],
    pj_maxes: Sequence[int],
    *,
    options: Options | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[SweepPoint, ...]:
    """Replay the trace with each pair of t_fwd and pj_max, on `jobs` processes (default: one per core).

    All trainers are there from the start, and the list begins again when it is used up, so that trainers never run out.
    Points are ordered by pj_max, then t_fwd, and do not depend on `jobs`. `progress` is called with the fraction done,
    in 0..1. Raise `UsageError` for impossible settings or trainers.
    """
    options = options or Options()
    if not trainers or not t_fwds_s or not pj_maxes:
        raise UsageError("there is nothing to try: give at least one trainer, one t_fwd and one pj_max")
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs must be 1 or more, not {jobs}")
    if options.hours is not None:
        trace = trace.first(options.hours)
    counted, options = in_node_seconds(trainers, options)
    pairs = itertools.product(sorted(set(pj_maxes)), sorted(set(t_fwds_s)))
    settings = [replace(options, pj_max=pj_max, t_fwd_s=t_fwd_s, endless=True, hours=None) for pj_max, t_fwd_s in pairs]

    def work(index: int, report: Progress) -> SweepPoint:
        return _point(replay.run(trace, counted, settings[index], progress=report), trace, counted, settings[index])

    # Settings with many trainers take longest, so they begin first: no core waits for the last of them.
    order = range(len(settings))[::-1]
    return tuple(each(work, order, jobs or len(os.sched_getaffinity(0)), progress))


def _point(result: Result, trace: Trace, trainers: Sequence[SimTrainer], options: Options) -> SweepPoint:
    weeks = trace.duration_s / 3600 / WEEK_H
    idle_s = result.node_hours * 3600
    runtimes = result.account.runtimes_s
    every = [runtime_s for kind in sorted(runtimes) for runtime_s in runtimes[kind]]
    return SweepPoint(
        t_fwd_s=options.t_fwd_s,
        pj_max=options.pj_max,
        efficiency=result.outcome_samples / idle_s if idle_s > 0 else 0.0,
        u=result.efficiency,
        node_hours_per_week=result.outcome_samples / 3600 / weeks,
        training_node_hours_per_week=result.training_node_hours / weeks,
        held_node_hours_per_week=result.held_node_hours / weeks,
        mean_runtime_s=_mean_runtime_s(result, trace, trainers, options),
        completed_runtime_s=float(np.mean(every)) if every else None,
        completed=len(every),
        unfinished=options.pj_max,
        preemptions=result.preemptions,
        rescale_share=result.rescale_cost_samples / idle_s if idle_s > 0 else 0.0,
        preempt_share=result.preempt_cost_samples / idle_s if idle_s > 0 else 0.0,
        kinds={kind: _kind(runtimes.get(kind, ())) for kind in sorted({trainer.kind for trainer in trainers})},
        days=_days(result, trace),
    )


def _mean_runtime_s(result: Result, trace: Trace, trainers: Sequence[SimTrainer], options: Options) -> float:
    """Return the mean time from admission to completion by Little's law: trainers running / completions a second.

    pj_max trainers run all the time. The number completed is, in the long run, the work done over the mean work of a
    trainer. So a setting gains nothing if only its short trainers complete within the trace.
    """
    if result.outcome_samples <= 0:
        return inf
    average = sum(trainer.work_samples for trainer in trainers) / len(trainers)
    return options.pj_max * trace.duration_s * average / result.outcome_samples


def _kind(runtimes_s: Sequence[float]) -> KindOutcome:
    return KindOutcome(len(runtimes_s), float(np.mean(runtimes_s)) if runtimes_s else None)


def _days(result: Result, trace: Trace) -> tuple[Day, ...]:
    """Split the trace into whole days from its start; the last day takes the remainder."""
    count = max(1, int(trace.duration_s // DAY_S))
    edges_s = np.append(np.arange(count) * DAY_S, trace.duration_s)
    earned = result.account.outcome(edges_s)
    return tuple(
        Day(float(length_s) / 3600, float(node_s) / 3600)
        for length_s, node_s in zip(np.diff(edges_s), earned, strict=True)
    )
