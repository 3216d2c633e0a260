"""The single entry point to all solvers: choose, solve, compare with doing nothing, explain, check."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from milp.assignments import keep
from milp.checking import verify
from milp.errors import PlanError, UnsupportedError
from milp.explanations import explain as sentences
from milp.problem import Plan, Problem, Status
from milp.running import process
from milp.solver import Effort, Feature, Solver, SolverAnswer
from milp.solvers.registry import allowed, every, fitting, in_turn
from milp.utility import most_worth, objective_of, relative_gap

# Objectives that differ relatively by less than this are the same but for rounding.
_ROUNDING = 1e-9
# An engine that other solvers follow may take this share of the time left; the rest is theirs.
_FIRST_SHARE = 0.75


def solve(
    problem: Problem,
    solver: str | Solver = "auto",
    *,
    time_limit_s: float | None = None,
    gap: float = 1e-4,
    explain: bool = True,
    fallback: bool = False,
    without: Collection[str] = (),
) -> Plan:
    """Solve the allocation problem and return a plan that passed `verify`: its `verified_for` is the problem.

    `solver` is a name, or a solver that is in no table. `gap` is the relative gap at which a MILP solver may stop; the
    exact solver proves its optimum and needs neither that nor a time limit. Without `explain` no sentences are written.
    Among equal plans an exact solver takes the one that moves the fewest nodes, then favours earlier trainers. A solver
    that runs out of time or dies without anything better leaves the current map, as far as it is allowed (status
    "kept"). Raises `UnsupportedError` for a solver that cannot be used here, `PlanError` if a solver returned nonsense.

    With `fallback`, other solvers follow one that cannot be used, fails, dies, or has no proof when its time is over,
    and the best of their plans is taken: see `registry.in_turn`, also for `without`.
    """
    start = time.perf_counter()
    deadline_s = math.inf if time_limit_s is None else start + time_limit_s
    if isinstance(solver, str):
        line, failed = in_turn(problem, solver, fallback=fallback, without=without)
    else:
        line, failed = [allowed(problem, solver)], {}
    passes_over = Exception if fallback else UnsupportedError
    plans: list[Plan] = []
    notes: dict[str, str] = {}
    for chosen, is_last in zip(line, [False] * (len(line) - 1) + [True], strict=True):
        until_s = deadline_s
        if fallback and chosen.engine and not is_last:
            now_s = time.perf_counter()
            until_s = now_s + _FIRST_SHARE * (deadline_s - now_s)
        try:
            plan, answer = _solved(problem, chosen, Effort(gap, until_s, time.perf_counter), start, explain=explain)
        except passes_over as error:
            if is_last and not plans:
                raise
            failed[chosen.name] = str(error) or type(error).__name__
            continue
        plans.append(plan)
        notes[chosen.name] = f"solver {chosen.name}: {answer.note}"
        if answer.died:
            failed[chosen.name] = notes[chosen.name]
        if not fallback or plan.status == "optimal" or not chosen.engine:
            break
    best = plans[0]
    for plan in plans[1:]:
        least = gap * abs(best.objective)
        if plan.objective > best.objective + least or (plan.gap < best.gap and plan.objective >= best.objective):
            best = plan
    for plan in plans:
        if plan.objective < best.objective - gap * abs(best.objective):
            failed[plan.solver] = notes[plan.solver]
    if failed or len(plans) > 1:
        distrusted = tuple(name for plan in plans for name in plan.distrusted)
        best = replace(best, wall_s=time.perf_counter() - start, failed=MappingProxyType(failed), distrusted=distrusted)
    object.__setattr__(best, "verified_for", problem)  # not an argument of Plan: no other code can set it by accident
    return best


def prepare(solver: str, asked: frozenset[Feature] = frozenset()) -> None:
    """Start the process that a solver runs in, if it has one, for a later `solve`; takes no time.

    For "auto" it is that of the solver that is taken for a problem with these features.
    """
    able = fitting(asked) if solver == "auto" else (each for each in every() if each.name == solver)
    ready = next((each for each in able if each.missing() is None), None)
    if ready is not None and ready.engine:
        process.prepare(ready.engine)


def _solved(
    problem: Problem, chosen: Solver, effort: Effort, start_s: float, *, explain: bool
) -> tuple[Plan, SolverAnswer]:
    """Return a solver's verified plan, and the answer that it is made from."""
    answer = chosen.run(problem, effort)
    if answer.assignment is not None and answer.assignment.keys() != problem.earns_now.keys():
        raise PlanError((f"solver {chosen.name!r} answered for other trainers than it was asked about",))
    assignment, kept = _better_of(problem, answer, stands=chosen.baseline)
    counts = {name: len(nodes) for name, nodes in assignment.items()}
    value = objective_of(problem, assignment)
    # A bound below the value of a plan in hand can only be due to rounding.
    bound = value if answer.bound is None else max(_finite(problem, answer.bound), value)
    reached = relative_gap(value, bound)
    status: Status = "optimal" if reached <= effort.gap else "kept" if kept else "feasible"
    reasons: Mapping[str, str] = {}
    if explain:
        reasons = _nothing_better(counts, answer.note) if status == "kept" else sentences(problem, assignment)
    plan = Plan(
        # Read-only, so that the verified plan stays as it was.
        assignment=MappingProxyType(assignment),
        counts=MappingProxyType(counts),
        objective=value,
        bound=bound,
        gap=reached,
        status=status,
        solver=chosen.name,
        wall_s=time.perf_counter() - start_s,
        reasons=MappingProxyType(reasons),
        distrusted=(chosen.engine,) if answer.distrusted else (),
    )
    verify(problem, plan)
    return plan, answer


def _better_of(problem: Problem, answer: SolverAnswer, *, stands: bool) -> tuple[dict[str, tuple[str, ...]], bool]:
    """Return the solver's map or the current one as far as allowed, and whether it is the latter.

    A map that `stands` or is proven optimal is taken as it is. A map worse than doing nothing comes from a solver that
    was stopped early, or that solves another problem.
    """
    found = answer.assignment
    if found is not None and (stands or answer.bound is None):
        return found, False
    current = keep(problem)
    if found is None:
        return current, True
    least = objective_of(problem, current)
    if objective_of(problem, found) < least - _ROUNDING * abs(least):
        return current, True
    return found, False


def _finite(problem: Problem, bound: float) -> float:
    """Return the bound; if nothing is proven, the sum of what each trainer would earn alone in the pool."""
    return bound if math.isfinite(bound) else sum(most_worth(problem, trainer) for trainer in problem.trainers)


def _nothing_better(counts: Mapping[str, int], why: str) -> dict[str, str]:
    return {
        name: f"keeps its {count} node{'' if count == 1 else 's'}: {why}" if count else f"waits: {why}"
        for name, count in counts.items()
    }
