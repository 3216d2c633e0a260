"""Figures of recorded runs: one quick pair of bf30 and one of tuned, on a machine busy with other work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.impact import record
from benchmarks.impact.analysis import report
from tests.support.messages import wording

pytestmark = pytest.mark.slow

RUNS = Path(__file__).parent / "assets"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return report.summary(record.load_all(RUNS), measure_scale=False, log=print)


def test_each_recorded_pair_gives_the_figures_of_its_recipe(found: dict[str, Any]) -> None:
    assert found["default"] is None
    assert {name: found[name]["pairs"] for name in ("bf30", "tuned")} == {"bf30": 1, "tuned": 1}
    assert found["bf30"]["preempt_to_start_s"]["by_scheduler"]["main"]["jobs"] == 6
    assert 0 < found["bf30"]["harvested_share"] < 1
    assert found["bf30"]["makespan_s"]["a"] == pytest.approx(49.57, abs=0.01)
    assert 3.9 < found["tuned"]["rpc_per_poll"] < 4.2


def test_both_slots_that_the_recorded_run_lost_are_explained_from_its_log(found: dict[str, Any]) -> None:
    lost = {one["job"]: one["why"] for one in found["tuned"]["slots_lost_why"]}
    assert lost[3].startswith("n[14-15] freed by backfill at 3.3 s; job 1 got n[14-15] at 4 s by main; of 2 backfill")
    failed, none = wording("benchmarks.impact_slots.could_not_start"), "no room was made"  # as release 0.1.0 had it
    assert f"{failed}; {none}; started by backfill at 12.5 s" in lost[4]
    assert found["tuned"]["slots_lost_by"] == {"regular": 1, "nobody": 1}
    assert found["tuned"]["late_starts"] == {"a": 0, "b": 5}
