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
        (curve([1, 2], [1, 2]), "trainer a: curve must start with 0 nodes at objective 0"),
        (curve([0, 2], [1, 2]), "trainer a: curve must start with 0 nodes at objective 0"),
        (curve([], []), "trainer a: curve must start with 0 nodes at objective 0"),
        (curve([0, 2, 1], [0, 1, 2]), "trainer a: curve.nodes must be strictly increasing, but 1 follows 2"),
        (curve([0, 1, 1], [0, 1, 2]), "trainer a: curve.nodes must be strictly increasing, but 1 follows 1"),
        (curve([0, 1.5], [0, 1]), "trainer a: curve.nodes must be a whole number, not 1.5"),
        (curve([0, 1], [0, math.nan]), "trainer a: curve.objective must be finite, not nan"),
        (curve([0, 1], [0, -1]), "trainer a: curve.objective must not be negative, but is -1"),
        (curve([0, 1], [0, "x"]), "trainer a: curve.objective must be a number, not 'x'"),
        (curve([0, 1], [0]), "trainer a: curve: 2 node counts but 1 objective values"),
        (with_a(curve={"nodes": [0]}), "trainer a: curve lacks the field 'objective'"),
        (with_a(curve=3), "trainer a: curve must be a JSON object, not int"),
        (with_a(up_cost_s=-1), "trainer a: up_cost_s must not be negative, but is -1"),
        (with_a(down_cost_s=math.inf), "trainer a: down_cost_s must be finite, not inf"),
        (with_a(up_cost_s=math.nan), "trainer a: up_cost_s must be finite, not nan"),
        (with_a(down_cost_s="5"), "trainer a: down_cost_s must be a number, not '5'"),
        (with_a(down_cost_s=False), "trainer a: down_cost_s must be a number, not False"),
        (with_a(weight=1e31), "trainer a: weight is above 1e+30: choose another unit"),
        (with_a(up_cost_s=10**400), "trainer a: up_cost_s is above 1e+30: choose another unit"),
        (curve([0, 1], [0, 2e30]), "trainer a: curve.objective is above 1e+30: choose another unit"),
        (with_a(weight=-0.5), "trainer a: weight must not be negative, but is -0.5"),
        (with_a(weight=None), "trainer a: weight must be a number, not None"),
        (with_a(nodes_min=5), "trainer a: nodes_min 5 is above nodes_max 4"),
        (with_a(nodes_min=0), "trainer a: nodes_min must be 1 or more, not 0"),
        (with_a(nodes_max=True), "trainer a: nodes_max must be a whole number, not True"),
        (with_a(current=["n9"]), "trainer a: current node n9 is not among the nodes"),
        (with_a(current=["n0", "n0"]), "trainer a: current lists node n0 twice"),
        (with_a(current="n0"), "trainer a: current must be a JSON array, not str"),
        (with_a(current=[["n0"]]), "trainer a: current must be a non-empty string, not ['n0']"),
        (with_a(sizes=[8, 16]), "trainer a: sizes has none between nodes_min 1 and nodes_max 4: add one"),
        (with_a(current=["n0", ""]), "trainer a: current must be a non-empty string, not ''"),
        (with_a(sizes=[]), "trainer a: sizes has none between nodes_min 1 and nodes_max 4: add one"),
        (with_a(sizes=4), "trainer a: sizes must be a JSON array, not int"),
        (with_a(sizes=[0, 2]), "trainer a: sizes must be 1 or more, not 0"),
        (with_a(sizes=[1, 2.0]), "trainer a: sizes must be a whole number, not 2.0"),
        (with_a(sizes=[4, 2]), "trainer a: sizes must be strictly increasing, but 2 follows 4"),
        (with_a(user=3), "trainer a: user must be a string, not 3"),
        (with_a(account=["x"]), "trainer a: account must be a string, not ['x']"),
        (with_a(mixes_classes="yes"), "trainer a: mixes_classes must be true or false, not 'yes'"),
        (with_a(mixes_classes=1), "trainer a: mixes_classes must be true or false, not 1"),
        (with_a(class_curves=[]), "trainer a: class_curves must be a JSON object, not list"),
        (
            with_a(class_curves={"h100": {"nodes": [0, 2, 1], "objective": [0, 1, 2]}}),
            "trainer a: class_curves h100: curve.nodes must be strictly increasing, but 1 follows 2",
        ),
        (
            with_a(class_curves={"h100": {"nodes": [1], "objective": [1]}}),
            "trainer a: class_curves h100: curve must start with 0 nodes at objective 0",
        ),
        (
            with_a(class_curves={"h100": {"node": [0], "objective": [0]}}),
            "trainer a: class_curves h100: curve has an unknown field 'node': did you mean 'nodes'?",
        ),
        (
            with_a(class_curves={"h100": None}),
            "trainer a: class_curves h100: curve must be a JSON object, not NoneType",
        ),
        (with_a(node_max=4), "trainer a has an unknown field 'node_max': did you mean 'nodes_max'?"),
        (without_a("nodes_max"), "trainer a lacks the field 'nodes_max'"),
        (without_a("name"), "trainer lacks the field 'name'"),
        (with_a(name="b"), "trainer b: name is there twice"),
        (with_a(name=""), "trainer: name must be a non-empty string, not ''"),
        ({**GOOD, "nodes": ["n0", "n0"]}, "nodes: name n0 is there twice"),
        ({**GOOD, "nodes": [3]}, "node must be a JSON object, not int"),
        ({**GOOD, "nodes": [{"name": "n0", "class": 3}]}, "node n0: class must be a string, not 3"),
        ({**GOOD, "nodes": [{"name": "n0", "gpu": "a100"}]}, "node has an unknown field 'gpu': known are name, class"),
        ({**GOOD, "nodes": [""]}, "node: name must be a non-empty string, not ''"),
        ({**GOOD, "nodes": "n0"}, "nodes must be a JSON array, not str"),
        ({**GOOD, "t_fwd_s": "120"}, "t_fwd_s must be a number, not '120'"),
        ({**GOOD, "t_fwd": 120}, "the problem has an unknown field 't_fwd': did you mean 't_fwd_s'?"),
        ({**GOOD, "t_fwd_s": -1}, "t_fwd_s must not be negative, but is -1"),
        ({**GOOD, "t_fwd_s": math.nan}, "t_fwd_s must be finite, not nan"),
        ({**GOOD, "trainers": {}}, "trainers must be a JSON array, not dict"),
        ({"nodes": []}, "the problem lacks the field 't_fwd_s'"),
        ([], "the problem must be a JSON object, not list"),
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
    with pytest.raises(ProblemError, match=r"^trainer b: current node n0 is held by trainer a too$"):
        problem_from_json(data)


def test_specs_built_in_code_are_checked_like_those_from_json() -> None:
    with pytest.raises(ProblemError, match=r"^curve\.objective must be finite"):
        Curve((0, 1), (0.0, math.nan))
    with pytest.raises(ProblemError, match=r"^trainer a: nodes_min 3 is above nodes_max 2$"):
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
