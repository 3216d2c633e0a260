"""The price of favouring trainers that wait, on a pool of a few nodes for an hour."""

from __future__ import annotations

import pytest

from benchmarks.curves import learning, waiting


def test_fewer_trainers_wait_and_nothing_is_lost_where_all_scale_alike() -> None:
    curve = tuple((size, 100.0 * size) for size in range(9))
    trainers = tuple(
        learning.SimTrainer(f"J{place}-any", 1, 8, 1e15, curve, curve, submit_s=600.0 * place) for place in range(3)
    )
    for objective in ("efficiency", "throughput"):
        found = waiting.compared(learning.quiet(8, 1.0), trainers, objective)
        without, favoured = found["waiting"]
        assert favoured < without
        assert found["outcome"] == pytest.approx(0.0, abs=0.01)


def test_an_outcome_that_loses_more_than_the_bound_is_marked() -> None:
    found = [
        {"trainers": "hpo", "objective": "efficiency", "outcome": lost, "waiting": [2.0, 1.0]}
        for lost in (-0.009, -0.011)
    ]
    assert ["missed" in line for line in waiting.waits(found).splitlines()[2:]] == [False, True]
