"""The solver for several node classes, one per trainer: prices by class, then a search that proves its plan's quality.

The Lagrangian bound puts a price on a node of each class. The search looks only at plans worth more than a floor, first
one just below the bound, then lower and lower ones: with a high floor nearly everything is fixed, and a search that
finds nothing lowers the bound. It ends when plan and bound are as close as requested.
"""

from __future__ import annotations

import numpy as np

from milp.assignments import assign_blocks, blocks
from milp.problem import Problem
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.arrays import Floats
from milp.solvers.several_classes.dual import minimise
from milp.solvers.several_classes.fill import fill, pack
from milp.solvers.several_classes.search import search
from milp.solvers.several_classes.tables import ClassTables, Picks, tabulate

# Rounding of a sum of worths, as a share of their size.
_NOISE = 1e-14
# Partial plans that the search keeps, at first and when nothing else helps.
_FEW_STATES = 500
_MOST_STATES = 12_500
_MORE_STATES = 5
# How much further below the bound the next floor is.
_LOWER = 3.0
# Other prices at which the search judges a partial plan: one class at a time cheaper or dearer than in the best bound.
_OTHER_PRICES = (0.7, 0.95, 1.05, 1.4)


def _run(problem: Problem, effort: Effort) -> SolverAnswer:
    if not problem.trainers or not problem.nodes:
        return SolverAnswer({trainer.name: () for trainer in problem.trainers}, bound=None)
    tables = tabulate(problem)
    plan, bound = solve_tables(tables, effort)
    names = [trainer.name for trainer in problem.trainers]
    assignment = assign_blocks(problem, blocks(problem), plan.shares(names, len(tables.capacity)))
    proven = bound <= plan.total + 2 * _NOISE * tables.size
    return SolverAnswer(assignment, None if proven else bound + tables.tie_breaks)


def solve_tables(tables: ClassTables, effort: Effort) -> tuple[Picks, float]:
    """Return a plan and an upper bound, as close as the effort's gap unless time or memory for states run out first."""
    gap, is_over = effort.gap, effort.is_over
    dual = minimise(tables, is_over)
    plans = (fill(tables, dual.plan), fill(tables, pack(tables, dual.prices)))
    plan, bound = max(plans, key=lambda plan: plan.total), dual.bound
    noise = _NOISE * tables.size
    prices = _around(dual.prices)
    depth, states = max(gap * abs(bound), 1e-6 * tables.size), _FEW_STATES
    while states <= _MOST_STATES:
        # Slightly below the requested gap, as rounding and tie-breaks come on top.
        enough = max(0.999 * gap * abs(plan.total) - tables.tie_breaks, noise)
        if bound - plan.total <= enough + 2 * noise:
            break
        lowest = plan.total + enough
        floor = max(dual.bound - depth, lowest)
        found = search(tables, prices, floor, states, is_over)
        if found is None:
            break
        bound = min(bound, max(found.ceiling + noise, plan.total))
        if found.plan is not None and found.plan.total > plan.total + noise:
            plan = found.plan
        elif floor > lowest:
            depth *= _LOWER
        else:
            states *= _MORE_STATES
    return plan, max(bound, plan.total)


def _around(prices: Floats) -> Floats:
    """Return the prices (K,) themselves and others around them, as (M, K)."""
    others = [
        np.where(np.arange(len(prices)) == k, prices * part, prices)
        for k in range(len(prices))
        for part in _OTHER_PRICES
    ]
    return np.stack([prices, *others])


SOLVER = Solver(
    name="classes",
    summary="several classes of nodes, one a trainer: prices by class and a search, with a proven gap",
    features=frozenset({Feature.NODE_CLASSES, Feature.ONLY_CLASSES}),
    proves=True,
    run=_run,
)
