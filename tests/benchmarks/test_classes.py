"""The benchmark of classes of nodes runs from end to end on a small pool, and what it says can be true."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import classes

pytestmark = pytest.mark.slow


def test_it_measures_a_case(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hardest = "ten mix, caps"
    monkeypatch.setattr(classes, "CASES", {hardest: classes.CASES[hardest]})
    words = ["--trainers", "3", "--nodes", "12", "--classes", "2", "--seeds", "1", "--bound-s", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["classes", *words])
    classes.main()
    found = json.loads(capsys.readouterr().out)
    rows = found["rows"]
    assert classes.decisions(found).splitlines()[-1].startswith(f"| {hardest} | {rows[0]['median_s']:.2f} s, ")
    assert [row["case"] for row in rows] == [hardest]
    assert all(0.0 < row["least_share"] <= row["median_share"] <= 1.0 + 1e-9 for row in rows)
    assert all(0.0 < row["median_s"] <= row["worst_s"] for row in rows)
