"""The interface of a solver: a function with declared capabilities, its effort and its answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from milp.problem import Problem


class Feature(Enum):
    """A feature that some solvers cannot handle; the value is its name in messages."""

    NODE_CLASSES = "several node classes"
    MIXING = "a trainer that mixes node classes"
    ONLY_CLASSES = "a trainer that is kept to some node classes"
    CAPS = "a cap per user or account"
    CROSSING_CAPS = "caps of users and accounts that cross"
    GROUPS = "nodes that are used together"


def features(problem: Problem) -> frozenset[Feature]:
    """Return the features that a problem asks of its solver beyond equations (1)-(16) on interchangeable nodes.

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
    """The relative gap at which a solver may stop, and the time it may take.

    `deadline_s` is a reading of `clock`, in seconds; infinite if there is no limit.
    """

    gap: float
    deadline_s: float = math.inf
    clock: Callable[[], float] = _no_time

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, negative after it."""
        return math.inf if self.deadline_s == math.inf else self.deadline_s - self.clock()

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left_s <= 0


@dataclass(frozen=True)
class SolverAnswer:
    """A solver's answer before it is checked: nodes per trainer and a proven upper bound of equation (16).

    `assignment` is None if none was found in time. A `bound` of None says that the assignment is proven optimal, so its
    own value is the bound; an infinite one says that nothing is proven. `note` says why there is no better plan. `died`
    says that the solver did not finish by itself, `distrusted` that its engine reported something wrong.
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

    `features` lists what it can handle. `proves` says whether it finds optima rather than merely allowed plans; "auto"
    takes no other. The map of a `baseline` stands even if doing nothing is worth more, so that it can be compared.
    `missing` returns one line that says what has to be installed first, or None when the solver is ready. `engine`
    names the engine that solves its models in a child process, "" for a solver that computes by itself. A solver that
    `compares` exists only for comparison: "auto" never takes it.
    """

    name: str
    summary: str
    features: frozenset[Feature]
    proves: bool
    run: Callable[[Problem, Effort], SolverAnswer]
    missing: Callable[[], str | None] = _ready
    baseline: bool = False
    engine: str = ""
    compares: bool = False
