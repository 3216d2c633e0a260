"""The solvers, one a module; a new one is a new file that defines `SOLVER` and a line in `_ALL`."""

from __future__ import annotations

import difflib

from milp.errors import UnsupportedError
from milp.model import Problem
from milp.solvers import equal_share, exact
from milp.solvers.base import Feature, Limits, Outcome, Solver, features

__all__ = ["Feature", "Limits", "Outcome", "Solver", "choose", "names"]

# In the order in which "auto" tries them.
_ALL: tuple[Solver, ...] = (exact.SOLVER, equal_share.SOLVER)


def names() -> tuple[str, ...]:
    """What `choose` knows."""
    return ("auto", *(solver.name for solver in _ALL))


def choose(problem: Problem, name: str) -> Solver:
    """The solver called `name`, or for "auto" the first ready one that finds optima of such a problem.

    Raises `UnsupportedError` for a name that is not known, a solver that is not installed, and one that cannot carry
    what the problem asks for; the message says what to use instead.
    """
    asked = features(problem)
    able = [s for s in _ALL if s.proves and asked <= s.features and s.missing() is None]
    instead = f"use {' or '.join(s.name for s in able)}" if able else "solve one problem for each node class"
    if name == "auto":
        if able:
            return able[0]
        raise UnsupportedError(f"no solver can carry {_listed(asked)}: {instead}")
    chosen = _named(name)
    if lacking := asked - chosen.features:
        raise UnsupportedError(f"solver {name!r} cannot carry {_listed(lacking)}: {instead}")
    if lack := chosen.missing():
        raise UnsupportedError(f"solver {name!r} is not ready ({lack}): {instead}")
    return chosen


def _named(name: str) -> Solver:
    for solver in _ALL:
        if solver.name == name:
            return solver
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names())}"
    raise UnsupportedError(f"unknown solver {name!r}: {hint}")


def _listed(lacking: frozenset[Feature]) -> str:
    return " and ".join(sorted(feature.value for feature in lacking))
