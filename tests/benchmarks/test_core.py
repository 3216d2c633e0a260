"""The benchmark of the decision core runs from end to end on a small pool."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import core

pytestmark = pytest.mark.slow


def test_it_measures_every_case_and_the_copying_it_is_asked_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core, "SIZES", ((2, 100),))
    monkeypatch.setattr(sys, "argv", ["core", "--polls", "11", "--repeats", "1", "--plain-replace", "--json"])
    core.main()
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["explain"], row["plain_replace"]) for row in rows] == [
        (True, False), (True, True), (False, False), (False, True)
    ]  # fmt: skip
    assert all(row["polls"] == 11 and row["polls_per_s"] > 0 for row in rows)
