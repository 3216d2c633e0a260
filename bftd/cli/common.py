"""Helpers for several commands: a Slurm client, tables for the terminal, and files to write."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import UsageError
from bftd.base.files import replacing as replacing
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from bftd.base.tables import Column
    from bftd.base.text import Drawn
    from bftd.config.keys import Config
    from slurm_plugin.clients.client import SlurmClient

# Version of the output of `--json`: incremented when a field is removed or changes its meaning.
JSON_FORMAT = 1


def slurm_client(settings: Config) -> SlurmClient:
    """Return a client of the Slurm cluster that the configuration names."""
    from slurm_plugin.clients.client import SlurmClient

    return SlurmClient(Path(settings.slurm.conf) if settings.slurm.conf else None, settings.slurm.timeout_s)


def terminal_width() -> int | None:
    """Return the width of the terminal on standard output, in columns; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def draw(shown: Drawn) -> None:
    """Print styled text: in colour if the terminal supports it and $NO_COLOR is not set."""
    from bftd.base import text as words

    term = os.environ.get("TERM", "")
    if not sys.stdout.isatty() or term in ("", "dumb", "unknown"):
        text = "\n".join(map(words.plain, shown.lines(terminal_width())))
    else:
        colours = not os.environ.get("NO_COLOR")
        text = "\n".join(words.escaped(line, colours) for line in shown.lines(terminal_width()))
    click.echo(text, color=True)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return the lines of a table that fits the terminal."""
    from bftd.base import tables

    return tables.lines(columns, rows, terminal_width())


def echo(lines: Iterable[str]) -> None:
    """Print lines that may contain names from other users, without terminal control characters."""
    for line in lines:
        click.echo(printable(line))


def json_text(answer: Mapping[str, Any]) -> str:
    """Return a command's JSON output: one ASCII object that begins with the format version (docs/reference/json.md)."""
    return json.dumps({"format": JSON_FORMAT} | {name: answer[name] for name in answer if name != "format"}, indent=2)


def echo_json(answer: Mapping[str, Any]) -> None:
    """Print a command's JSON output."""
    click.echo(json_text(answer))


def refuse_unwritable(path: Path) -> None:
    """Raise UsageError if the file cannot be written, before minutes of work rather than after."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory; name a file in a folder that exists")
    if not _folder(path).is_dir():
        raise UsageError(f"cannot write {path}: no such directory; name a file in a folder that exists")
    if not os.access(path if path.exists() else _folder(path), os.W_OK):
        raise UsageError(f"cannot write {path}: no permission; name a file in a folder of yours")


def write(path: Path | str, text: str) -> None:
    """Write a text and a final line break to a file, or to standard output for "-".

    A file is replaced atomically if its folder allows that. Raises UsageError if it cannot be written.
    """
    if path == "-":
        click.echo(text)
        return
    try:
        in_place = Path(path).exists() and not (Path(path).is_file() and os.access(_folder(path), os.W_OK))
        if in_place:  # for example a pipe, or the user's own file in a folder they may not write to
            Path(path).write_text(text + "\n", encoding="utf-8")
            return
        with replacing(Path(path)) as part:
            part.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _folder(path: Path | str) -> Path:
    """Return the folder of a file, existing or not, with its symbolic links resolved."""
    return Path(os.path.realpath(path)).parent
