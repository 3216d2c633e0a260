"""The one door to all solvers: choose, solve, explain, check."""

from __future__ import annotations

import time

from milp.checking import verify
from milp.model import Plan, Problem, Status
from milp.objective import objective, relative_gap
from milp.reasons import explain
from milp.solvers import Limits, choose


def solve(problem: Problem, solver: str = "auto", *, time_limit_s: float | None = None, gap: float = 1e-4) -> Plan:
    """Solve the allocation problem and return a plan that passed `verify`.

    `gap` is the relative gap at which a MILP solver may stop; the exact solver proves its optimum and needs neither
    that nor a time limit. Equal plans resolve to the one that moves the fewest nodes, then to earlier trainers.
    Raises `UnsupportedError` for a solver that cannot be used here, `PlanError` when a solver returned nonsense.
    """
    start = time.perf_counter()
    chosen = choose(problem, solver)
    outcome = chosen.run(problem, Limits(time_limit_s, gap))
    counts = {name: len(nodes) for name, nodes in outcome.assignment.items()}
    value = objective(problem, counts)
    # A bound below the value of a plan in hand can only be rounding.
    bound = value if outcome.bound is None else max(outcome.bound, value)
    reached = relative_gap(value, bound)
    status: Status = "kept" if outcome.kept else "optimal" if reached <= gap else "feasible"
    plan = Plan(
        assignment=outcome.assignment,
        counts=counts,
        objective=value,
        bound=bound,
        gap=reached,
        status=status,
        solver=chosen.name,
        wall_s=time.perf_counter() - start,
        reasons=explain(problem, counts),
    )
    verify(problem, plan)
    return plan
