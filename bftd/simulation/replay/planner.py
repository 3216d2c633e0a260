"""The solver that the replay gives to the core: timed, with the paper's step bound on request."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

import milp
from milp.problem import Plan, Problem, TrainerSpec
from milp.utility import objective_of

Assignment = Mapping[str, tuple[str, ...]]


class TimedPlanner:
    """A solver for the core that records its solve times.

    A node that one trainer gives to another is free only once the first has left it, so the core plans twice in the
    same instant. While `settling` holds a map, that map is the answer: the decision is carried out, not made anew with
    costs that are sunk by then.
    """

    def __init__(self, *, paper_big_m: bool = False, startup_charge: bool = False) -> None:
        self.settling: Assignment | None = None
        self.solve_s: list[float] = []
        self._paper_big_m = paper_big_m
        self._startup_charge = startup_charge

    def __call__(
        self,
        problem: Problem,
        solver: str = "auto",
        *,
        time_limit_s: float | None = None,
        gap: float = 1e-4,
        explain: bool = False,
        fallback: bool = False,
        without: Collection[str] = (),
    ) -> Plan:
        """Return a plan for the core; see `milp.solve`. No reasons are written, as a replay shows none.

        No other solver replaces one that fails: a replay is about the solver that it names.
        """
        if self.settling is not None:
            return _carried_on(problem, self.settling)
        started_s = time.perf_counter()
        asked = charging_starts(problem) if self._startup_charge else problem
        if self._paper_big_m and solver != "equal-share":
            plan = step_bound(asked, solver, time_limit_s=time_limit_s, gap=gap)
        else:
            plan = milp.solve(asked, solver, time_limit_s=time_limit_s, gap=gap, explain=False, without=without)
        self.solve_s.append(time.perf_counter() - started_s)
        return plan if asked is problem else _carried_on(problem, plan.assignment)


def _carried_on(problem: Problem, decided: Assignment) -> Plan:
    assignment = {trainer.name: decided[trainer.name] for trainer in problem.trainers}
    worth = objective_of(problem, assignment)
    return Plan(
        assignment=assignment,
        counts={name: len(nodes) for name, nodes in assignment.items()},
        objective=worth,
        bound=worth,
        gap=0.0,
        status="feasible",
        solver="decided",
        wall_s=0.0,
        reasons=dict.fromkeys(assignment, "carries on with what was decided"),
    )


def charging_starts(problem: Problem) -> Problem:
    """Return the same problem with starts from no nodes charged too, which equation (13) leaves free.

    R_up seconds earn nothing, so of t_fwd + R_up seconds t_fwd do. (Subtracting R_up from t_fwd would leave a trainer
    with an R_up beyond t_fwd waiting for ever, even if no other trainer wants the nodes.)
    """
    starting = [t for t in problem.trainers if len(t.current) < t.nodes_min and t.up_cost_s]
    if not starting:
        return problem
    charged = {
        t.name: replace(t, weight=t.weight * problem.t_fwd_s / (problem.t_fwd_s + t.up_cost_s)) for t in starting
    }
    return replace(problem, trainers=tuple(charged.get(t.name, t) for t in problem.trainers))


def step_bound(problem: Problem, solver: str, *, time_limit_s: float | None, gap: float) -> Plan:
    """Return the best plan under the paper's M = |N| + 1, which is too small.

    With z = 1 equation (8) reads -k >= k - M, and (10) the same for growing: no trainer can change by more than k =
    (|N| + 1) / 2 nodes at once.
    """
    most = (len(problem.nodes) + 1) // 2
    narrowed = replace(problem, trainers=tuple(_narrowed(trainer, most) for trainer in problem.trainers))
    decided = milp.solve(narrowed, solver, time_limit_s=time_limit_s, gap=gap, explain=False).assignment
    for trainer in narrowed.trainers:
        # Only a trainer that holds more than half of the pool can be too large to stop at once, so there is at most
        # one.
        if len(trainer.current) - len(decided[trainer.name]) > most:
            staying = _never_stopping(narrowed, trainer)
            decided = milp.solve(staying, solver, time_limit_s=time_limit_s, gap=gap, explain=False).assignment
            break
    return _carried_on(problem, decided)


def _narrowed(trainer: TrainerSpec, most: int) -> TrainerSpec:
    """Return the same trainer with no size other than 0 that is more than `most` nodes from its current one."""
    held = len(trainer.current)
    low, high = max(trainer.nodes_min, held - most), min(trainer.nodes_max, held + most)
    if (low, high) == (trainer.nodes_min, trainer.nodes_max):
        return trainer
    if high < low or (trainer.sizes is not None and not any(low <= size <= high for size in trainer.sizes)):
        # No size but 0 is near enough, which no range of sizes can express: let it earn nothing on any nodes.
        return replace(trainer, curve=milp.Curve((0,), (0.0,)))
    return replace(trainer, nodes_min=low, nodes_max=high)


def _never_stopping(problem: Problem, trainer: TrainerSpec) -> Problem:
    """Return the same problem in which any size of one trainer is worth more than all others together can earn."""
    bonus = 1.0 + 2.0 * sum(max(other.curve.values) * other.weight for other in problem.trainers)
    low, weight = trainer.nodes_min, trainer.weight
    points = {low: trainer.curve(low)} | {
        nodes: value for nodes, value in zip(trainer.curve.nodes, trainer.curve.values, strict=True) if nodes > low
    }
    # The weight goes into the curve: with a small weight the bonus would count for little too.
    curve = milp.Curve((0, *points), (0.0, *(value * weight + bonus for value in points.values())))
    now = trainer.curve(len(trainer.current)) * weight
    share = now / (now + bonus)  # its costs stay the same, although its rate is stated higher
    up_s, down_s = trainer.up_cost_s * share, trainer.down_cost_s * share
    kept = replace(trainer, curve=curve, weight=1.0, up_cost_s=up_s, down_cost_s=down_s)
    return replace(problem, trainers=tuple(kept if other is trainer else other for other in problem.trainers))
