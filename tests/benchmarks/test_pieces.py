"""The benchmark of pieces, in a tiny form."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.pieces import STEPS, measure

pytestmark = pytest.mark.slow


@pytest.mark.torch
def test_a_tiny_training_with_pieces_and_without_is_measured_on_one_worker_and_on_two() -> None:
    assert STEPS > 2
    rows = measure((1, 2), steps=3, width=8)
    assert [row["workers"] for row in rows] == [1, 2]
    assert all(min(*row["plain_s"], *row["pieces_s"]) > 0.0 for row in rows)
