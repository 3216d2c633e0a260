"""The paper's baseline heuristic: every trainer gets the same number of nodes, whatever their worth to it."""

from __future__ import annotations

from milp.assignments import assign
from milp.problem import Problem
from milp.solver import Effort, Solver, SolverAnswer
from milp.solvers.one_class.dual import minimise
from milp.solvers.one_class.tables import tabulate


def _run(problem: Problem, effort: Effort) -> SolverAnswer:
    assignment = assign(problem, share(problem))
    if not problem.trainers:
        return SolverAnswer(assignment, bound=None)
    # The relaxation costs next to nothing and shows how far the heuristic may be from the optimum.
    tables = tabulate(problem)
    return SolverAnswer(assignment, minimise(tables).bound + tables.tie_breaks)


def share(problem: Problem) -> dict[str, int]:
    """Return counts per trainer: floor(|N| / J) each, the remainder first come first served.

    A trainer whose share does not exceed its nodes_min gets none of it at first (as in the authors' code), and is
    skipped in the second round if the remainder cannot bring it to nodes_min. Shares and remainders are rounded down to
    allowed sizes.
    """
    trainers = problem.trainers
    quota = len(problem.nodes) // len(trainers) if trainers else 0
    counts = {t.name: t.largest_allowed(quota) if quota > t.nodes_min else 0 for t in trainers}
    left = len(problem.nodes) - sum(counts.values())
    for trainer in trainers:
        count = max(counts[trainer.name], trainer.largest_allowed(counts[trainer.name] + left))
        left -= count - counts[trainer.name]
        counts[trainer.name] = count
    return counts


SOLVER = Solver(
    name="equal-share",
    summary="the paper's baseline: the same number of nodes for everyone",
    features=frozenset(),
    proves=False,
    run=_run,
    baseline=True,
    compares=True,
)
