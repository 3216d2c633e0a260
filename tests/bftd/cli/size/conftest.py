"""The terminal of sizing commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bftd.cli.sizing_commands import SizeTerminal


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    return SizeTerminal(tmp_path, monkeypatch, capsys)
