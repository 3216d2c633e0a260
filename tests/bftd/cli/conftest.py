"""A terminal for commands; whatever they print as JSON is held to the tables of docs/reference/json.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from bftd.cli import common
from tests.bftd.cli import forms
from tests.support.terminal import Terminal


@pytest.fixture(autouse=True)
def documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints other fields than the page says fails."""
    printed = common.json_text

    def checked(told: Mapping[str, Any]) -> str:
        context = click.get_current_context(silent=True)
        words = context.command_path.split() if context is not None else []
        command = " ".join(words if words[:1] == ["bft"] else ["bft", *words])
        wrong = forms.unlike(command, told)
        assert not wrong, wrong
        return printed(told)

    monkeypatch.setattr(common, "json_text", checked)


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Asks the daemon at `tmp_path`/socket."""
    monkeypatch.setenv("BFTD_SOCKET", str(tmp_path / "socket"))
    return Terminal(monkeypatch, capsys)
