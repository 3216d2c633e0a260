"""The mixed-integer programs as solvers: models of a problem, each on the engines, in a killable child process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from milp.problem import Problem
from milp.running import gurobi, highs, process
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.programs import counts, nodes
from milp.solvers.programs.linear import Engine

# A new engine is a new file in `milp.running` that defines `ENGINE`, and a name here; its solvers follow. In the order
# in which "auto" tries them: Gurobi is faster.
ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (gurobi.ENGINE, highs.ENGINE)}
MODELS: Mapping[str, Callable[..., counts.CountModel | nodes.NodeModel]] = {
    "counts": counts.build,
    "nodes": nodes.build,
    "paper": partial(nodes.build, paper_big_m=True),
}


def _run(model: str, engine: str, problem: Problem, effort: Effort) -> SolverAnswer:
    if not problem.trainers or not problem.nodes:
        return SolverAnswer({trainer.name: () for trainer in problem.trainers}, bound=None)
    return process.solve(problem, model, engine, effort)


def _run_papers(engine: str, problem: Problem, effort: Effort) -> SolverAnswer:
    """Return the best map under the paper's M. M forbids some maps, so its bound does not hold for the problem."""
    answer = _run("paper", engine, problem, effort)
    return answer if answer.bound is None else replace(answer, bound=math.inf)


def _on_counts(engine: Engine) -> Solver:
    curves = "curves as special ordered sets" if engine.ordered_sets else "a binary for each segment of a curve"
    return Solver(
        name=engine.name,
        summary=f"the count model as a mixed-integer program on {engine.title}, {curves}",
        features=frozenset(Feature),
        proves=True,
        run=partial(_run, "counts", engine.name),
        missing=engine.missing,
        engine=engine.name,
    )


def _on_nodes(engine: Engine) -> Solver:
    return Solver(
        name=f"{engine.name}-nodes",
        summary=f"the paper's model, a variable for every trainer and node, on {engine.title}: slow, to compare with",
        features=frozenset(Feature),
        proves=True,
        run=partial(_run, "nodes", engine.name),
        missing=engine.missing,
        engine=engine.name,
        compares=True,
    )


_PAPERS = Solver(
    name="paper-nodes",
    summary=f"the paper's model with its big-M, which is too small, on {highs.ENGINE.title}: to see what that costs",
    features=frozenset(Feature),
    proves=False,
    run=partial(_run_papers, highs.ENGINE.name),
    missing=highs.ENGINE.missing,
    engine=highs.ENGINE.name,
    compares=True,
)

SOLVERS: tuple[Solver, ...] = (
    *map(_on_counts, ENGINES.values()),
    *map(_on_nodes, ENGINES.values()),
    _PAPERS,
)
