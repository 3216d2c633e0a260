"""The benchmark of search logs: whole plans are the best there are, and other rules are what they are said to be."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.crius import alpa_search
from sizing.cells.cell import Split
from studies.crius.search_log import LogCell

pytestmark = pytest.mark.slow

HEADER = "first_layer,last_layer,dp,tp,forced,cost_s,fits,avail_gb,peak_gb,layers,measured_e2e_s\n"


def every_plan(times: dict[LogCell, float], layers: int, gpus: int) -> list[tuple[LogCell, ...]]:
    """All ways through the layers that use all GPUs."""
    found: list[tuple[LogCell, ...]] = []

    def go(at: int, left: int, so_far: tuple[LogCell, ...]) -> None:
        if at == layers:
            found.extend([so_far] if left == 0 else [])
            return
        for cell in times:
            if cell.first_layer == at and cell.gpus <= left:
                go(cell.last_layer + 1, left - cell.gpus, (*so_far, cell))

    go(0, gpus, ())
    return found


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_whole_plan_is_the_best_of_all(data: st.DataObject) -> None:
    cells = [
        LogCell(first, last, gpus) for first, last, gpus in product(range(3), range(3), (1, 2, 4)) if first <= last
    ]
    seconds = st.floats(0.1, 10)
    times = {cell: data.draw(seconds) for cell in cells if cell == LogCell(0, 2, 4) or data.draw(st.booleans())}
    count = data.draw(st.integers(1, 20))
    found = alpa_search.whole_plan(times, count)
    best = min(
        sum(times[cell] for cell in plan) + (count - 1) * max(times[cell] for cell in plan)
        for plan in every_plan(times, 3, 4)
    )
    assert found is not None
    assert found[0] == pytest.approx(best)


def test_the_rule_as_printed_takes_the_half_of_the_better_extreme_and_knows_no_third_sample() -> None:
    axis = [Split(1, 4), Split(2, 2), Split(4, 1)]

    def grid(*times: float | None) -> dict[Split, list[float | None]]:
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
    assert said["missing"]
    monkeypatch.setattr(sys, "argv", ["alpa_search", "--logs", str(tmp_path), "--seeds", "1"])
    alpa_search.main()
    assert "what is missing" in capsys.readouterr().out


def test_fewer_splits_are_tried_the_more_gpus_a_stage_has() -> None:
    rows = alpa_search.reduction()
    assert all(row["tried_most"] <= row["splits"] for row in rows)
    assert rows[-1]["tried_mean"] < 0.5 * rows[-1]["splits"]
