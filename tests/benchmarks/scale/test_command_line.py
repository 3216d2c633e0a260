"""The benchmark of the command line runs from end to end on a small daemon."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.scale import command_line

pytestmark = pytest.mark.slow


def test_commands_are_timed_from_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["command_line", "--repeats", "1", "--nodes", "50", "--trainers", "5", "--json"])
    command_line.main()
    found = json.loads(capsys.readouterr().out)
    assert found["version_ratio"] > 0.3
    assert found["status"]["median_ms"] > found["import_click"]["median_ms"] / 3
