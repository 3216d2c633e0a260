"""PROBLEM.json: read, written back, and refused in one line that names the trainer and the field."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

import pytest

from milp import (
    Curve,
    ProblemError,
    TrainerSpec,
    plan_to_json,
    problem_from_json,
    problem_to_json,
    solve,
)
from tests.support.messages import pattern, wording

GOOD: dict[str, Any] = {
    "nodes": ["n0", {"name": "n1"}, {"name": "n2", "class": ""}],
    "t_fwd_s": 120,
    "trainers": [
        {
            "name": "a",
            "nodes_min": 1,
            "nodes_max": 4,
            "up_cost_s": 30,
            "down_cost_s": 5,
            "curve": {"nodes": [0, 1, 2, 4], "objective": [0, 1.0, 1.9, 3.5]},
            "current": ["n0"],
        },
        {
            "name": "b",
            "nodes_min": 1,
            "nodes_max": 4,
            "up_cost_s": 30,
            "down_cost_s": 5,
            "curve": {"nodes": [0, 1], "objective": [0, 1.0]},
        },
    ],
}


def test_a_problem_file_is_read_solved_and_answered_in_json() -> None:
    answer = json.loads(json.dumps(plan_to_json(solve(problem_from_json(GOOD)))))
    # 2 nodes for a: 120 * 1.9 - 1.0 * 30; 1 for b: 120.
    assert answer["objective"] == pytest.approx(120 * 1.9 - 30 + 120)
    assert answer["assignment"] == {"a": ["n0", "n1"], "b": ["n2"]}
    assert answer["counts"] == {"a": 2, "b": 1}
    assert (answer["status"], answer["solver"], answer["gap"]) == ("optimal", "exact", 0)
    assert answer["wall_ms"] > 0
    assert answer["reasons"].keys() == {"a", "b"}


def with_a(**changes: Any) -> dict[str, Any]:
    data = deepcopy(GOOD)
    data["trainers"][0].update(changes)
    return data


def without_a(field: str) -> dict[str, Any]:
    data = deepcopy(GOOD)
    del data["trainers"][0][field]
    return data


def curve(nodes: list[Any], values: list[Any]) -> dict[str, Any]:
    return with_a(curve={"nodes": nodes, "objective": values})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (curve([1, 2], [1, 2]), "trainer a: " + wording("milp.curves.start")),
        (curve([0, 2], [1, 2]), "trainer a: " + wording("milp.curves.start")),
        (curve([], []), "trainer a: " + wording("milp.curves.start")),
        (
            curve([0, 2, 1], [0, 1, 2]),
            wording("milp.fields.not_increasing", where="trainer a: curve.nodes", after=1, before=2),
        ),
        (
            curve([0, 1, 1], [0, 1, 2]),
            wording("milp.fields.not_increasing", where="trainer a: curve.nodes", after=1, before=1),
        ),
        (curve([0, 1.5], [0, 1]), wording("milp.fields.not_whole", where="trainer a: curve.nodes", shown=1.5)),
        (
            curve([0, 1], [0, math.nan]),
            wording("milp.fields.not_finite", where="trainer a: curve.objective", value="nan"),
        ),
        (curve([0, 1], [0, -1]), wording("milp.fields.negative", where="trainer a: curve.objective", shown=-1)),
        (curve([0, 1], [0, "x"]), wording("milp.fields.not_a_number", where="trainer a: curve.objective", shown="'x'")),
        (curve([0, 1], [0]), "trainer a: " + wording("milp.curves.lengths_differ", nodes=2, values=1)),
        (with_a(curve={"nodes": [0]}), wording("milp.fields.missing_field", where="trainer a: curve", key="objective")),
        (with_a(curve=3), wording("milp.fields.not_an_object", where="trainer a: curve", name="int")),
        (with_a(up_cost_s=-1), wording("milp.fields.negative", where="trainer a: up_cost_s", shown=-1)),
        (with_a(down_cost_s=math.inf), wording("milp.fields.not_finite", where="trainer a: down_cost_s", value="inf")),
        (with_a(up_cost_s=math.nan), wording("milp.fields.not_finite", where="trainer a: up_cost_s", value="nan")),
        (with_a(down_cost_s="5"), wording("milp.fields.not_a_number", where="trainer a: down_cost_s", shown="'5'")),
        (with_a(down_cost_s=False), wording("milp.fields.not_a_number", where="trainer a: down_cost_s", shown="False")),
        (with_a(weight=1e31), wording("milp.fields.too_large", where="trainer a: weight", LARGEST="1e+30")),
        (with_a(up_cost_s=10**400), wording("milp.fields.too_large", where="trainer a: up_cost_s", LARGEST="1e+30")),
        (
            curve([0, 1], [0, 2e30]),
            wording("milp.fields.too_large", where="trainer a: curve.objective", LARGEST="1e+30"),
        ),
        (with_a(weight=-0.5), wording("milp.fields.negative", where="trainer a: weight", shown=-0.5)),
        (with_a(weight=None), wording("milp.fields.not_a_number", where="trainer a: weight", shown="None")),
        (with_a(nodes_min=5), wording("milp.problem.min_above_max", here="trainer a", nodes_min=5, nodes_max=4)),
        (with_a(nodes_min=0), wording("milp.fields.too_small", where="trainer a: nodes_min", at_least=1, shown=0)),
        (with_a(nodes_max=True), wording("milp.fields.not_whole", where="trainer a: nodes_max", shown="True")),
        (with_a(current=["n9"]), wording("milp.problem.current_unknown", name="a", node="n9")),
        (with_a(current=["n0", "n0"]), wording("milp.problem.current_twice", here="trainer a", current="n0")),
        (with_a(current="n0"), wording("milp.fields.not_an_array", where="trainer a: current", name="str")),
        (with_a(current=[["n0"]]), wording("milp.fields.empty_string", where="trainer a: current", shown="['n0']")),
        (
            with_a(sizes=[8, 16]),
            wording("milp.problem.no_size_between", where="trainer a: sizes", nodes_min=1, nodes_max=4),
        ),
        (with_a(current=["n0", ""]), wording("milp.fields.empty_string", where="trainer a: current", shown="''")),
        (with_a(sizes=[]), wording("milp.problem.no_size_between", where="trainer a: sizes", nodes_min=1, nodes_max=4)),
        (with_a(sizes=4), wording("milp.fields.not_an_array", where="trainer a: sizes", name="int")),
        (with_a(sizes=[0, 2]), wording("milp.fields.too_small", where="trainer a: sizes", at_least=1, shown=0)),
        (with_a(sizes=[1, 2.0]), wording("milp.fields.not_whole", where="trainer a: sizes", shown=2.0)),
        (with_a(sizes=[4, 2]), wording("milp.fields.not_increasing", where="trainer a: sizes", after=2, before=4)),
        (with_a(user=3), wording("milp.fields.not_a_string", where="trainer a: user", shown=3)),
        (with_a(account=["x"]), wording("milp.fields.not_a_string", where="trainer a: account", shown="['x']")),
        (with_a(mixes_classes="yes"), wording("milp.problem.mixes_malformed", here="trainer a", mixes_classes="yes")),
        (with_a(mixes_classes=1), wording("milp.problem.mixes_malformed", here="trainer a", mixes_classes=1)),
        (with_a(class_curves=[]), wording("milp.fields.not_an_object", where="trainer a: class_curves", name="list")),
        (
            with_a(class_curves={"h100": {"nodes": [0, 2, 1], "objective": [0, 1, 2]}}),
            wording("milp.fields.not_increasing", where="trainer a: class_curves h100: curve.nodes", after=1, before=2),
        ),
        (
            with_a(class_curves={"h100": {"nodes": [1], "objective": [1]}}),
            "trainer a: class_curves h100: " + wording("milp.curves.start"),
        ),
        (
            with_a(class_curves={"h100": {"node": [0], "objective": [0]}}),
            wording(
                "milp.fields.unknown_field",
                where="trainer a: class_curves h100: curve",
                key="node",
                hint=wording("sizing.fields.hint", near="'nodes'"),
            ),
        ),
        (
            with_a(class_curves={"h100": None}),
            wording("milp.fields.not_an_object", where="trainer a: class_curves h100: curve", name="NoneType"),
        ),
        (
            with_a(node_max=4),
            wording(
                "milp.fields.unknown_field",
                where="trainer a",
                key="node_max",
                hint=wording("sizing.fields.hint", near="'nodes_max'"),
            ),
        ),
        (without_a("nodes_max"), wording("milp.fields.missing_field", where="trainer a", key="nodes_max")),
        (without_a("name"), wording("milp.fields.missing_field", where="trainer", key="name")),
        (with_a(name="b"), wording("milp.problem.trainer_twice", names="b")),
        (with_a(name=""), wording("milp.fields.empty_string", where="trainer: name", shown="''")),
        ({**GOOD, "nodes": ["n0", "n0"]}, wording("milp.problem.node_twice", name="n0")),
        ({**GOOD, "nodes": [3]}, wording("milp.fields.not_an_object", where="node", name="int")),
        (
            {**GOOD, "nodes": [{"name": "n0", "class": 3}]},
            wording("milp.fields.not_a_string", where="node n0: class", shown=3),
        ),
        (
            {**GOOD, "nodes": [{"name": "n0", "gpu": "a100"}]},
            wording(
                "milp.fields.unknown_field",
                where="node",
                key="gpu",
                hint=wording("milp.fields.known", known="name, class"),
            ),
        ),
        ({**GOOD, "nodes": [""]}, wording("milp.fields.empty_string", where="node: name", shown="''")),
        ({**GOOD, "nodes": "n0"}, wording("milp.fields.not_an_array", where="nodes", name="str")),
        ({**GOOD, "t_fwd_s": "120"}, wording("milp.fields.not_a_number", where="t_fwd_s", shown="'120'")),
        (
            {**GOOD, "t_fwd": 120},
            wording(
                "milp.fields.unknown_field",
                where="the problem",
                key="t_fwd",
                hint=wording("sizing.fields.hint", near="'t_fwd_s'"),
            ),
        ),
        ({**GOOD, "t_fwd_s": -1}, wording("milp.fields.negative", where="t_fwd_s", shown=-1)),
        ({**GOOD, "t_fwd_s": math.nan}, wording("milp.fields.not_finite", where="t_fwd_s", value="nan")),
        ({**GOOD, "trainers": {}}, wording("milp.fields.not_an_array", where="trainers", name="dict")),
        ({"nodes": []}, wording("milp.fields.missing_field", where="the problem", key="t_fwd_s")),
        ([], wording("milp.fields.not_an_object", where="the problem", name="list")),
    ],
)
def test_bad_input_is_one_line_that_names_the_trainer_and_the_field(data: object, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        problem_from_json(data)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_a_node_held_by_two_trainers_names_both() -> None:
    data = with_a()
    data["trainers"][1]["current"] = ["n0"]
    with pytest.raises(
        ProblemError, match="^" + pattern("milp.problem.held_twice", holders="b", node="n0", holders2="a") + "$"
    ):
        problem_from_json(data)


def test_specs_built_in_code_are_checked_like_those_from_json() -> None:
    with pytest.raises(ProblemError, match="^" + pattern("milp.fields.not_finite", where="curve.objective")):
        Curve((0, 1), (0.0, math.nan))
    with pytest.raises(
        ProblemError,
        match="^" + pattern("milp.problem.min_above_max", here="trainer a", nodes_min=3, nodes_max=2) + "$",
    ):
        TrainerSpec("a", 3, 2, 0.0, 0.0, Curve((0,), (0.0,)))


def test_a_problem_with_every_field_is_written_as_it_was_read() -> None:
    data = with_a(
        sizes=[1, 2, 4],
        weight=2.5,
        class_curves={"h100": {"nodes": [0, 4], "objective": [0.0, 8.0]}},
        mixes_classes=True,
        user="alice",
        account="physics",
    )
    data["nodes"] = ["n0", {"name": "n1", "class": "h100"}]
    del data["trainers"][1]
    problem = problem_from_json(data)
    assert json.loads(json.dumps(problem_to_json(problem))) == data
    assert problem_from_json(problem_to_json(problem)) == problem


def test_what_is_left_out_has_its_default() -> None:
    trainer = problem_from_json(GOOD).trainers[1]
    assert (trainer.current, trainer.sizes, trainer.weight) == ((), None, 1.0)
    assert (trainer.class_curves, trainer.mixes_classes, trainer.user, trainer.account) == ({}, False, "", "")
    assert "class_curves" not in problem_to_json(problem_from_json(GOOD))["trainers"][1]
