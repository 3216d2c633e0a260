"""The solvers, one line each; a new one is a new file in its family's folder and a line in `_ALL`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence

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
    """Return all solvers, ready or not, in the order in which "auto" tries them."""
    return _ALL


def names(among: Sequence[Solver] = _ALL) -> tuple[str, ...]:
    """Return the names that `choose` accepts."""
    return ("auto", *(solver.name for solver in among))


def choose(problem: Problem, name: str, among: Sequence[Solver] = _ALL) -> Solver:
    """Return the solver called `name`, or for "auto" the first ready one that finds optima of such a problem.

    Raises `UnsupportedError` for an unknown name, a solver that is not installed, and one that cannot handle a feature
    of the problem; the message says what to use instead.
    """
    if name == "auto":
        asked = features(problem)
        for solver in fitting(asked, among):
            if solver.missing() is None:
                return solver
        raise UnsupportedError(f"no solver can carry {_listed(asked)}: {_instead(asked, among)}")
    return allowed(problem, named(name, among), among)


def after(name: str, among: Sequence[Solver] = _ALL) -> str:
    """Return the stand-in for a failed solver: another engine if it runs on an engine, else "auto"."""
    on_engine = any(solver.name == name and solver.engine for solver in among)
    return "highs" if on_engine and name != "highs" else "auto"


def in_turn(
    problem: Problem, name: str, *, fallback: bool, without: Collection[str] = (), among: Sequence[Solver] = _ALL
) -> tuple[list[Solver], dict[str, str]]:
    """Return the solvers to ask in turn until one answers, and why named solvers cannot be asked.

    For "auto" these are the solvers that find optima, except those in `without` if others can do the job. With
    `fallback`, the solver called `name` is followed by its stand-ins, ending with one that finds allowed plans. Raises
    as `choose` does if there is none.
    """
    if name != "auto" and not fallback:
        return [choose(problem, name, among)], {}
    line: list[Solver] = []
    failed = {}
    while name != "auto":
        if name not in without:
            try:
                line.append(choose(problem, name, among))
            except UnsupportedError as error:
                failed[name] = str(error)
        name = after(name, among)
    asked = features(problem)
    able = [each for each in among if asked <= each.features and not each.compares and (each.proves or fallback)]
    able = [solver for solver in able if not solver.missing()]
    able = [solver for solver in able if solver.name not in without] or able
    line += [solver for solver in able if solver not in line]
    return line or [choose(problem, "auto", among)], failed


def allowed(problem: Problem, chosen: Solver, among: Sequence[Solver] = _ALL) -> Solver:
    """Return the solver itself; raise `UnsupportedError` if it is not ready or cannot handle the problem."""
    asked = features(problem)
    if lacking := asked - chosen.features:
        raise UnsupportedError(f"solver {chosen.name!r} cannot carry {_listed(lacking)}: {_instead(asked, among)}")
    if lack := chosen.missing():
        raise UnsupportedError(f"solver {chosen.name!r} is not ready ({lack}): {_instead(asked, among)}")
    return chosen


def fitting(asked: frozenset[Feature], among: Sequence[Solver] = _ALL) -> Iterator[Solver]:
    """Return the solvers that "auto" tries for these features, in order, ready or not."""
    return (solver for solver in among if solver.proves and asked <= solver.features and not solver.compares)


def _instead(asked: frozenset[Feature], among: Sequence[Solver]) -> str:
    """Return the advice on what would work: solvers that are ready, else packages to install."""
    able = [solver.name for solver in fitting(asked, among) if solver.missing() is None]
    lacks = dict.fromkeys(filter(None, (solver.missing() for solver in fitting(asked, among))))
    return f"use {' or '.join(able)}" if able else " or ".join(lacks) or "pip install highspy"


def named(name: str, among: Sequence[Solver] = _ALL) -> Solver:
    """Return the solver of that name, ready or not; raise `UnsupportedError` with the nearest name if it is unknown."""
    for solver in among:
        if solver.name == name:
            return solver
    near = difflib.get_close_matches(name, names(among), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names(among))}"
    raise UnsupportedError(f"unknown solver {name!r}: {hint}")


def _listed(lacking: frozenset[Feature]) -> str:
    return " and ".join(sorted(feature.value for feature in lacking))
