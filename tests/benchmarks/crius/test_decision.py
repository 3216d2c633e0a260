"""The measurement of decisions: a cluster that is full, and every depth at the same arrivals."""

from __future__ import annotations

import pytest

from benchmarks.crius import decision

pytestmark = pytest.mark.slow


def test_every_depth_meets_the_same_full_cluster() -> None:
    seen = decision.measure(60, 3, seed=1, depths=(0, 1, 2))
    assert (seen["gpus"], seen["types"], seen["running"]) == (1280, 4, 60)
    assert list(seen["depths"]) == ["0", "1", "2"]
    assert all(0 < each["median_s"] <= each["worst_s"] for each in seen["depths"].values())
    gains = [each["mean_gain"] for each in seen["depths"].values()]
    assert gains == sorted(gains)
    _, _, *rows = decision.table(seen).splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["0", "1", "2"]
    assert seen["idle"] == decision.measure(60, 1, seed=1, depths=(0,))["idle"]
