"""One interpolation for all curves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import milp
from milp import Curve
from tests.milp.instances import curves


@pytest.mark.parametrize(
    ("nodes", "value"), [(0, 3.0), (1, 3.0), (2, 4.0), (3, 5.0), (5, 3.5), (7, 2.0), (8, 2.0), (1000, 2.0)]
)
def test_points_are_joined_by_lines_and_constant_outside(nodes: int, value: float) -> None:
    assert milp.interpolate(((1, 3.0), (3, 5.0), (7, 2.0)), nodes) == value


def test_no_points_are_worth_nothing_and_one_is_worth_the_same_everywhere() -> None:
    assert milp.interpolate((), 4) == 0.0
    assert [milp.interpolate(((2, 5.0),), nodes) for nodes in (0, 2, 9)] == [5.0, 5.0, 5.0]


@settings(max_examples=100, deadline=None)
@given(curves())
def test_a_curve_is_its_points(curve: Curve) -> None:
    assert curve.points == tuple(zip(curve.nodes, curve.values, strict=True))
    for count in range(12):
        assert curve(count) == milp.interpolate(curve.points, count)
    for nodes, value in curve.points:
        assert curve(nodes) == value
