"""What a solver is to the rest of the package: a function with declared capabilities, and what it is asked and says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from milp.problem import Problem


class Feature(Enum):
    """Something that not every solver can carry; the value is how messages call it."""

    NODE_CLASSES = "several node classes"
    MIXING = "a trainer that mixes node classes"
    ONLY_CLASSES = "a trainer that is kept to some node classes"
    CAPS = "a cap per user or account"
    CROSSING_CAPS = "caps of users and accounts that cross"
    GROUPS = "nodes that are used together"


def features(problem: Problem) -> frozenset[Feature]:
    """What a problem asks of its solver beyond equations (1)-(16) on interchangeable nodes.

    Limits that cannot bind ask for nothing: a cap above what its trainers can use, a group of one node.
    """
    several = len(problem.classes) > 1
    asked = {
        Feature.NODE_CLASSES: several,
        Feature.MIXING: several and any(t.mixes_classes for t in problem.trainers),
        Feature.ONLY_CLASSES: any(map(problem.kept_out, problem.trainers)),
        Feature.CAPS: bool(problem.caps) and bool(problem.binding_caps),
        Feature.CROSSING_CAPS: bool(problem.caps) and problem.caps_cross,
        Feature.GROUPS: any(len(group.nodes) > 1 for group in problem.groups),
    }
    return frozenset(feature for feature, needed in asked.items() if needed)


def _no_time() -> float:
    return 0.0


@dataclass(frozen=True)
class Effort:
    """The relative gap at which a solver may stop, and how long it may take.

    `deadline_s` is a reading of `clock`, in seconds; infinite where there is no limit.
    """

    gap: float
    deadline_s: float = math.inf
    clock: Callable[[], float] = _no_time

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, below 0 after it."""
        return math.inf if self.deadline_s == math.inf else self.deadline_s - self.clock()

    def is_over(self) -> bool:
        """Whether the deadline has come."""
        return self.left_s <= 0


@dataclass(frozen=True)
class Answer:
    """A solver's answer before it is checked: nodes per trainer and a proven upper bound of equation (16).

    `assignment` is None where none was found in time. A `bound` of None says that the assignment is proven optimal, so
    that its own value is the bound; where nothing is proven it is infinite. `note` is why there is nothing better.
    `died` says that the solver did not come to an end of its own, `distrusted` that its engine's word was found wrong.
    """

    assignment: dict[str, tuple[str, ...]] | None
    bound: float | None
    note: str = "no better plan was found in time"
    died: bool = False
    distrusted: bool = False


def _ready() -> None:
    return None


@dataclass(frozen=True)
class Solver:
    """A named way to solve a problem.

    `features` is what it can carry, `proves` whether it finds optima rather than merely allowed plans; "auto" takes no
    other. The map of a `baseline` stands even where doing nothing is worth more, to be compared with. `missing` tells
    in one line what has to be installed first, or None when it is ready. `engine` is what solves its programs in a
    child process, "" where it computes by itself. One that `compares` is there to be compared with: "auto" never takes
    it.
    """

    name: str
    summary: str
    features: frozenset[Feature]
    proves: bool
    run: Callable[[Problem, Effort], Answer]
    missing: Callable[[], str | None] = _ready
    baseline: bool = False
    engine: str = ""
    compares: bool = False
