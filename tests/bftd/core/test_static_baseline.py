"""What trainers would make of dedicated nodes, held against all allocations there are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.static_baseline import WaitingTrainer, best_rate
from milp import interpolate

TWO = (
    WaitingTrainer(1, 4, None, 1.0, ((0, 0.0), (1, 10.0), (4, 25.0))),
    WaitingTrainer(2, 2, None, 1.0, ((0, 0.0), (2, 18.0))),
)


@pytest.mark.parametrize(("nodes", "rate"), [(0, 0.0), (1, 10.0), (2, 18.0), (3, 28.0), (6, 43.0), (600, 43.0)])
def test_the_best_allocation_is_taken(nodes: int, rate: float) -> None:
    assert best_rate(TWO, nodes, "throughput") == pytest.approx(rate)


def test_between_whole_numbers_of_nodes_it_is_linear() -> None:
    assert best_rate(TWO, 2.25, "throughput") == pytest.approx(18.0 + 0.25 * 10.0)


def test_by_efficiency_speed_ups_are_maximised_and_samples_are_told() -> None:
    small = WaitingTrainer(1, 1, None, 1.0, ((0, 0.0), (1, 1.0)))
    large = WaitingTrainer(1, 2, None, 1.0, ((0, 0.0), (1, 100.0), (2, 150.0)))
    assert best_rate((large, small), 2, "throughput") == 150.0
    assert best_rate((large, small), 2, "efficiency") == 101.0


def test_sizes_that_are_not_allowed_are_not_taken() -> None:
    only = WaitingTrainer(1, 4, (1, 4), 1.0, ((0, 0.0), (1, 10.0), (4, 40.0)))
    assert best_rate((only,), 3, "throughput") == 10.0


@given(
    curves=st.lists(st.lists(st.floats(0.5, 20.0), min_size=1, max_size=4), min_size=1, max_size=3),
    nodes=st.integers(0, 8),
)
@settings(max_examples=40)
def test_no_allocation_is_better(curves: list[list[float]], nodes: int) -> None:
    trainers = []
    for steps in curves:
        rates = [sum(steps[: count + 1]) for count in range(len(steps))]
        points = ((0, 0.0), *((count + 1, rate) for count, rate in enumerate(rates)))
        trainers.append(WaitingTrainer(1, len(steps), None, 1.0, points))
    all_of = product(*(range(item.high + 1) for item in trainers))
    made = (
        sum(interpolate(item.curve, count) for item, count in zip(trainers, counts, strict=True))
        for counts in all_of
        if sum(counts) <= nodes
    )
    assert best_rate(trainers, nodes, "throughput") == pytest.approx(max(made))
