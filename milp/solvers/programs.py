"""The mixed-integer programs as solvers: two models, each on two engines, in a killable child process."""

from __future__ import annotations

from functools import partial
from typing import Literal

from milp.mip import gurobi, highs
from milp.model import Problem
from milp.solvers.base import Feature, Limits, Outcome, Solver

_EXTRAS = frozenset({Feature.NODE_CLASSES, Feature.MIXING, Feature.CAPS, Feature.GROUPS})


def _run(
    model: Literal["counts", "nodes"], engine: Literal["highs", "gurobi"], problem: Problem, limits: Limits
) -> Outcome:
    from milp.mip.messages import Request
    from milp.mip.worker import solve

    if not problem.trainers or not problem.nodes:
        return Outcome({trainer.name: () for trainer in problem.trainers}, bound=None)
    return solve(Request(problem, model, engine, limits))


HIGHS = Solver(
    name="highs",
    summary="the count model as a mixed-integer program on HiGHS",
    features=_EXTRAS,
    proves=True,
    run=partial(_run, "counts", "highs"),
    missing=highs.missing,
)
GUROBI = Solver(
    name="gurobi",
    summary="the count model on Gurobi, curves as special ordered sets",
    features=_EXTRAS,
    proves=True,
    run=partial(_run, "counts", "gurobi"),
    missing=gurobi.missing,
)
HIGHS_NODES = Solver(
    name="highs-nodes",
    summary="the paper's model, a variable for every trainer and node, on HiGHS: slow, to compare with",
    features=_EXTRAS | {Feature.PAPER_BIG_M},
    proves=True,
    run=partial(_run, "nodes", "highs"),
    missing=highs.missing,
)
GUROBI_NODES = Solver(
    name="gurobi-nodes",
    summary="the paper's model on Gurobi, as the paper solved it",
    features=_EXTRAS | {Feature.PAPER_BIG_M},
    proves=True,
    run=partial(_run, "nodes", "gurobi"),
    missing=gurobi.missing,
)
