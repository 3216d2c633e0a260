"""The benchmark of a look at the queue, on clusters that are small."""

from __future__ import annotations

import pytest

from benchmarks import earmark_times

pytestmark = pytest.mark.slow


def test_each_kind_of_queue_is_measured_at_both_depths() -> None:
    rows = earmark_times.measure(1, sizes=((60, 40, 8),))
    assert [(row["queue"], row["depth"]) for row in rows] == [
        (name, depth) for name in earmark_times.QUEUES for depth in (earmark_times.DEPTH, 40)
    ]
    assert all(row["peak_bytes"] > 0 and row["median_s"] > 0 for row in rows)
    found = {row["queue"]: row for row in rows}
    assert found["nothing fits"]["now"] == 0
    assert found["all fits"]["now"] == 40
    assert found["mixed"]["now"] > 0
    assert found["mixed"]["planned"] > 0
    assert all(len(row["times_s"]) == 1 for row in rows)


def test_the_same_seed_makes_the_same_queue() -> None:
    one, two = (earmark_times.measure(1, sizes=((40, 20, 5),), seed=3) for _ in range(2))
    assert [(row["now"], row["planned"]) for row in one] == [(row["now"], row["planned"]) for row in two]
