"""The curve over the forward-looking time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milp
from bftd.core.model.domain import Settings
from bftd.core.planning import objective
from bftd.protocol.reports import ProgressReport
from tests.bftd.builders import NOW_S, Core, registration

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


@given(CURVES, st.sampled_from(["efficiency", "priority"]))
def test_no_speed_up_counts_for_more_than_the_number_of_nodes_unless_it_was_measured(
    points: objective.Points, name: str
) -> None:
    bounded, _ = objective.values(points, name, 1.0)
    measured, _ = objective.values(points, name, 1.0, measured=True)
    assert bounded == tuple((nodes, min(float(nodes), value)) for nodes, value in measured)


NAMES = [f"n{number}" for number in range(1, 9)]
HONEST = ((1, 90.0), (8, 720.0))
BENDING = ((1, 100.0), (2, 180.0), (4, 300.0), (8, 420.0))


def nodes_of_eve(curve: objective.Points, others: objective.Points, first: bool, told: tuple[float, ...] = ()) -> int:
    """The nodes that eve's trainer gets beside bob's, with this curve or with the rates that it reports."""
    core = Core(Settings())
    requests = [
        registration("eve", nodes_max=8, user="eve", curve=curve),
        registration("bob", nodes_max=8, user="bob", curve=others),
    ]
    for request in requests if first else reversed(requests):
        core.arrive(request)
    for size, rate in enumerate(told, 1):
        core.report("eve", ProgressReport(NOW_S, step=1, samples=1.0, samples_per_s=rate, nodes=size))
    core.pool(*NAMES)
    return len(core.nodes("eve"))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("others", [HONEST, BENDING])
@pytest.mark.parametrize(
    ("lie", "told"),
    [
        (((1, 1e12), (8, 8e12)), ()),
        (((1, 1e-6), (8, 1e12)), ()),
        (((1, 1e-6), (2, 1e12), (8, 1e12)), ()),
        ((), (1e-6, 1e12, 1e12, 1e12, 1e12, 1e12, 1e12, 1e12)),
    ],
)
def test_regression_a_curve_that_is_a_lie_got_its_trainer_everything(
    lie: objective.Points, told: tuple[float, ...], others: objective.Points, first: bool
) -> None:
    """By default it gets no more than an honest one that scales without loss."""
    assert nodes_of_eve(lie, others, first, told) <= nodes_of_eve(HONEST, others, first)
