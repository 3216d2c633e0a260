"""The solvers, one line each; a new one is a new file in its family's folder and a line in `_ALL`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from milp.errors import UnsupportedError
from milp.problem import Problem
from milp.solver import Feature, Solver, features
from milp.solvers.one_class import capped, equal_share, exact
from milp.solvers.programs import programs
from milp.solvers.several_classes import classes, stepwise

# In the order in which "auto" tries them.
_ALL: tuple[Solver, ...] = (
    exact.SOLVER,
    capped.SOLVER,
    classes.SOLVER,
    *programs.SOLVERS,
    stepwise.SOLVER,
    equal_share.SOLVER,
)


def every() -> tuple[Solver, ...]:
    """All solvers, ready or not, in the order in which "auto" tries them."""
    return _ALL


def names(among: Sequence[Solver] = _ALL) -> tuple[str, ...]:
    """What `choose` knows."""
    return ("auto", *(solver.name for solver in among))


def choose(problem: Problem, name: str, among: Sequence[Solver] = _ALL) -> Solver:
    """The solver called `name`, or for "auto" the first ready one that finds optima of such a problem.

    Raises `UnsupportedError` for a name that is not known, a solver that is not installed, and one that cannot carry
    what the problem asks for; the message says what to use instead.
    """
    if name == "auto":
        asked = features(problem)
        for solver in _fitting(asked, among):
            if solver.missing() is None:
                return solver
        raise UnsupportedError(f"no solver can carry {_listed(asked)}: {_instead(asked, among)}")
    return allowed(problem, _named(name, among), among)


def allowed(problem: Problem, chosen: Solver, among: Sequence[Solver] = _ALL) -> Solver:
    """The solver itself, or `UnsupportedError` where it is not ready or cannot carry the problem."""
    asked = features(problem)
    if lacking := asked - chosen.features:
        raise UnsupportedError(f"solver {chosen.name!r} cannot carry {_listed(lacking)}: {_instead(asked, among)}")
    if lack := chosen.missing():
        raise UnsupportedError(f"solver {chosen.name!r} is not ready ({lack}): {_instead(asked, among)}")
    return chosen


def _fitting(asked: frozenset[Feature], among: Sequence[Solver]) -> Iterator[Solver]:
    return (solver for solver in among if solver.proves and asked <= solver.features)


def _instead(asked: frozenset[Feature], among: Sequence[Solver]) -> str:
    """What would work: solvers that are ready, else what to install."""
    able = [solver.name for solver in _fitting(asked, among) if solver.missing() is None]
    lacks = dict.fromkeys(filter(None, (solver.missing() for solver in _fitting(asked, among))))
    return f"use {' or '.join(able)}" if able else " or ".join(lacks) or "pip install highspy"


def _named(name: str, among: Sequence[Solver]) -> Solver:
    for solver in among:
        if solver.name == name:
            return solver
    near = difflib.get_close_matches(name, names(among), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names(among))}"
    raise UnsupportedError(f"unknown solver {name!r}: {hint}")


def _listed(lacking: frozenset[Feature]) -> str:
    return " and ".join(sorted(feature.value for feature in lacking))
