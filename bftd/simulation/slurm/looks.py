"""The looks of the simulated slurmctld: the rounds of its background loop.

The loop has the main scheduler look at the queue where somebody asked for it, and whenever its interval is over. It
looks for jobs beyond their limits and for reservations that begin. (Read in slurmctld's controller.c of 22.05 and
24.11.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, inf
from random import Random

from bftd.simulation.slurm.model import SimulatedSite

_LIMITS_S = 30.0
RESERVATIONS_S = 5.0
"""slurmctld looks this often for reservations that begin."""
# The loop of newer releases sleeps to the next full second, and so often time() still tells the one before.
_STALE = 0.4


@dataclass(frozen=True, slots=True)
class Phases:
    """The first looks of each kind, in seconds after the first submission; what is None is drawn.

    `look_s` is any look of the main scheduler, `full_s` one because its interval is over, and `limits_s` one for jobs
    beyond their limits.
    """

    look_s: float | None = None
    full_s: float | None = None
    limits_s: float | None = None


class Looks:
    """The looks of one course. `due_s` is the next round in which the main scheduler may look; None without need.

    `at` is told of each such time.
    """

    def __init__(self, site: SimulatedSite, random: Random, at: Callable[[float], None]) -> None:
        self.asked = False
        self.due_s: float | None = None
        self._site = site
        self._random = random
        self._at = at
        self._every_s = ceil(site.sched_interval_s / site.tick_s) * site.tick_s
        self._rounds_s = self._full_s = self._limits_s = 0.0
        self._looked_s = -inf

    def begin(self, begin_s: float, phases: Phases) -> None:
        """Set the clock for a course whose first job comes at a time."""
        self._full_s = begin_s + self.phase(phases.full_s, self._every_s)
        self._limits_s = begin_s + self.phase(phases.limits_s, _LIMITS_S)
        self._rounds_s = begin_s + self.phase(phases.look_s, self._site.tick_s)
        self._looked_s = self._rounds_s - self._site.batch_delay_s

    def phase(self, phase_s: float | None, every_s: float) -> float:
        """Return a phase as it is given, or draw one."""
        drawn_s = every_s * self._random.random()
        return drawn_s if phase_s is None else phase_s

    def ask(self, now_s: float) -> None:
        """Have the main scheduler look as soon as it may."""
        self.asked = True
        if self.due_s is None or self.due_s > now_s + 1.0:
            self._await(now_s)

    def wait(self, now_s: float) -> None:
        """Wait for what was asked for, else for the end of the interval."""
        if self.due_s is None:
            self._await(now_s if self.asked else max(self._last_full_s(now_s) + self._every_s - 0.5, now_s))

    def looks(self, now_s: float) -> bool:
        """Whether the main scheduler looks in the round that was due."""
        self.due_s = None
        read_s = now_s - (self._site.scheduler.newer and self._random.random() < _STALE)
        waited = read_s - self._looked_s >= self._site.batch_delay_s - 1e-6
        if self._last_full_s(now_s) <= self._looked_s + 1e-3 and not (self.asked and waited):
            return False
        self.asked = False
        self._looked_s = read_s
        return True

    def over_s(self, time_s: float) -> float:
        """Return when slurmctld sees that a limit is over since a time."""
        return ceil((time_s - self._limits_s) / _LIMITS_S) * _LIMITS_S + self._limits_s

    def _last_full_s(self, now_s: float) -> float:
        return floor((now_s - self._full_s) / self._every_s + 1e-6) * self._every_s + self._full_s

    def _await(self, after_s: float) -> None:
        """Have the first round after a time be due."""
        every_s = self._site.tick_s
        self.due_s = (floor((after_s - self._rounds_s) / every_s + 1e-6) + 1) * every_s + self._rounds_s
        self._at(self.due_s)
