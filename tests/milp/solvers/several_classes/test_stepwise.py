"""The quick solver for several classes, caps and mixing trainers: allowed plans, a true bound, caps well divided."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from milp import Cap, Curve, NodeSpec, Problem, TrainerSpec, solve
from tests.milp.instances import is_allowed, optimum, problems


@settings(deadline=None, max_examples=60)
@given(problems())
def test_its_plans_are_allowed_and_its_bound_is_above_every_map(problem: Problem) -> None:
    problem = replace(problem, groups=())
    plan, best = solve(problem, "stepwise"), optimum(problem)
    assert is_allowed(problem, dict(plan.assignment))
    assert plan.objective <= best + 1e-6 * (1 + abs(best))
    assert plan.bound >= best - 1e-6 * (1 + abs(best))


def trainer(name: str, rate: float, **fields: object) -> TrainerSpec:
    plain = {"up_cost_s": 1.0, "down_cost_s": 1.0, "curve": Curve((0, 8), (0.0, 8 * rate)), "user": "ann"}
    return TrainerSpec(name, 1, 8, **{**plain, **fields})  # type: ignore[arg-type]


POOL = tuple(NodeSpec(f"{kind}{number}", kind) for kind in "ab" for number in range(6))


def test_what_a_cap_takes_from_one_user_goes_to_another_and_the_faster_trainer_gets_what_the_cap_leaves() -> None:
    both = (trainer("slow", 1.0), trainer("fast", 3.0), trainer("bobs", 0.5, user="bob"))
    plan = solve(Problem(POOL, both, 100.0, caps=(Cap(4, user="ann"),)), "stepwise")
    assert dict(plan.counts) == {"slow": 0, "fast": 4, "bobs": 6}


def test_a_trainer_that_mixes_takes_what_is_free_on_other_classes() -> None:
    plan = solve(Problem(POOL, (trainer("mixes", 1.0, mixes_classes=True),), 100.0), "stepwise")
    assert plan.counts["mixes"] == 8


def test_a_trainer_spread_over_classes_gives_up_nodes_to_one_that_makes_more_of_them() -> None:
    held = tuple(node.name for node in POOL[:3] + POOL[6:9])
    spread = trainer("spread", 0.1, mixes_classes=True, current=held)
    plan = solve(Problem(POOL, (spread, trainer("fast", 9.0)), 100.0), "stepwise")
    assert plan.counts["fast"] == 6
