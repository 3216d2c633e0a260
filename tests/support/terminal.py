"""Running commands in this process: a new one costs half a second each."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import pytest

from bftd.base import command
from bftd.cli.main import bft


class Ended(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """Runs a command as a user would; `before` are the words that all its calls begin with."""

    program: click.Command = bft
    name = "bft"
    err_lines_most: int | None = None
    """Lines on standard error, which no command goes beyond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *before: str) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.before = before

    def __call__(self, *words: str, stdin: bytes | None = None) -> Ended:
        if stdin is not None:
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._monkeypatch.setattr(sys, "argv", [self.name, *self.before, *words])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command.run(self.program, self.name)
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        assert self.err_lines_most is None or len(said.err.splitlines()) <= self.err_lines_most
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)


Run = Callable[..., Ended]
"""A terminal, or what else runs a command as one does."""
