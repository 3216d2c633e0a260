"""The benchmark of the ledger on a small scale: the file is bounded, and a start takes no longer for its age."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import ledger
from bftd.ledger import retention

pytestmark = pytest.mark.slow


def test_months_of_uptime_make_no_larger_a_file_than_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEEP_EVENTS_S", 2 * ledger.DAY_S)
    monkeypatch.setattr(retention, "BATCH", 200)
    told = ledger.months(tmp_path / "ledger", 8 * ledger.DAY_S / ledger.MONTH_S, trainers=3, step_s=300.0)
    sizes = told["bytes_by_day"]
    assert len(sizes) == 8
    assert max(sizes[4:]) < 1.3 * sizes[3]
    # three trainers and the pool in each step, and five rows of each resize
    assert told["events"] == pytest.approx(2 * 288 * (3 + 1 + 5), rel=0.05)
    assert told["progress_rows_per_trainer_in_an_hour_of_seconds"] <= 1.5 * 60 + 1
    assert max(told["start_s"], told["start_after_kill_s"]) < ledger.START_S
    assert "missed" not in ledger.table(told)
    assert "missed" in ledger.table(told | {"start_after_kill_s": ledger.START_S + 1.0})


def test_it_brings_a_ledger_of_the_version_before_up_to_date_and_prints_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ledger", "--migrate", "5000", "--json"])
    ledger.main()
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["rows_after"] < 200) == (5000, True)
