"""Holds whatever these tests have a command print as JSON to the tables of docs/reference/json.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import pytest

from bftd.cli import common
from tests.bftd.cli import forms


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
