"""What a solver is to the rest of the package: a function with declared capabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from milp.model import Problem


class Feature(Enum):
    """Something a problem may ask for that not every solver can carry; the value is how messages call it."""

    NODE_CLASSES = "several node classes"


def features(problem: Problem) -> frozenset[Feature]:
    """What `problem` asks of its solver beyond equations (1)-(16) on interchangeable nodes."""
    return frozenset({Feature.NODE_CLASSES}) if len(problem.classes) > 1 else frozenset()


@dataclass(frozen=True)
class Limits:
    """How long a solver may take (None: no limit) and the relative gap at which it may stop."""

    time_limit_s: float | None
    gap: float


@dataclass(frozen=True)
class Outcome:
    """A solver's answer before it is checked: nodes per trainer and a proven upper bound of equation (16).

    A `bound` of None says that the assignment is proven optimal, so that its own value is the bound; `kept` that the
    current map stands because nothing better was found.
    """

    assignment: dict[str, tuple[str, ...]]
    bound: float | None
    kept: bool = False


@dataclass(frozen=True)
class Solver:
    """A named way to solve a problem.

    `features` is what it can carry, `proves` whether it finds optima rather than merely allowed plans. `missing`
    tells in one line what has to be installed first, or None when it is ready.
    """

    name: str
    summary: str
    features: frozenset[Feature]
    proves: bool
    run: Callable[[Problem, Limits], Outcome]
    missing: Callable[[], str | None] = lambda: None
