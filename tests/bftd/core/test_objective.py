"""The curve over the forward-looking time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import milp
from bftd.core import objective

CURVES = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=8).map(
    lambda gains: ((0, 0.0), *((size, sum(gains[:size])) for size in range(1, len(gains) + 1)))
)


@given(CURVES, st.integers(0, 10), st.floats(0.0, 2.0))
def test_a_warm_up_changes_nothing_up_to_the_nodes_held_and_never_turns_a_gain_into_a_loss(
    points: objective.Points, held: int, share: float
) -> None:
    changed = objective.after_warm_up(points, held, share)
    now = milp.interpolate(points, held)
    for nodes in range(points[-1][0] + 1):
        before, after = milp.interpolate(points, nodes), milp.interpolate(changed, nodes)
        if nodes <= held:
            assert abs(after - before) <= 1e-9 * max(1.0, before)
        else:
            assert now - 1e-9 * max(1.0, now) <= after <= before + 1e-9 * max(1.0, before)


def test_half_of_the_time_for_warming_up_halves_the_gain() -> None:
    points = ((0, 0.0), (1, 10.0), (4, 40.0))
    assert objective.after_warm_up(points, 2, 0.5) == ((0, 0.0), (1, 10.0), (2, 20.0), (4, 30.0))
