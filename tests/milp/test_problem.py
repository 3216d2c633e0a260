"""Problems, their caps, groups and curves: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp import Curve, NodeSpec, Problem, ProblemError, problem_from_json, problem_to_json
from milp.curves import slowest
from milp.problem import Cap, NodeGroup
from tests.support.messages import pattern, wording

NODES = ("n0", "n1", "n2", "n3")
FAST, SLOW = Curve((0, 4), (0.0, 8.0)), Curve((0, 4), (0.0, 2.0))


def with_limits(**limits: Any) -> dict[str, Any]:
    """An otherwise empty problem on four nodes."""
    return {"nodes": list(NODES), "t_fwd_s": 120, "trainers": [], **limits}


def test_a_cap_of_a_user_covers_that_users_trainers_on_any_account() -> None:
    cap = Cap(4, user="alice")
    assert cap.covers("alice", "physics")
    assert cap.covers("alice", "")
    assert not cap.covers("bob", "physics")
    assert not cap.covers("", "alice")


def test_a_cap_of_an_account_covers_all_its_users() -> None:
    cap = Cap(4, account="physics")
    assert cap.covers("alice", "physics")
    assert cap.covers("bob", "physics")
    assert not cap.covers("physics", "")


def test_a_trainer_without_user_and_account_is_under_no_cap() -> None:
    assert not Cap(4, user="alice").covers("", "")
    assert not Cap(4, account="physics").covers("", "")


def test_limits_are_read_from_a_problem_file_and_written_back() -> None:
    data = with_limits(
        caps=[{"user": "alice", "nodes_max": 2}, {"account": "physics", "nodes_max": 0}],
        groups=[{"name": "leaf0", "nodes": ["n0", "n2"]}, {"name": "leaf1", "nodes": ["n1"]}],
    )
    problem = problem_from_json(data)
    assert problem.caps == (Cap(2, user="alice"), Cap(0, account="physics"))
    assert problem.groups == (NodeGroup("leaf0", ("n0", "n2")), NodeGroup("leaf1", ("n1",)))
    assert problem_to_json(problem) == data


def test_a_user_and_an_account_of_the_same_name_may_both_be_capped() -> None:
    data = with_limits(caps=[{"user": "chem", "nodes_max": 2}, {"account": "chem", "nodes_max": 3}])
    assert len(problem_from_json(data).caps) == 2


@pytest.mark.parametrize(
    ("cap", "message"),
    [
        (
            {"user": "alice", "nodes_max": -1},
            wording(
                "milp.fields.too_small",
                where=wording("milp.problem.cap_of_user", user="alice: nodes_max"),
                at_least=0,
                shown=-1,
            ),
        ),
        (
            {"user": "alice", "nodes_max": 1.5},
            wording(
                "milp.fields.not_whole", where=wording("milp.problem.cap_of_user", user="alice: nodes_max"), shown=1.5
            ),
        ),
        (
            {"account": "physics", "nodes_max": True},
            wording(
                "milp.fields.not_whole",
                where=wording("milp.problem.cap_of_account", account="physics: nodes_max"),
                shown="True",
            ),
        ),
        ({"user": "alice", "account": "physics", "nodes_max": 1}, wording("milp.problem.cap_of_neither")),
        ({"nodes_max": 1}, wording("milp.problem.cap_of_neither")),
        ({"user": "", "nodes_max": 1}, wording("milp.problem.cap_of_neither")),
        ({"user": 7, "nodes_max": 1}, wording("milp.fields.not_a_string", where="cap: user", shown=7)),
        ({"account": None, "nodes_max": 1}, wording("milp.fields.not_a_string", where="cap: account", shown="None")),
        ({"user": "alice"}, wording("milp.fields.missing_field", where="cap", key="nodes_max")),
        (
            {"user": "alice", "node_max": 1},
            wording(
                "milp.fields.unknown_field",
                where="cap",
                key="node_max",
                hint=wording("sizing.fields.hint", near="'nodes_max'"),
            ),
        ),
        ("alice", wording("milp.fields.not_an_object", where="cap", name="str")),
    ],
)
def test_a_bad_cap_is_one_line_that_names_whose_it_is(cap: object, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        problem_from_json(with_limits(caps=[cap]))
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"name": "leaf0", "nodes": []}], wording("milp.problem.group_empty", name="leaf0")),
        (
            [{"name": "leaf0", "nodes": ["n0", "n0"]}],
            wording("milp.problem.group_node_twice", name="leaf0", repeated="n0"),
        ),
        ([{"name": "leaf0", "nodes": ["n9"]}], wording("milp.problem.group_node_unknown", name="leaf0", node="n9")),
        ([{"name": "leaf0", "nodes": [3]}], wording("milp.fields.empty_string", where="group leaf0: nodes", shown=3)),
        (
            [{"name": "leaf0", "nodes": [["n0"]]}],
            wording("milp.fields.empty_string", where="group leaf0: nodes", shown="['n0']"),
        ),
        ([{"name": "", "nodes": ["n0"]}], wording("milp.fields.empty_string", where="group: name", shown="''")),
        ([{"name": 5, "nodes": ["n0"]}], wording("milp.fields.empty_string", where="group: name", shown=5)),
        ([{"nodes": ["n0"]}], wording("milp.fields.missing_field", where="group", key="name")),
        ([{"name": "leaf0"}], wording("milp.fields.missing_field", where="group", key="nodes")),
        (
            [{"name": "leaf0", "node": ["n0"]}],
            wording(
                "milp.fields.unknown_field",
                where="group",
                key="node",
                hint=wording("sizing.fields.hint", near="'nodes'"),
            ),
        ),
        (["n0"], wording("milp.fields.not_an_object", where="group", name="str")),
        (
            [{"name": "leaf0", "nodes": ["n0", "n1"]}, {"name": "leaf1", "nodes": ["n2", "n1"]}],
            wording("milp.problem.node_in_two_groups", name="leaf1", node="n1", group_of="leaf0"),
        ),
        ([{"name": "leaf0", "nodes": ["n0"]}] * 2, wording("milp.problem.group_twice", name="leaf0")),
    ],
)
def test_a_bad_group_is_one_line_that_names_it_and_the_node(groups: list[object], message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        problem_from_json(with_limits(groups=groups))
    assert str(caught.value) == message


def test_a_second_cap_of_the_same_user_is_refused() -> None:
    caps = [
        {"user": "alice", "nodes_max": 2},
        {"account": "physics", "nodes_max": 2},
        {"user": "alice", "nodes_max": 3},
    ]
    with pytest.raises(
        ProblemError,
        match="^" + pattern("milp.problem.cap_twice", Cap=wording("milp.problem.cap_of_user", user="alice")) + "$",
    ):
        problem_from_json(with_limits(caps=caps))


@pytest.mark.parametrize("field", ["caps", "groups"])
def test_limits_that_are_no_array_are_refused(field: str) -> None:
    with pytest.raises(ProblemError, match="^" + pattern("milp.fields.not_an_array", where=field, name="dict") + "$"):
        problem_from_json(with_limits(**{field: {}}))


def test_limits_built_in_code_are_checked_like_those_from_json() -> None:
    nodes = tuple(map(NodeSpec, NODES))
    with pytest.raises(
        ProblemError, match="^" + pattern("milp.problem.group_node_unknown", name="leaf0", node="n9") + "$"
    ):
        Problem(nodes, (), 120.0, groups=(NodeGroup("leaf0", ("n9",)),))
    with pytest.raises(
        ProblemError,
        match="^"
        + pattern("milp.problem.cap_twice", Cap=wording("milp.problem.cap_of_account", account="physics"))
        + "$",
    ):
        Problem(nodes, (), 120.0, caps=(Cap(1, account="physics"), Cap(2, account="physics")))


def test_a_trainer_runs_at_the_curve_of_its_class_and_elsewhere_at_its_general_one(trainer) -> None:
    own = trainer(class_curves={"h100": FAST})
    assert own.curve_on({"h100"}) == FAST
    assert own.curve_on({"a100"}) == own.curve
    assert own.curve_on(()) == own.curve


def test_a_trainer_on_several_classes_runs_at_the_rate_of_the_slowest(trainer) -> None:
    mixed = trainer(class_curves={"h100": FAST, "k80": SLOW}, mixes_classes=True)
    for count in range(10):
        assert mixed.curve_on({"h100", "k80"})(count) == SLOW(count)
        assert mixed.curve_on({"h100", "a100"})(count) == min(FAST(count), mixed.curve(count))


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=3))
@settings(deadline=None, max_examples=100)
def test_the_slowest_of_curves_is_their_minimum_at_every_count(tops: list[tuple[float, float, float]]) -> None:
    curves = [Curve((0, 2, 3 + place, 9), (0.0, *values)) for place, values in enumerate(tops)]
    lowest = slowest(curves)
    for count in range(12):
        assert lowest(count) == pytest.approx(min(curve(count) for curve in curves), abs=1e-9)


def test_what_a_trainer_earns_now_is_by_the_class_of_its_nodes_and_nothing_below_nodes_min(trainer) -> None:
    nodes = tuple(NodeSpec(f"n{i}", "h100" if i < 2 else "k80") for i in range(4))
    curves = {"h100": FAST, "k80": SLOW}
    held = (
        trainer("on_h100", class_curves=curves, current=("n0",), weight=3.0),
        trainer("on_both", class_curves=curves, current=("n1", "n2"), mixes_classes=True),
        trainer("cut", class_curves=curves, current=("n3",), nodes_min=2),
        trainer("waits", class_curves=curves),
    )
    earns = Problem(nodes, held, 120.0).earns_now
    assert earns == {"on_h100": 3.0 * 2.0, "on_both": 1.0, "cut": 0.0, "waits": 0.0}


def test_classes_are_in_the_order_of_the_nodes_and_known_by_node() -> None:
    problem = Problem((NodeSpec("n0", "b"), NodeSpec("n1", "a"), NodeSpec("n2", "b")), (), 1.0)
    assert problem.classes == ("b", "a")
    assert problem.class_of == {"n0": "b", "n1": "a", "n2": "b"}
    assert problem.classes_of(["n2", "n0"]) == {"b"}
    assert problem.classes_of(["n2", "n1"]) == {"a", "b"}
    assert problem.classes_of([]) == frozenset()


@pytest.mark.parametrize(("at_most", "largest"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (7, 4), (100, 8)])
def test_the_largest_allowed_size_honours_nodes_min_nodes_max_and_sizes(trainer, at_most: int, largest: int) -> None:
    assert trainer(nodes_min=2, sizes=(1, 2, 4, 8, 16)).largest_allowed(at_most) == largest
