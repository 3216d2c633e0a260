"""Courses of one queue, with bftd and without, and the difference between them over many.

A course depends on sub-second chance: two jobs that swap nodes lead to another course. So one course tells little. What
is compared are means over courses, whose unit is the independent thing: a stream of jobs, or a window of a log.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from random import Random
from typing import Literal

from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.harvester import Harvester, HarvestSettings
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite
from bftd.simulation.slurm.nodes import NodeChoice, bits

Control = Literal["slurm", "random"]
"""The choice of nodes where there are no pilots: Slurm's, or one at random among those that would do."""

# Two starts that are no further apart are the same: the main scheduler looks every few seconds.
SAME_S = 5.0
# Pilots are on the idle nodes so long before the first submission.
_AHEAD_S = 5.0
# A course is watched so often.
_WATCHES = 500
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Course:
    """The waits of the jobs of one course, in the order of their numbers, and figures of the whole.

    `waits_s` are inf for jobs that never started. `makespan_s` is from the first submission to the last end. With bftd,
    `harvested_node_s` is the time that pilots had nodes, `preemptions` how often Slurm took some, and `late` how often
    a backfill cycle found a job that fits only without pilots. `delays_s` are from Slurm's first preemption for a job
    to its allocation, 0 without one.
    """

    waits_s: tuple[float, ...]
    makespan_s: float
    harvested_node_s: float = 0.0
    preemptions: int = 0
    late: int = 0
    earmarks: int = 0
    useful_earmarks: int = 0
    delays_s: tuple[float, ...] = ()

    @property
    def mean_wait_s(self) -> float:
        """The mean over the jobs that started."""
        return statistics.mean(wait_s for wait_s in self.waits_s if isfinite(wait_s))

    def alike(self, other: Course) -> float:
        """The share of jobs that start at the same time in both."""
        pairs = zip(self.waits_s, other.waits_s, strict=True)
        return statistics.mean(one == two or abs(one - two) < SAME_S for one, two in pairs)


def course(
    site: SimulatedSite,
    jobs: Sequence[SimulatedJob],
    seed: int,
    harvest: HarvestSettings | None = None,
    control: Control = "slurm",
    phase_s: float | None = None,
    watch: Callable[[float], None] | None = None,
    period: tuple[float, float] | None = None,
) -> Course:
    """Run one course, with bftd if `harvest` says how. Backfill begins `phase_s` after the first job, drawn if None.

    `watch` is called every now and then with the part of the submissions that is over, and may raise to end the course.
    With a `period` only what is harvested in it counts.
    """
    controller = Controller(site, jobs, seed, _at_random(site, seed) if control == "random" else None)
    harvester = None
    held: list[float] = []
    begin_s = min((job.submit_s for job in jobs), default=0.0)
    if harvest is not None:
        harvester = Harvester(controller, harvest)
        harvester.begin(begin_s - _AHEAD_S)
        for at_s in period or ():
            controller.at(max(at_s, begin_s), lambda _: held.append(harvester.held_node_s()))
    if watch is not None:
        _watched(controller, begin_s, max(job.submit_s for job in jobs), watch)
    runs = controller.run(phase_s)
    if harvester is not None and period is not None:
        held += [harvester.held_node_s()] * (2 - len(held))  # the last job ended within the period
    ends_s = [run.end_s for run in runs if run.end_s < inf]
    return Course(
        tuple(run.wait_s for run in runs),
        max(ends_s, default=begin_s) - begin_s,
        held[1] - held[0] if held else harvester.node_s if harvester else 0.0,
        controller.preemptions,
        controller.late,
        harvester.earmarks if harvester else 0,
        harvester.useful if harvester else 0,
        tuple(0.0 if run.preempted_s is None else run.start_s - run.preempted_s for run in runs),
    )


def _watched(controller: Controller, begin_s: float, end_s: float, watch: Callable[[float], None]) -> None:
    every_s = max(1.0, (end_s - begin_s) / _WATCHES)

    def look(_: object) -> None:
        now_s = controller.now_s
        watch(min(1.0, (now_s - begin_s) / every_s / _WATCHES))
        # the last jobs may run for much longer than all took to come
        controller.at(now_s + max(every_s, (now_s - end_s) / _WATCHES), look)

    controller.at(begin_s, look)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of means over independent streams, with the half-width of its 95 % interval; both in `of`'s unit.

    `spread` is the standard deviation of one stream's difference, and `of` the mean without what is compared.
    """

    mean: float
    half_width: float
    spread: float
    of: float
    streams: int

    @property
    def percent(self) -> float:
        """The difference in percent of the mean without."""
        return 100.0 * self.mean / self.of if self.of else 0.0

    @property
    def percent_half_width(self) -> float:
        """The half-width in percent of the mean without."""
        return 100.0 * self.half_width / self.of if self.of else 0.0

    @classmethod
    def between(cls, others: Sequence[Sequence[float]], without: Sequence[Sequence[float]]) -> Difference:
        """Compare values of courses, by stream: each stream counts once, by the means of its courses."""
        before = [statistics.mean(values) for values in without]
        found = [statistics.mean(values) - mean for values, mean in zip(others, before, strict=True)]
        spread = statistics.stdev(found) if len(found) > 1 else inf
        half = _Z * spread / sqrt(len(found))
        return cls(statistics.mean(found), half, spread, statistics.mean(before), len(found))


def _at_random(site: SimulatedSite, seed: int) -> NodeChoice:
    """Return a choice of nodes at random; neighbours are still neighbours."""
    random = Random(~seed)

    def chosen(free: int, need: NodeNeed) -> int:
        if need.contiguous:
            return for_plan(free, need, site.weights)
        others = bits(free & ~need.required)
        random.shuffle(others)
        return need.required | sum(others[: need.count - need.required.bit_count()])

    return chosen
