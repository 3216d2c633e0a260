"""The mixed-integer programs as solvers: two models, each on two engines, in a killable child process."""

from __future__ import annotations

from functools import partial
from typing import Literal

from milp.problem import Problem
from milp.solver import Feature, Limits, Outcome, Solver
from milp.solvers.programs import gurobi, highs

Model = Literal["counts", "nodes"]
Engine = Literal["highs", "gurobi"]

_EXTRAS = frozenset({Feature.NODE_CLASSES, Feature.MIXING, Feature.CAPS, Feature.CROSSING_CAPS, Feature.GROUPS})


def _run(model: Model, engine: Engine, problem: Problem, limits: Limits) -> Outcome:
    from milp.solvers.programs.messages import Request
    from milp.solvers.programs.process import solve

    if not problem.trainers or not problem.nodes:
        return Outcome({trainer.name: () for trainer in problem.trainers}, bound=None)
    return solve(Request(problem, model, engine, limits))


def _solver(name: str, model: Model, engine: Engine, extra: frozenset[Feature], summary: str) -> Solver:
    missing = {"highs": highs.missing, "gurobi": gurobi.missing}[engine]
    return Solver(name, summary, _EXTRAS | extra, True, partial(_run, model, engine), missing)


_PAPERS = frozenset({Feature.PAPER_BIG_M})

HIGHS = _solver("highs", "counts", "highs", frozenset(), "the count model as a mixed-integer program on HiGHS")
GUROBI = _solver("gurobi", "counts", "gurobi", frozenset(), "the count model on Gurobi, curves as special ordered sets")
HIGHS_NODES = _solver(
    "highs-nodes",
    "nodes",
    "highs",
    _PAPERS,
    "the paper's model, a variable for every trainer and node, on HiGHS: slow, to compare with",
)
GUROBI_NODES = _solver(
    "gurobi-nodes", "nodes", "gurobi", _PAPERS, "the paper's model on Gurobi, as the paper solved it"
)
