"""A good plan, spoilt in one way at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from milp import Cap, NodeGroup, NodeSpec, Plan, PlanError, Problem, solve, verify
from milp.utility import objective_of
from tests.support.messages import excerpt, fragment, pattern, wording


@pytest.fixture
def good(trainer, problem) -> tuple[Problem, Plan]:
    """`a` holds n0, n1 and grows to its four nodes; `b` starts on two; n6 and n7 are left over."""
    spoilt = problem(8, trainer("a", nodes_max=4, current=("n0", "n1")), trainer("b", nodes_min=2, nodes_max=2))
    plan = solve(spoilt)
    assert plan.assignment == {"a": ("n0", "n1", "n2", "n3"), "b": ("n4", "n5")}
    verify(spoilt, plan)
    return spoilt, plan


def nodes(plan: Plan, **assignment: tuple[str, ...]) -> Plan:
    """The plan with other nodes, and with counts that agree."""
    changed = {**plan.assignment, **assignment}
    return replace(plan, assignment=changed, counts={name: len(given) for name, given in changed.items()})


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda p: nodes(p, b=("n3", "n4")), wording("milp.checking.assigned_often", node="n3", times=2)),
        (lambda p: nodes(p, b=("n4", "n4")), wording("milp.checking.assigned_often", node="n4", times=2)),
        (lambda p: nodes(p, b=("n4", "n9")), wording("milp.checking.not_in_pool", node="n9")),
        (lambda p: nodes(p, b=("n4",)), wording("milp.checking.forbidden_count", name="b", nodes=1)),
        (lambda p: nodes(p, b=("n4", "n5", "n6")), wording("milp.checking.forbidden_count", name="b", nodes=3)),
        (lambda p: nodes(p, a=("n0", "n2", "n3")), wording("milp.checking.migrates", name="a", old="n1", new="n2")),
        (
            lambda p: nodes(p, a=("n2", "n3", "n6", "n7")),
            wording("milp.checking.migrates", name="a", old="n0", new="n2"),
        ),
        (
            lambda p: replace(p, counts={"a": 4, "b": 0}),
            wording("milp.checking.wrong_count", name="b", counts=0, nodes=2),
        ),
        (lambda p: replace(p, counts={"a": 4}), wording("milp.checking.trainers_differ", field="counts", odd="b")),
        (lambda p: nodes(p, c=("n6",)), wording("milp.checking.trainers_differ", field="assignment", odd="c")),
        (
            lambda p: replace(p, assignment={"a": ()}),
            wording("milp.checking.trainers_differ", field="assignment", odd="b"),
        ),
        (lambda p: replace(p, reasons={"a": ""}), wording("milp.checking.trainers_differ", field="reasons", odd="b")),
        (lambda p: nodes(p, a=()), wording("milp.checking.wrong_objective", objective=580, expected=190)),
        (
            lambda p: replace(p, objective=p.objective + 1, bound=p.bound + 1),
            wording("milp.checking.wrong_objective", objective=581, expected=580),
        ),
        (lambda p: replace(p, bound=p.objective - 1), wording("milp.checking.bound_below", bound=579, objective=580)),
        (lambda p: replace(p, bound=p.objective * 2), wording("milp.checking.wrong_gap", gap=0, gap2=0.5)),
        (lambda p: replace(p, gap=math.nan), excerpt("milp.checking.wrong_gap", gap=fragment("nan"))),
        (lambda p: replace(p, objective=math.nan), wording("milp.checking.not_finite", objective="nan", bound=580.0)),
        (lambda p: replace(p, bound=math.inf), "must be finite"),
        (lambda p: replace(p, status="done"), excerpt("milp.checking.unknown_status", status="done")),
    ],
)
def test_a_spoilt_plan_is_refused_with_the_rule_it_breaks(good, spoil, rule: str) -> None:
    spoilt, plan = good
    with pytest.raises(PlanError) as caught:
        verify(spoilt, spoil(plan))
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_without_any_sentences_is_a_plan(good) -> None:
    spoilt, plan = good
    verify(spoilt, replace(plan, reasons={}))


def test_a_trainer_may_not_mix_node_classes(good) -> None:
    spoilt, plan = good
    mixed = replace(spoilt, nodes=tuple(NodeSpec(n.name, "v100" if n.name == "n5" else "a100") for n in spoilt.nodes))
    with pytest.raises(PlanError, match=pattern("milp.checking.mixes_classes", name="b", classes="a100, v100")):
        verify(mixed, plan)


def test_a_plan_for_another_pool_is_refused(good) -> None:
    spoilt, plan = good
    with pytest.raises(PlanError, match=pattern("milp.checking.not_in_pool", node="n5")):
        verify(replace(spoilt, nodes=spoilt.nodes[:5]), plan)


def test_held_nodes_in_another_order_are_no_migration(good) -> None:
    spoilt, plan = good
    verify(spoilt, nodes(plan, a=("n3", "n1", "n2", "n0")))


def test_many_broken_rules_still_make_a_short_message(trainer, problem) -> None:
    crowded = problem(0, *(trainer(f"t{i}") for i in range(30)))
    plan = nodes(solve(crowded), **{f"t{i}": (f"x{i}",) for i in range(30)})
    with pytest.raises(PlanError, match="and 26 more") as caught:
        verify(crowded, plan)
    assert len(caught.value.violations) == 6


CLASSES = (NodeSpec("s0", "slow"), NodeSpec("s1", "slow"), NodeSpec("f0", "fast"), NodeSpec("f1", "fast"))


def verified(problem: Problem, **assignment: tuple[str, ...]) -> None:
    """Verify a plan whose numbers are right, so that only its map can be wrong."""
    value = objective_of(problem, assignment)
    counts = {name: len(given) for name, given in assignment.items()}
    verify(problem, Plan(assignment, counts, value, value, 0.0, "optimal", "hand", 0.0, dict.fromkeys(counts, "")))


def test_a_trainer_on_two_classes_is_refused_unless_it_may_mix_them(trainer) -> None:
    verified(Problem(CLASSES, (trainer(mixes_classes=True),), 100.0), a=("s0", "f0"))
    with pytest.raises(PlanError, match=pattern("milp.checking.mixes_classes", name="a", classes="fast, slow")):
        verified(Problem(CLASSES, (trainer(),), 100.0), a=("s0", "f0"))


def test_more_nodes_than_a_cap_allows_are_refused(trainer, problem) -> None:
    hers = trainer("a", user="ann", account="physics"), trainer("b", user="ann"), trainer("c", account="physics")
    capped = replace(problem(8, *hers), caps=(Cap(3, user="ann"), Cap(4, account="physics")))
    verified(capped, a=("n0",), b=("n1", "n2"), c=("n3", "n4", "n5"))
    with pytest.raises(
        PlanError,
        match=pattern(
            "milp.checking.cap_exceeded", cap=wording("milp.problem.cap_of_user", user="ann"), nodes_max=3, total=4
        ),
    ):
        verified(capped, a=("n0", "n6"), b=("n1", "n2"), c=())
    with pytest.raises(
        PlanError,
        match=pattern(
            "milp.checking.cap_exceeded",
            cap=wording("milp.problem.cap_of_account", account="physics"),
            nodes_max=4,
            total=5,
        ),
    ):
        verified(capped, a=("n0", "n6"), b=(), c=("n3", "n4", "n5"))


def test_part_of_a_group_is_refused(trainer, problem) -> None:
    grouped = replace(problem(4, trainer("a"), trainer("b")), groups=(NodeGroup("leaf", ("n0", "n1")),))
    verified(grouped, a=("n0", "n1", "n2"), b=("n3",))
    with pytest.raises(
        PlanError,
        match=pattern("milp.checking.part_of_group", name="a", name2="leaf")
        + "; "
        + pattern("milp.checking.part_of_group", name="b", name2="leaf"),
    ):
        verified(grouped, a=("n0",), b=("n1",))
