"""The benchmark of a centre, in a tiny form: all of it happens, and the figures are there."""

from __future__ import annotations

import asyncio
import random

import pytest

from benchmarks.centre import LENT_LEAST, centre, table
from benchmarks.centre_slurm import Controller
from slurm_plugin.read import scontrol_requests

pytestmark = pytest.mark.slow


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
    assert len(row["samples_s"]) == row["ticks"]
    assert "missed" in table([row | {"lent_share": LENT_LEAST - 0.01}])
    assert "missed" not in table([row | {"lent_share": 1.0, "tick_median_s": 0.1, "loop_held_p99_s": 0.01}])


def test_regression_the_stand_in_had_no_answer_to_what_is_read_every_few_minutes() -> None:
    controller = Controller(60, 40, random.Random(1), 1.7e9)
    shown = controller.answer("squeue", (f"--Format={scontrol_requests.long_format('|')}", "--states=PENDING")) or ""
    assert scontrol_requests.read(shown, "|").keys() == {waits.id for waits in controller.waiting.values()}
