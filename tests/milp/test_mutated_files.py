"""PROBLEM.json with values that nobody meant: it is solved, or refused in one line, and nothing else comes out."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp import Curve, ProblemError, TrainerSpec, problem_from_json, solve
from milp.errors import MilpError
from tests.fuzz.mutations import nested, places
from tests.milp.test_files import GOOD, curve, with_a
from tests.support.messages import pattern, wording

SEVERAL_CLASSES: dict[str, Any] = {
    **deepcopy(GOOD),
    "nodes": ["n0", "n1", {"name": "n2", "class": "h100"}, {"name": "n3", "class": "h100"}],
    "caps": [{"user": "alice", "nodes_max": 2}],
}
SEVERAL_CLASSES["trainers"][1] |= {
    "sizes": [1, 2],
    "weight": 2,
    "user": "alice",
    "class_curves": {"h100": {"nodes": [0, 1], "objective": [0, 3]}},
}
ODD = st.one_of(
    st.sampled_from(
        [10**30, 10**18, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, 10**5000, -(10**5000), 10**15, 2**53 + 1]
    ),
    st.sampled_from([1e29, 1e30, 1e308, 5e-324, math.nan, math.inf, -1, 0, 0.5, True, None, "", "n0", "\n", "\ud800"]),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)),
    st.integers(1, 900).map(lambda depth: nested(depth)),
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    data = deepcopy(draw(st.sampled_from([GOOD, SEVERAL_CLASSES])))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(places(data))))
        place: Any = data
        for key in way:
            place = place[key]
        if draw(st.booleans()) or isinstance(place, list):
            place[last] = draw(ODD)
        else:
            del place[last]
    return data


@settings(deadline=None)
@given(mutated())
def test_a_file_with_any_value_is_solved_or_refused_in_one_line(data: dict[str, Any]) -> None:
    refusal: MilpError | None = None
    try:
        solve(problem_from_json(data), time_limit_s=5.0)
    except MilpError as error:
        refusal = error
    assert refusal is None or (refusal.exit_code == 2 and len(str(refusal)) < 500)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            with_a(nodes_max=10**30),
            wording("milp.fields.too_many_nodes", where="trainer a: nodes_max", MOST_NODES="1e+15"),
        ),
        (
            with_a(nodes_max=2**63),
            wording("milp.fields.too_many_nodes", where="trainer a: nodes_max", MOST_NODES="1e+15"),
        ),
        (
            curve([0, 1, 2**64], [0, 1, 2]),
            wording("milp.fields.too_many_nodes", where="trainer a: curve.nodes", MOST_NODES="1e+15"),
        ),
        (
            with_a(nodes_min=-(10**5000)),
            wording("milp.fields.too_small", where="trainer a: nodes_min", at_least=1, shown="a number of 16610 bits"),
        ),
        (
            with_a(name=10**5000),
            wording("milp.fields.empty_string", where="trainer: name", shown="a number of 16610 bits"),
        ),
    ],
)
def test_regression_counts_beyond_64_bits_are_refused_and_no_error_of_numpy(data: object, message: str) -> None:
    with pytest.raises(ProblemError) as caught:
        problem_from_json(data)
    assert str(caught.value) == message


def test_regression_an_amount_that_is_a_long_whole_number_is_the_float_that_it_means() -> None:
    plan = solve(problem_from_json(with_a(up_cost_s=10**25)))
    assert plan.counts == {"a": 1, "b": 1}, "to grow costs a more than it brings"
    with pytest.raises(
        ProblemError, match="^" + pattern("milp.fields.too_long", where="trainer a: weight", float="1e+20") + "$"
    ):
        TrainerSpec("a", 1, 4, 30.0, 5.0, Curve((0, 1), (0.0, 1.0)), weight=10**20)
