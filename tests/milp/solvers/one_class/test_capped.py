"""Caps by dynamic programming, against brute force and the mixed-integer program."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp import Cap, Curve, NodeSpec, Problem, TrainerSpec, UnsupportedError, solve
from milp.solver import Effort, Solver
from milp.solvers.one_class import capped
from milp.utility import objective
from tests.milp.instances import one_class_problems
from tests.support.messages import pattern, wording

pytestmark = pytest.mark.slow

# Every user is on one account only: such caps nest, whichever of them bind.
OWNERS = (("ann", "physics"), ("bob", "physics"), ("cyd", "chem"), ("dan", ""))


@st.composite
def nested(draw: st.DrawFn) -> Problem:
    """Small problems in which some of the users and accounts are capped."""
    problem = draw(one_class_problems())
    owned = []
    for trainer in problem.trainers:
        user, account = draw(st.sampled_from(OWNERS))
        owned.append(replace(trainer, user=user, account=account))
    caps = [Cap(draw(st.integers(0, 8)), user=name) for name in ("ann", "bob", "cyd", "dan") if draw(st.booleans())]
    caps += [Cap(draw(st.integers(0, 8)), account=name) for name in ("physics", "chem") if draw(st.booleans())]
    return replace(problem, trainers=tuple(owned), caps=tuple(caps))


def values(problem: Problem) -> dict[tuple[int, ...], float]:
    """The objective of all counts that sizes, pool and caps allow."""
    names = [trainer.name for trainer in problem.trainers]
    allowed = [[n for n in range(len(problem.nodes) + 1) if trainer.allows(n)] for trainer in problem.trainers]
    found = {}
    for counts in itertools.product(*allowed):
        shares = list(zip(problem.trainers, counts, strict=True))
        used = [sum(n for t, n in shares if cap.covers(t.user, t.account)) <= cap.nodes_max for cap in problem.caps]
        if sum(counts) <= len(problem.nodes) and all(used):
            found[counts] = objective(problem, dict(zip(names, counts, strict=True)))
    return found


@settings(max_examples=400, deadline=None)
@given(nested())
def test_it_finds_the_optimum_that_brute_force_finds(problem: Problem) -> None:
    plan = solve(problem, "capped")
    found = values(problem)
    best = max(found.values())
    assert plan.objective == pytest.approx(best, rel=1e-9, abs=1e-6)
    assert (plan.status, plan.gap) == ("optimal", 0)
    if all(best - value < 1e-12 or best - value > 1e-5 for value in found.values()):
        held = [len(trainer.current) for trainer in problem.trainers]
        moved = {
            counts: sum(abs(count - had) for count, had in zip(counts, held, strict=True))
            for counts, value in found.items()
            if best - value < 1e-12
        }
        assert moved[tuple(plan.counts.values())] == min(moved.values())


def large(trainers: int, nodes: int, owners: tuple[tuple[str, str], ...], *caps: Cap) -> Problem:
    """Trainers of all kinds, each next one of the next owner."""
    specs = []
    for index in range(trainers):
        user, account = owners[index % len(owners)]
        values = tuple((3 + index % 5) * size ** (0.5 + index % 7 / 14) for size in (1, 2, 4, 8, 16, 32))
        curve = Curve((0, 1, 2, 4, 8, 16, 32), (0.0, *values))
        specs.append(TrainerSpec(f"t{index}", 1 + index % 3, 32, 10.0 + index, 2.0, curve, user=user, account=account))
    return Problem(tuple(NodeSpec(f"n{index}") for index in range(nodes)), tuple(specs), 120.0, caps)


def test_a_large_problem_agrees_with_the_mixed_integer_program() -> None:
    problem = large(20, 200, OWNERS, Cap(40, user="ann"), Cap(70, account="physics"), Cap(30, account="chem"))
    assert solve(problem).solver == "capped"
    assert solve(problem).objective == pytest.approx(solve(problem, "highs", gap=1e-6).objective, rel=1e-5)


def test_two_caps_on_the_same_trainers_both_hold() -> None:
    problem = large(4, 40, (("ann", "physics"),), Cap(9, user="ann"), Cap(7, account="physics"))
    plan = solve(problem, "capped")
    assert sum(plan.counts.values()) == 7


def test_caps_that_cross_are_left_to_another_solver() -> None:
    owners = (("ann", "physics"), ("ann", "chem"), ("bob", "physics"))
    problem = large(6, 40, owners, Cap(9, user="ann"), Cap(7, account="physics"))
    assert solve(problem).solver in ("gurobi", "highs")  # the former where it is installed
    crossing = wording("milp.solver.crossing_caps")
    refused = pattern("milp.registry.cannot_carry", name="capped", features=crossing)
    with pytest.raises(UnsupportedError, match=refused + ": use (gurobi or )?highs"):
        solve(problem, "capped")


def test_of_equal_trainers_the_earlier_one_gets_more() -> None:
    trainers = tuple(TrainerSpec(f"t{i}", 1, 3, 0.0, 0.0, Curve((0, 3), (0.0, 3.0)), user="ann") for i in range(3))
    problem = Problem(tuple(NodeSpec(f"n{i}") for i in range(9)), trainers, 10.0, (Cap(5, user="ann"),))
    assert solve(problem, "capped").counts == {"t0": 3, "t1": 2, "t2": 0}


def test_without_time_the_current_map_is_kept() -> None:
    problem = large(20, 200, OWNERS, Cap(40, user="ann"), Cap(70, account="physics"))
    held = replace(problem.trainers[0], current=("n3", "n4"))
    problem = replace(problem, trainers=(held, *problem.trainers[1:]))
    plan = solve(problem, "capped", time_limit_s=0)
    assert plan.status == "kept"
    assert plan.assignment["t0"] == ("n3", "n4")
    assert sum(plan.counts.values()) == 2


def test_whenever_time_runs_out_the_best_plan_so_far_comes_with_a_bound_that_holds() -> None:
    # Two nodes are left over whatever is done, so no plan comes near the bound.
    curve = Curve((0, 4), (0.0, 4.0))
    trainers = [TrainerSpec(f"t{i}", 4, 4, 0.0, 0.0, curve, user="ann" if i < 2 else "bob") for i in range(4)]
    problem = Problem(tuple(NodeSpec(f"n{i}") for i in range(10)), tuple(trainers), 10.0, (Cap(6, user="ann"),))
    best = solve(problem, "capped").objective

    def until(ticks: int) -> Solver:
        """The solver with a clock that ticks when it is looked at."""
        return replace(capped.SOLVER, run=lambda p, _: capped.SOLVER.run(p, Effort(0.0, ticks, count().__next__)))

    found = set()
    for ticks in range(1000):
        plan = solve(problem, until(ticks), gap=0)
        assert plan.objective <= best * (1 + 1e-9)
        assert plan.bound >= best * (1 - 1e-9)
        found.add(plan.status)
        if plan.status == "optimal":
            assert plan.objective == pytest.approx(best, rel=1e-9)
            break
    assert found == {"kept", "feasible", "optimal"}


@settings(max_examples=200, deadline=None)
@given(nested())
def test_what_is_left_out_at_first_is_never_missed(problem: Problem) -> None:
    """With the smallest first reach and steps, all rounds are taken that there may be."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(capped, "_FIRST_REACH", 1e-12)
        plan = solve(problem, "capped")
    assert plan.objective == pytest.approx(max(values(problem).values()), rel=1e-9, abs=1e-6)
