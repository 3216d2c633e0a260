"""What must hold for every problem, against brute force on small ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from milp import Curve, NodeSpec, Problem, TrainerSpec, solve, verify
from milp.objective import objective

MOST_NODES = 9
# Few distinct numbers make ties and degenerate multipliers common; the awkward ones make rounding visible.
RATES = st.one_of(st.integers(0, 6).map(float), st.floats(0, 100).map(lambda x: round(x, 7)))
SECONDS = st.one_of(st.sampled_from([0.0, 5.0, 30.0]), st.floats(0, 60).map(lambda x: round(x, 7)))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any shape: concave, convex, dented, falling, flat."""
    nodes = sorted(draw(st.sets(st.integers(1, MOST_NODES + 2), min_size=1, max_size=5)))
    return Curve((0, *nodes), (0.0, *(draw(RATES) for _ in nodes)))


@st.composite
def problems(draw: st.DrawFn, max_trainers: int = 4) -> Problem:
    """Small problems; current counts may lie below nodes_min (after a preemption), above nodes_max or between sizes."""
    nodes = [f"n{i}" for i in range(draw(st.integers(0, MOST_NODES)))]
    free = draw(st.permutations(nodes))
    trainers = []
    for index in range(draw(st.integers(0, max_trainers))):
        held = draw(st.integers(0, len(free)))
        current, free = free[:held], free[held:]
        low = draw(st.integers(1, 5))
        high = draw(st.integers(low, MOST_NODES + 1))
        sizes = draw(st.none() | st.sets(st.integers(low, high), min_size=1, max_size=3))
        trainers.append(
            TrainerSpec(
                name=f"t{index}",
                nodes_min=low,
                nodes_max=high,
                up_cost_s=draw(SECONDS),
                down_cost_s=draw(SECONDS),
                curve=draw(curves()),
                current=tuple(current),
                sizes=None if sizes is None else tuple(sorted(sizes)),
                weight=draw(st.sampled_from([0.0, 1.0, 1.0, 1.0, 2.5])),
            )
        )
    t_fwd_s = draw(st.sampled_from([0.0, 1.0, 10.0, 120.0]))
    return Problem(tuple(map(NodeSpec, nodes)), tuple(trainers), t_fwd_s)


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
    plan = solve(replace(problem, t_fwd_s=t_fwd_s))
    for trainer in problem.trainers:
        cheapest_change = trainer.earns_now * min(trainer.up_cost_s, trainer.down_cost_s)
        if trainer.allows(len(trainer.current)) and cheapest_change > 0.01:
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
    assert Problem.from_json(problem.to_json()) == problem


@settings(max_examples=100, deadline=None)
@given(problems())
def test_the_bound_of_equal_share_holds_for_the_optimum(problem: Problem) -> None:
    best = solve(problem, "exact").objective
    assert solve(problem, "equal-share").bound >= best - 1e-9 * max(1.0, abs(best))
