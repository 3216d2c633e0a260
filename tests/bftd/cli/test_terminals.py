"""What commands print on terminals that lack colours or letters, into pipes, and where the reader goes away."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bftd.base import text as words
from bftd.base.text import Stack, Words
from bftd.cli import common
from tests.support.waiting import STILL_S

SHOWN = Stack([Words("bftd ", "bold").append("n[1-4]", "red").append(" müller\u2028 日本"), Words("later", "dim")])
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
import click
from bftd.base import command as entry
from bftd.cli import common
from tests.bftd.cli.test_terminals import SHOWN
@click.command()
def show():
    common.draw(SHOWN)
    common.echo(["\\u65e5\\u672c \\x1b[31m"])
    common.echo_json({{"name": "m\\u00fcller"}})
entry.run(show, "show")
"""


def on_a_terminal(environ: dict[str, str]) -> str:
    """What the program prints on a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs, env={"PATH": "/usr/bin:/bin", **environ}
    ):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # it has ended
            pass
        os.close(ours)
    return shown.decode(errors="replace").replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"TERM": "xterm"}, "\x1b[1mbftd \x1b[0m\x1b[31mn[1-4]\x1b[0m"),
        ({"TERM": "linux", "NO_COLOR": "1"}, "\x1b[1mbftd \x1b[0mn[1-4]"),
        ({"TERM": "dumb"}, "bftd n[1-4]"),
    ],
)
def test_there_are_colours_where_the_terminal_has_some_and_nobody_minds(environ: dict[str, str], told: str) -> None:
    shown = on_a_terminal(environ)
    assert told in shown
    assert ("\x1b" in shown) == ("\x1b" in told)


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{"LANG": "C", "PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_letters_that_an_encoding_lacks_never_end_a_command(environ: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, env={"PATH": "/usr/bin:/bin", **environ}, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.startswith(b"bftd n[1-4] m")
    assert b"\x1b" not in ran.stdout
    assert json.loads(b"{" + ran.stdout.partition(b"{")[2]) == {"format": 1, "name": "müller"}


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("common.draw(SHOWN)", "[common.draw(SHOWN) for _ in range(20000)]")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    ) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert ran.stdout.readline().startswith(b"bftd ")
        ran.stdout.close()
        assert (ran.wait(timeout=STILL_S), ran.stderr.read()) == (0, b"")


def test_words_are_broken_at_blanks_and_keep_their_styles() -> None:
    text = Words("one two", "bold").append(" three four\nfive", "red")
    lines = list(text.lines(9))
    assert list(map(words.plain, lines)) == ["one two", "three", "four", "five"]
    assert lines[0] == [("one two", "bold")]
    assert [style for line in lines[1:] for _, style in line] == ["red"] * 3
    assert list(map(words.plain, text.lines(None))) == ["one two three four", "five"]


def test_what_is_drawn_goes_to_standard_output_without_styles_where_that_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common.draw(Words("x", "red"))
    assert capsys.readouterr().out == "x\n"
