"""The benchmark of the search of CPUs: it counts what it says, and the bounds hold where the public matrices are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.synergy import search
from sizing.cpu import matrices_file

pytestmark = pytest.mark.slow

RATES = [[0.3], [0.66], [1], [1.25], [1.53], [1.75], [2], [2.94], [2.94]]
MADE = {
    "knee_1": {"gpus": 1, "throughput": [row * 4 for row in RATES]},
    "slow_1": {"gpus": 1, "throughput": [[cpus / (cpus + 2)] * 4 for cpus in (1, 2, 3, 4, 5, 6, 9, 12, 24)]},
}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The JSON of a run on two curves."""
    (tmp_path / "m.json").write_text(json.dumps(MADE))
    monkeypatch.setattr(sys, "argv", ["", "--json", "--seeds", "2", "--matrices", str(tmp_path / "m.json")])
    search.main()
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_curve_on_which_the_search_stops_sooner_counts_as_apart(told: dict[str, dict[str, object]]) -> None:
    knee, slow = told["curves"]["recorded"].values()  # type: ignore[attr-defined]
    assert (knee["cpus"], knee["steps_apart"], knee["points_tried"]) == (12.0, 0, 5)
    assert (slow["cpus"], slow["full_sweep_cpus"], slow["steps_apart"]) == (12.0, 24.0, 1)
    assert slow["lost"] == pytest.approx(1 - (12 / 14) / (24 / 26))
    assert told["recorded"]["exactly"] == 0.5


def test_on_curves_that_end_in_a_knee_the_search_is_the_sweep_and_it_never_loses_more_than_the_threshold(
    told: dict[str, dict[str, dict[str, float]]],
) -> None:
    flat, *bending = told["generated"].values()
    assert flat["same_demand"] == 1.0
    assert all(each["lost_most"] <= 1 - 1 / 1.1 for each in bending)


@pytest.mark.skipif(not search.MATRICES.exists(), reason="no ../shared/data: the public matrices")
def test_the_bounds_hold_on_the_public_matrices() -> None:
    assert search.run(matrices_file.load(search.MATRICES), 2)["reached"]
