"""The solvers, one a module; a new one is a new file that defines `SOLVER` and a line in `_ALL`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from milp.errors import UnsupportedError
from milp.problem import Problem
from milp.solver import Feature, Limits, Outcome, Solver, features
from milp.solvers.one_class import capped, equal_share, exact
from milp.solvers.programs import programs
from milp.solvers.several_classes import classes

__all__ = ["Feature", "Limits", "Outcome", "Solver", "choose", "every", "names"]

# In the order in which "auto" tries them.
_ALL: tuple[Solver, ...] = (
    exact.SOLVER,
    capped.SOLVER,
    classes.SOLVER,
    programs.HIGHS,
    programs.GUROBI,
    programs.HIGHS_NODES,
    programs.GUROBI_NODES,
    equal_share.SOLVER,
)


def names() -> tuple[str, ...]:
    """What `choose` knows."""
    return ("auto", *(solver.name for solver in _ALL))


def every() -> tuple[Solver, ...]:
    """All solvers, ready or not, in the order in which "auto" tries them."""
    return _ALL


def choose(problem: Problem, name: str, limits: Limits) -> Solver:
    """The solver called `name`, or for "auto" the first ready one that finds optima of such a problem.

    Raises `UnsupportedError` for a name that is not known, a solver that is not installed, and one that cannot carry
    what the problem asks for; the message says what to use instead.
    """
    asked = features(problem, limits)
    if name == "auto":
        for solver in _fitting(asked):
            if solver.missing() is None:
                return solver
        raise UnsupportedError(f"no solver can carry {_listed(asked)}: {_instead(asked)}")
    chosen = _named(name)
    if lacking := asked - chosen.features:
        raise UnsupportedError(f"solver {name!r} cannot carry {_listed(lacking)}: {_instead(asked)}")
    if lack := chosen.missing():
        raise UnsupportedError(f"solver {name!r} is not ready ({lack}): {_instead(asked)}")
    return chosen


def _fitting(asked: frozenset[Feature]) -> Iterator[Solver]:
    return (solver for solver in _ALL if solver.proves and asked <= solver.features)


def _instead(asked: frozenset[Feature]) -> str:
    """What would work: solvers that are ready, else what to install."""
    able = [solver.name for solver in _fitting(asked) if solver.missing() is None]
    lacks = dict.fromkeys(filter(None, (solver.missing() for solver in _fitting(asked))))
    return f"use {' or '.join(able)}" if able else " or ".join(lacks) or "pip install highspy"


def _named(name: str) -> Solver:
    for solver in _ALL:
        if solver.name == name:
            return solver
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names())}"
    raise UnsupportedError(f"unknown solver {name!r}: {hint}")


def _listed(lacking: frozenset[Feature]) -> str:
    return " and ".join(sorted(feature.value for feature in lacking))
