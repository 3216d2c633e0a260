"""The benchmark of history runs, and its figures are of what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import MONTH_BYTES, measured, rows_of

pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_a_short_run_of_a_small_site_tells_all_figures(tmp_path: Path) -> None:
    told = measured(tmp_path / "ledger", nodes=8, trainers=2, days=1)
    assert told["points"] == 2 * (1440 + 60)
    assert 0 < told["bytes_an_hour_of_minutes"] < told["bytes"]
    assert told["answers"]["day"]["bytes"] > told["answers"]["month_without_trainers"]["bytes"]
    assert told["windows_s"]["again"] > 0
    assert "missed" in rows_of(told | {"bytes": MONTH_BYTES + 1})
