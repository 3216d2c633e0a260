"""The price of harvesting as values: what was reproduced, how waits move, and who loses most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bftd.base.format import counted, duration
from bftd.simulation.advise.confidence import CONFIDENCE

COURSES = 15
"""The courses without bftd, and with it."""
WITHIN, WITHIN_S = 0.1, 1.0
"""A mean wait is reproduced within this share of it, or these seconds; accounting has whole seconds."""

Unit = Literal["course", "week"]
Why = Literal["preempted", "chance", "order"]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """The mean wait of a class of jobs, as logged and as simulated without bftd; `name` is "" for all jobs."""

    name: str
    jobs: int
    logged_s: float
    simulated_s: float

    @property
    def within(self) -> bool:
        """Whether the simulation reproduces it."""
        return abs(self.simulated_s - self.logged_s) <= max(WITHIN * self.logged_s, WITHIN_S)


@dataclass(frozen=True, slots=True)
class Wait:
    """The time by which the jobs of a class wait longer with bftd, on average, with bounds at 90 % confidence.

    `of_s` is their mean wait without bftd, and `null_s` by how much two courses without bftd differ at most, in nine of
    ten cases.
    """

    name: str
    jobs: int
    of_s: float
    mean_s: float
    low_s: float
    high_s: float
    null_s: float


@dataclass(frozen=True, slots=True)
class Tried:
    """The harvest and the price of one setting; `name` is what differs from the defaults."""

    name: str
    node_hours_per_week: float
    wait: Wait
    courses: int


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that waits longer with bftd, by the means of the courses, and why.

    `direct_s` is from Slurm's preemption for it to its start. It is "preempted" if that makes most of the loss,
    "chance" if its wait varies as much without bftd (`null_s`), else the "order" of starts, or the nodes, were others.
    """

    id: str
    partition: str
    nodes: int
    submit_s: float
    wait_s: float
    lost_s: float
    direct_s: float
    null_s: float
    why: Why


@dataclass(frozen=True)
class Price:
    """The price, or with `why_not` in a sentence why there is none; `checks` begin with all jobs.

    `jobs` are those that count, on `nodes` nodes, in the last `period_s` of the log; `slurm` are the settings.
    `courses` of `asked` ended in time, and the bounds are over each `unit`. `direct_s` is the mean delay of a job from
    Slurm's preemption for it to its start, over all jobs, and `delayed_share` the share of jobs that have one.
    """

    nodes: int = 0
    jobs: int = 0
    period_s: float = 0.0
    slurm: str = ""
    checks: Sequence[Reproduced] = ()
    why_not: str = ""
    courses: int = 0
    asked: int = COURSES
    unit: Unit = "course"
    node_hours_per_week: float = 0.0
    waits: Sequence[Wait] = ()
    direct_s: float = 0.0
    delayed_share: float = 0.0
    settings: Sequence[Tried] = ()
    worst: Sequence[LostJob] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    def sentence(self) -> str:
        """Return the price of all jobs, or why there is none, in a few sentences."""
        if self.why_not:
            return f"No price can be given: {self.why_not}."
        wait = self.waits[0]
        over = (
            f"the chance of {counted(self.courses, 'course')} of these jobs, not of another month"
            if self.unit == "course"
            else "how much the weeks of the log differ"
        )
        return (
            f"Without bftd jobs wait {duration(wait.of_s)} on average, with it {signed(wait.mean_s)}: "
            f"{signed(wait.low_s)} to {signed(wait.high_s)} with {CONFIDENCE:.0%} confidence, by {over}. Two courses "
            f"without bftd differ by up to {duration(wait.null_s)}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON data."""
        checks = [asdict(one) | {"within": one.within} for one in self.checks]
        return asdict(self) | {
            "checks": checks,
            "reproduced": bool(self.checks) and all(one.within for one in self.checks),
        }


def signed(seconds: float) -> str:
    """Format a difference of times: +2.5 s, -3.1 min."""
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"
