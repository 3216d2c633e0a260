"""What must hold for every problem, against brute force on small ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from milp import NodeSpec, Problem, problem_from_json, problem_to_json, solve, verify
from milp.solvers.one_class import exact
from milp.utility import objective
from tests.milp.instances import one_class_problems as problems

pytestmark = pytest.mark.slow


def every_objective(problem: Problem) -> dict[tuple[int, ...], float]:
    """Objective of every allowed combination of counts."""
    names = [trainer.name for trainer in problem.trainers]
    allowed = [[n for n in range(len(problem.nodes) + 1) if trainer.allows(n)] for trainer in problem.trainers]
    return {
        counts: objective(problem, dict(zip(names, counts, strict=True)))
        for counts in itertools.product(*allowed)
        if sum(counts) <= len(problem.nodes)
    }


@settings(max_examples=500, deadline=None)
@given(problems())
def test_exact_finds_the_optimum_that_brute_force_finds(problem: Problem) -> None:
    plan = solve(problem, "exact")
    assert plan.objective == pytest.approx(max(every_objective(problem).values()), rel=1e-9, abs=1e-6)
    assert plan.status == "optimal"
    assert plan.gap == 0


@settings(max_examples=300, deadline=None)
@given(problems())
def test_a_first_round_with_hardly_any_counts_misses_nothing(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exact, "_CORE_COUNTS", 0)  # small problems have too few counts for a first round otherwise
        patched.setattr(exact, "_CORE", 1e-6)
        plan = solve(problem, "exact")
    assert plan.objective == pytest.approx(max(every_objective(problem).values()), rel=1e-9, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_of_equal_plans_the_one_that_moves_fewest_nodes_is_taken(problem: Problem) -> None:
    plan = solve(problem)
    values = every_objective(problem)
    best = max(values.values())
    held = [len(trainer.current) for trainer in problem.trainers]

    def moved(counts: tuple[int, ...]) -> int:
        return sum(abs(count - had) for count, had in zip(counts, held, strict=True))

    # A plan that is worse, but by less than rounding can tell, is no equal plan: such problems show nothing.
    assume(all(best - value < 1e-12 or best - value > 1e-5 for value in values.values()))
    fewest = min(moved(counts) for counts, value in values.items() if best - value < 1e-12)
    assert moved(tuple(plan.counts.values())) == fewest


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from(["exact", "equal-share", "auto"]))
def test_every_plan_passes_verify_and_moves_no_trainer(problem: Problem, solver: str) -> None:
    plan = solve(problem, solver)
    verify(problem, plan)
    for trainer in problem.trainers:
        old, new = set(trainer.current), set(plan.assignment[trainer.name])
        assert old <= new or new <= old


@settings(max_examples=200, deadline=None)
@given(problems())
def test_adding_a_node_never_lowers_the_optimum(problem: Problem) -> None:
    larger = replace(problem, nodes=(*problem.nodes, NodeSpec("extra")))
    before = solve(problem).objective
    assert solve(larger).objective >= before - 1e-9 * max(1.0, abs(before))


@settings(max_examples=300, deadline=None)
@given(problems(), st.sampled_from([0.0, 1e-9]))
def test_without_a_future_nobody_pays_for_a_change(problem: Problem, t_fwd_s: float) -> None:
    # One that cannot stay as it is may be worth a change of the others.
    able = tuple(trainer for trainer in problem.trainers if trainer.allows(len(trainer.current)))
    plan = solve(replace(problem, trainers=able, t_fwd_s=t_fwd_s))
    for trainer in able:
        cheapest_change = problem.earns_now[trainer.name] * min(trainer.up_cost_s, trainer.down_cost_s)
        if cheapest_change > 0.01:
            assert plan.assignment[trainer.name] == trainer.current


@settings(max_examples=200, deadline=None)
@given(problems())
def test_without_a_future_a_map_on_which_all_can_run_stays_even_where_changes_are_free(problem: Problem) -> None:
    able = tuple(trainer for trainer in problem.trainers if trainer.allows(len(trainer.current)))
    plan = solve(replace(problem, trainers=able, t_fwd_s=0.0))
    assert plan.assignment == {trainer.name: trainer.current for trainer in able}


@settings(max_examples=200, deadline=None)
@given(problems())
def test_renaming_trainers_and_nodes_renames_the_plan(problem: Problem) -> None:
    renamed = Problem(
        tuple(NodeSpec("x" + node.name[::-1]) for node in problem.nodes),
        tuple(
            replace(t, name="z" + t.name[::-1], current=tuple("x" + name[::-1] for name in t.current))
            for t in problem.trainers
        ),
        problem.t_fwd_s,
    )
    before, after = solve(problem).assignment, solve(renamed).assignment
    assert after == {"z" + t[::-1]: tuple("x" + n[::-1] for n in nodes) for t, nodes in before.items()}


@settings(max_examples=200, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_permuting_trainers_and_nodes_leaves_the_optimum(problem: Problem, random) -> None:
    trainers, nodes = list(problem.trainers), list(problem.nodes)
    random.shuffle(trainers)
    random.shuffle(nodes)
    shuffled = Problem(tuple(nodes), tuple(replace(t, current=t.current[::-1]) for t in trainers), problem.t_fwd_s)
    before, after = solve(problem), solve(shuffled)
    assert after.objective == pytest.approx(before.objective, rel=1e-9, abs=1e-6)
    values = sorted(every_objective(problem).values(), reverse=True)
    if len(values) == 1 or values[0] - values[1] > 1e-5:
        assert after.counts == before.counts


@settings(max_examples=200, deadline=None)
@given(problems())
def test_a_plan_carried_out_is_worth_no_less_the_next_time(problem: Problem) -> None:
    plan = solve(problem)
    settled = replace(problem, trainers=tuple(replace(t, current=plan.assignment[t.name]) for t in problem.trainers))
    assert solve(settled).objective >= plan.objective - 1e-6


@settings(max_examples=200, deadline=None)
@given(problems())
def test_a_problem_survives_json(problem: Problem) -> None:
    assert problem_from_json(problem_to_json(problem)) == problem


@settings(max_examples=100, deadline=None)
@given(problems())
def test_the_bound_of_equal_share_holds_for_the_optimum(problem: Problem) -> None:
    best = solve(problem, "exact").objective
    assert solve(problem, "equal-share").bound >= best - 1e-9 * max(1.0, abs(best))
