"""The price of harvesting for a site's own jobs: whether the simulation reproduces their waits, and how they change.

A course is the whole log once more, with another phase of Slurm's backfill and other chances below a second. Without
bftd courses show how much waits vary of themselves (the null band). With bftd and without, courses are compared in
pairs. All courses of a log have the same jobs: their spread is chance, not how much months differ. A log of enough
weeks tells that as well, by the spread of its weeks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from bftd.base.errors import UsageError
from bftd.base.format import duration
from bftd.config.keys import PoolConfig
from bftd.simulation.advise.workers import Progress, each
from bftd.simulation.price.model import COURSES, Price, Tried
from bftd.simulation.price.waits import Waits
from bftd.simulation.price.workload import MOST_JOBS, Workload, workload
from bftd.simulation.slurm.courses import Course, course
from bftd.simulation.slurm.harvester import HarvestSettings

if TYPE_CHECKING:
    from bftd.simulation.trace.job_model import JobLog

LEAST_COURSES = 3
LIMIT_S = 240.0
"""The CPU time of each process; courses that do not end in it are left out."""
_WEEK_S = 7 * 86_400.0
# Courses without bftd may take so much of the time that is left, and courses with it so much of what is left then.
_PLAIN_PART, _DEFAULT_PART = 0.25, 0.6
_ATTEMPTS = 4
_TOLD = 3
# Half of the jobs that one course comes to in that time leave time for several courses.
_SHORTER, _SHORTEST_PART = 0.5, 0.01


@dataclass(frozen=True, slots=True)
class _Setting:
    """A way to harvest; `name` is what differs from the defaults, and `give_back_s` how long pilots take to leave."""

    name: str
    harvest: HarvestSettings
    give_back_s: float | None = None


def _with_pool(name: str, **pool: Any) -> _Setting:
    return _Setting(name, HarvestSettings(replace(PoolConfig(), **pool)))


_DEFAULT = _Setting("", HarvestSettings())
_SETTINGS = (
    _with_pool("earmark false", earmark=False),
    _Setting("give-back 3 s", HarvestSettings(), 3.0),
    _with_pool("vacate_ahead_s 60", vacate_ahead_s=60.0),
    _with_pool("min_window_s 600", min_window_s=600.0),
)


class _TooSlow(Exception):
    """A course does not end in time."""


def price(
    log: JobLog, *, jobs: int | None = None, limit_s: float = LIMIT_S, progress: Progress = lambda _: None
) -> Price:
    """Work out the price for a log on `jobs` processes (default: one per core) with `limit_s` of CPU time each.

    Where that does not do for a few courses, only the last jobs of the log are simulated. `progress` is called with the
    fraction done, in 0..1.
    """
    runner = _Runner(jobs or len(os.sched_getaffinity(0)), limit_s, progress)
    most, too_slow = min(MOST_JOBS, len(log.jobs)), ""
    for _ in range(_ATTEMPTS):
        try:
            load = workload(log, most)
        except UsageError as error:
            return Price(why_not=too_slow or str(error), notes=log.notes)
        found, reached = _priced(load, runner)
        if found is not None:
            progress(1.0)
            return replace(found, notes=(*load.notes, *found.notes))
        too_slow = (
            f"the simulation takes too long: not even {LEAST_COURSES} courses of the last {most:,} jobs ended in time"
        )
        most = max(1, int(most * max(_SHORTEST_PART, _SHORTER * reached)))
    return Price(why_not=too_slow, notes=log.notes)


class _Runner:
    """Runs courses on several processes as long as there is time."""

    def __init__(self, jobs: int, limit_s: float, progress: Progress) -> None:
        self._jobs = jobs
        self._left_s = limit_s
        self._progress = progress
        self._done = 0.0

    def run(
        self, load: Workload, wanted: Sequence[tuple[_Setting | None, int]], part: float, until: float
    ) -> tuple[dict[tuple[_Setting | None, int], Course], float]:
        """Run courses by setting and number in a part of the time left; the progress goes on `until` a fraction.

        Return those that ended, and how far the one came that came farthest, in 0..1.
        """
        due_s = part * self._left_s
        caller, called_s = os.getpid(), time.process_time()
        begun = self._done

        def used_s() -> float:
            return time.process_time() - (called_s if os.getpid() == caller else 0.0)

        def work(index: int, tell: Progress) -> tuple[Course | float, float]:
            reached = 0.0

            def watch(fraction: float) -> None:
                nonlocal reached
                reached = fraction
                tell(fraction)
                if used_s() > due_s:
                    raise _TooSlow

            try:
                return _course(load, *wanted[index], watch), used_s()
            except _TooSlow:
                return reached, used_s()

        def progress(fraction: float) -> None:
            self._done = max(self._done, begun + (until - begun) * fraction)
            self._progress(self._done)

        found = each(work, range(len(wanted)), self._jobs, progress)
        self._left_s = max(0.0, self._left_s - max((used for _, used in found), default=0.0))
        ended = {key: one for key, (one, _) in zip(wanted, found, strict=True) if isinstance(one, Course)}
        return ended, max((1.0 if isinstance(one, Course) else one for one, _ in found), default=1.0)


def _course(load: Workload, setting: _Setting | None, number: int, watch: Callable[[float], None]) -> Course:
    """Run a course; those of one number have the same phase of backfill under each setting."""
    site = load.site
    phase_s = Random(number).uniform(0.0, site.scheduler.interval_s)
    if setting is None:
        return course(site, load.jobs, number, phase_s=phase_s, watch=watch)
    if setting.give_back_s is not None:
        site = replace(site, delays=replace(site.delays, give_back_s=setting.give_back_s))
    period = load.begin_s, load.end_s
    return course(site, load.jobs, number, setting.harvest, phase_s=phase_s, watch=watch, period=period)


def _priced(load: Workload, runner: _Runner) -> tuple[Price | None, float]:
    """Return the price of a workload; None if too few courses end in time, with how far the best of them came."""
    plain, reached = runner.run(load, [(None, number) for number in range(COURSES)], _PLAIN_PART, 0.2)
    if len(plain) < LEAST_COURSES:
        return None, reached
    without = Waits(load, list(plain.values()))
    checks = tuple(without.reproduced())
    found = Price(
        nodes=len(load.site.numbering.names),
        jobs=int(without.counted.sum()),
        period_s=load.end_s - load.begin_s,
        slurm=load.slurm,
        checks=checks,
        courses=len(plain),
        notes=tuple(without.notes),
    )
    if not checks:
        return replace(found, why_not="no job of the log starts in the simulation"), 1.0
    if wrong := [one for one in checks if not one.within]:
        told = "; ".join(
            f"{one.name or 'all jobs'}: {duration(one.logged_s)} logged, {duration(one.simulated_s)} simulated"
            for one in wrong[:_TOLD]
        )
        return replace(found, why_not=f"the simulation does not reproduce the site's mean waits ({told})"), 1.0
    numbers = [number for _, number in plain]
    harvested, reached = runner.run(load, [(_DEFAULT, number) for number in numbers], _DEFAULT_PART, 0.6)
    if len(harvested) < LEAST_COURSES:
        return None, reached
    numbers = [number for _, number in harvested]
    blocks = [numbers[first : first + LEAST_COURSES] for first in range(0, len(numbers), LEAST_COURSES)]
    others = [(setting, number) for block in blocks for setting in _SETTINGS for number in block]
    tried, _ = runner.run(load, others, 1.0, 1.0)
    notes = list(found.notes)
    if len(harvested) < COURSES:
        notes.append(f"{len(harvested)} of {COURSES} courses ended in time")
    settings = []
    for setting in (_DEFAULT, *_SETTINGS):
        ended = {number: one for (of, number), one in (harvested | tried).items() if of is setting}
        if len(ended) >= LEAST_COURSES:
            waits = Waits(load, [plain[None, number] for number in ended], list(ended.values()))
            settings.append(Tried(setting.name, _harvest(load, ended), waits.all(), len(ended)))
        else:
            notes.append(f"fewer than {LEAST_COURSES} courses with {setting.name} ended in time")
    paired = Waits(load, [plain[None, number] for _, number in harvested], list(harvested.values()))
    delays_s = np.array([one.delays_s for one in harvested.values()])
    return replace(
        found,
        jobs=int(paired.counted.sum()),
        courses=len(harvested),
        unit=paired.unit,
        node_hours_per_week=settings[0].node_hours_per_week,
        waits=tuple(paired.compared()),
        direct_s=float(delays_s[:, paired.counted].mean()),
        delayed_share=float((delays_s[:, paired.counted] > 0.0).mean()),
        settings=tuple(settings),
        worst=tuple(paired.worst(delays_s.mean(axis=0))),
        notes=tuple(notes),
    ), 1.0


def _harvest(load: Workload, courses: Mapping[int, Course]) -> float:
    """Return the mean node-hours harvested in a week."""
    node_s = sum(one.harvested_node_s for one in courses.values()) / len(courses)
    return node_s / 3600.0 * _WEEK_S / (load.end_s - load.begin_s)
