"""The benchmark of search logs: its rules, and a small log of which all is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.crius import alpa_search
from sizing.base.parallel import Parallel

pytestmark = pytest.mark.slow

HEADER = "first_layer,last_layer,dp,tp,forced,cost_s,fits,avail_gb,peak_gb,layers,measured_e2e_s\n"


def test_the_rule_as_printed_takes_the_half_of_the_better_extreme_and_knows_no_third_sample() -> None:
    axis = [Parallel(1, 4), Parallel(2, 2), Parallel(4, 1)]

    def grid(*times: float | None) -> dict[Parallel, list[float | None]]:
        return {split: [seconds] for split, seconds in zip(axis, times, strict=True)}

    assert alpa_search.as_printed(grid(3.0, 2.0, 1.0)) == (1.0, 2)
    assert alpa_search.as_printed(grid(1.0, 0.5, None)) == (0.5, 2)
    assert alpa_search.as_printed(grid(None, 1.0, None)) == (None, 0)
    assert alpa_search.better_extreme(grid(3.0, 0.5, 2.0)) == (2.0, 2)


def test_a_run_says_everything_and_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        "0,0,2,1,batch,1.0,1",
        "0,0,1,2,batch,2.0,1",
        "0,0,1,2,,1.5,1",
        "1,1,2,1,batch,1.0,0",
        "1,1,1,2,batch,3.0,1",
    ]
    rows += ["0,1,4,1,batch,5.0,0", "0,1,2,2,batch,2.0,1", "0,1,1,4,batch,9.0,1"]
    log = tmp_path / "grid-microbatches4.csv"
    log.write_text(HEADER + "".join(f"{row},28.0,20.0,2,10.0\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["alpa_search", "--json", "--logs", str(tmp_path), "--seeds", "2"])
    alpa_search.main()
    said = json.loads(capsys.readouterr().out)
    (one,) = said["logs"]
    assert (one["cells"], one["feasible"], one["mean_accuracy"], one["missed_feasible"]) == (3, 3, 1.0, 0)
    assert (one["tried"], one["candidates"], one["rows_tried"], one["rows"]) == (7, 7, 8, 8)
    assert one["as_printed"]["missed_feasible"] == 0
    # 2 + 3 x 2 on all four GPUs, against 1 + 3 + 3 x 3 on two and two
    assert (one["whole_plan"]["full_grid_s"], one["whole_plan"]["tuned_s"]) == (8.0, 8.0)
    assert one["end_to_end"] == {"estimated_s": 8.0, "measured_s": 10.0, "accuracy": pytest.approx(0.8)}
    (row,) = (line for line in alpa_search.rules(said).splitlines() if line.startswith("| `bft size split` |"))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["100 %", "100 %", "0", "7"]
