"""The benchmark of saves, in a tiny form: the driver's own classes on a simulated clock."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.checkpoints import saves, stalls
from bftd.simulation import trace
from tests.support.messages import says

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("save_s", [0.1, 3.0, 12.0])
def test_regression_a_save_that_took_more_than_ten_seconds_left_one_step_until_the_next(save_s: float) -> None:
    outcome, told = saves.simulated(save_s, over_s=3600.0)
    assert outcome.saves > 3
    assert outcome.training >= saves.SHARE_WANTED
    assert says(told[:1], "elastic.saves.every")


@pytest.mark.parametrize("save_s", [0.1, 3.0])
def test_saves_and_lost_steps_are_near_those_of_who_knows_beforehand_how_often_nodes_are_lost(save_s: float) -> None:
    found = saves.replayed(save_s, 3600.0, seeds=2)
    assert found["over_best"] <= saves.OVER_MOST


def test_a_trainer_on_summit_loses_steps_when_one_of_its_nodes_leaves_and_takes_another_one() -> None:
    # a and b are idle from the start; a leaves at 100 and b at 200, c comes at 150 and leaves at 300
    recorded = trace.Trace(
        nodes=("a", "b", "c"),
        times_s=np.array([0.0, 0.0, 100.0, 150.0, 200.0, 300.0]),
        node=np.array([0, 1, 0, 2, 1, 2], dtype=np.int32),
        idle=np.array([True, True, False, True, False, False]),
        duration_s=1000.0,
    )
    assert saves.summit_losses(recorded, 3, seed=1) == [100.0, 200.0, 300.0]
    assert saves.summit_losses(recorded, 1, seed=1) in ([100.0, 200.0, 300.0], [200.0, 300.0])
    [row] = saves.on_summit(recorded, 3, [1.0], seeds=2)
    assert row["loss_every_s"] == pytest.approx(1000.0 / 3)
    assert row["over_best_least"] <= row["over_best"] <= row["over_best_most"]
    assert row["over_best_least"] == pytest.approx(min(row["over_best_by_trainer"]), abs=1e-4)
    assert "missed" in saves.summit_table([row | {"over_best": saves.OVER_MOST + 0.01}])


@pytest.mark.torch
def test_a_save_of_a_small_state_is_measured_beside_one_copy() -> None:
    found = saves.measure([], costs_s=[12.0], seeds=1)
    assert found["least training"] >= saves.SHARE_WANTED
    short = [one | {"training": saves.SHARE_WANTED - 0.01} for one in found["training"]]
    assert "missed" in saves.losses_table(short, found["losses"])
    row = stalls.measure("elastic.save", 13_000_000)
    assert row is not None
    assert row["mb"] == 13
    assert min(row["stall_s"], row["copy_s"]) > 0.0
    slow = row | {"samples": [one | {"stall_s": 9.0 * one["copy_s"]} for one in row["samples"]]}
    assert "9.0 copies" in saves.stalls_table([slow])
    assert "missed" in saves.stalls_table([slow])
