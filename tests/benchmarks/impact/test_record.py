"""Figures of recorded runs: one quick pair of bf30 and one of tuned, on a machine busy with other work."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import kept
from benchmarks.impact import record
from benchmarks.impact.analysis import report
from tests.support.messages import wording

pytestmark = pytest.mark.slow

RUNS = Path(__file__).parent / "assets"
REPOSITORY = Path(__file__).resolve().parents[3]
MOST_BYTES = 2**20


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


def test_a_run_that_gzip_has_packed_is_read_and_half_a_file_is_named(tmp_path: Path) -> None:
    for path in RUNS.iterdir():
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert record.load_all(tmp_path) == record.load_all(RUNS)
    first = min(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-20])
    with pytest.raises(ValueError, match=first.name):
        record.load_all(tmp_path)


def test_the_results_that_are_kept_are_small_and_those_of_runs_are_computed_from_them() -> None:
    folder = REPOSITORY / "benchmarks" / "results" / "impact"
    assert sum(path.stat().st_size for path in folder.parent.rglob("*")) <= MOST_BYTES
    found = report.summary(record.load_all(folder), measure_scale=False, log=print)
    assert json.loads(json.dumps(found)) == kept.read("impact").result
