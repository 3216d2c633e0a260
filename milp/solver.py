"""What a solver is to the rest of the package: a function with declared capabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from milp.problem import Problem


class Feature(Enum):
    """Something that not every solver can carry; the value is how messages call it."""

    NODE_CLASSES = "several node classes"
    MIXING = "a trainer that mixes node classes"
    CAPS = "a cap per user or account"
    CROSSING_CAPS = "caps of users and accounts that cross"
    GROUPS = "nodes that are used together"
    PAPER_BIG_M = "the paper's big-M"


@dataclass(frozen=True)
class Limits:
    """How long a solver may take (None: no limit) and the relative gap at which it may stop.

    `paper_big_m` asks for M = |N| + 1, the paper's, to see what it does; it is too small (see docs/solvers.md).
    """

    time_limit_s: float | None
    gap: float
    paper_big_m: bool = False


def features(problem: Problem, limits: Limits) -> frozenset[Feature]:
    """What a problem asks of its solver beyond equations (1)-(16) on interchangeable nodes.

    Limits that cannot bind ask for nothing: a cap above what its trainers can use, a group of one node.
    """
    asked = {
        Feature.NODE_CLASSES: len(problem.classes) > 1,
        Feature.MIXING: len(problem.classes) > 1 and any(t.mixes_classes for t in problem.trainers),
        Feature.CAPS: bool(problem.binding_caps),
        Feature.CROSSING_CAPS: problem.caps_cross,
        Feature.GROUPS: any(len(group.nodes) > 1 for group in problem.groups),
        Feature.PAPER_BIG_M: limits.paper_big_m,
    }
    return frozenset(feature for feature, needed in asked.items() if needed)


@dataclass(frozen=True)
class Outcome:
    """A solver's answer before it is checked: nodes per trainer and a proven upper bound of equation (16).

    `assignment` is None where none was found in time. A `bound` of None says that the assignment is proven optimal, so
    that its own value is the bound; where nothing is proven it is infinite. `note` is why there is nothing better.
    """

    assignment: dict[str, tuple[str, ...]] | None
    bound: float | None
    note: str = "no better plan was found in time"


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
