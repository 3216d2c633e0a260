"""What the commands share: tables on a terminal and in a pipe, and files to write."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from bftd.base.errors import UsageError
from bftd.base.tables import Column, Fitted
from bftd.cli import common
from tests.bftd.cli.whatif.test_solve import PROBLEM
from tests.support.messages import pattern, wording
from tests.support.programs import run_bft

HEADER = ["TRAINER", "NODES", "ON", "WHY"]


def on_a_terminal(columns: int, *words: str) -> str:
    """What `bft` shows on a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "bftd.cli.main", *words]
    with subprocess.Popen(command, stdout=slave, stdin=slave, stderr=subprocess.PIPE, env=environ) as process:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # how Linux tells the end of a terminal
            pass
    os.close(master)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("words", [("solve", "problem.json"), ("solve", "problem.json", "--json"), ("--help",)])
def test_regression_an_output_that_went_to_a_full_disk_ended_in_a_traceback(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    command = [sys.executable, "-m", "bftd.cli.main", *words]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ, check=False
        )
    told = wording("bftd.entry.cannot_write", strerror=os.strerror(errno.ENOSPC))
    assert (run.returncode, run.stderr) == (1, f"bft: {told}\n")


def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    piped = run_bft("solve", str(path), env=os.environ | {"COLUMNS": "40"}).stdout.splitlines()[2:]
    assert piped[0].split() == HEADER
    assert len(piped) == 1 + len(PROBLEM["trainers"])
    shown = on_a_terminal(60, "solve", str(path)).splitlines()[2:]
    assert shown[0].split() == HEADER
    assert max(map(len, shown)) <= 60
    assert len(shown) > len(piped)
    words = [" ".join(lines).split() for lines in (piped, shown)]
    assert sorted(words[0]) == sorted(words[1])


def test_what_is_in_styles_is_whole_and_plain_in_a_pipe_whatever_the_environment_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    common.draw(Fitted("Names", [Column("name", least=8)], [(["x" * 400], "")]))
    assert capsys.readouterr().out == f"Names\nname\n{'x' * 400}\n"


def test_what_cannot_be_written_is_refused_before_and_told_after(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=pattern("cli.common.is_a_directory")):
        common.refuse_unwritable(tmp_path)
    with pytest.raises(UsageError, match=pattern("cli.common.no_such_directory")):
        common.refuse_unwritable(tmp_path / "none" / "x.json")
    common.refuse_unwritable(tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()
    common.write(tmp_path / "x.json", "{}")
    assert (tmp_path / "x.json").read_text() == "{}\n"
    with pytest.raises(UsageError, match="cannot write"):
        common.write(tmp_path, "{}")


def test_a_single_minus_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    common.write("-", "{}")
    assert capsys.readouterr().out == "{}\n"
