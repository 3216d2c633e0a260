"""The benchmark of a centre, in a tiny form: all of it happens, and the figures are there."""

from __future__ import annotations

import asyncio

from benchmarks.centre import centre


def test_a_tiny_centre_has_starts_and_restarts_and_lends_its_idle_nodes() -> None:
    row = asyncio.run(centre(60, 40, 4, 110.0))
    assert row["restarts"] == 1
    assert row["starts"] > 50
    assert row["leases_most"] > 40
    assert row["leases_lost_for_no_job"] == 0
    assert 0.0 < row["lent_share"] <= 1.0
    assert 0.0 < row["tick_median_s"] <= row["tick_p99_s"] <= row["tick_most_s"]
    assert row["loop_held_most_s"] > 0.0
    assert row["simulated_s"] >= 110.0
