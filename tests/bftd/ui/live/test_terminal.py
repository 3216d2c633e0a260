"""`bft top` as a process on a terminal: it starts, draws, ends with q, and leaves the terminal as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bftd.http.beside import Daemon, daemon
from tests.support.messages import wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

TOP = [sys.executable, "-m", "bftd.cli.main", "top"]
_ENTERS, _LEAVES = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("daemon")) as there:
        there.see(None, "n1", "n2")
        there.train("run-h-1", name="resnet")
        there.see(None, "n1", "n2")
        yield there


def on_a_terminal(
    address: str, keys: bytes = b"q", ended_by: signal.Signals | None = None, **environment: str
) -> tuple[int, bytes, bool]:
    """Run it in 80 x 24; once it shows nodes, keys are pressed or it is ended. Code, output, whether modes are back."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    given = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "BFTD_SOCKET": address, "TERM": "xterm-256color"}
    given |= {"LANG": "C.UTF-8"} | environment
    process = subprocess.Popen(TOP, stdin=theirs, stdout=theirs, stderr=theirs, env=given, start_new_session=True)
    seen, end_s, pressed = b"", time.monotonic() + STILL_S, False
    try:
        while process.poll() is None and time.monotonic() < end_s:
            if select.select([ours], [], [], 0.05)[0]:
                seen += os.read(ours, 65536)
            if not pressed and b"2 nodes" in plain(seen):
                if ended_by is None:
                    os.write(ours, keys)
                else:
                    process.send_signal(ended_by)
                pressed = True
        after = termios.tcgetattr(theirs)
        while select.select([ours], [], [], 0.0)[0]:
            seen += os.read(ours, 65536)
        return process.wait(STILL_S), seen, after[:4] == before[:4]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


def plain(seen: bytes) -> bytes:
    """What is written without what only moves and colours."""
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)


def test_it_draws_ends_with_q_and_leaves_the_terminal_as_it_was(served: Daemon) -> None:
    code, seen, restored = on_a_terminal(served.address)
    assert (code, restored) == (0, True), seen
    assert b"resnet" in seen
    assert seen.index(_ENTERS) < seen.rindex(_LEAVES)
    assert "▓".encode() in seen
    assert b"Traceback" not in seen


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(served: Daemon, ended_by: signal.Signals) -> None:
    code, seen, restored = on_a_terminal(served.address, ended_by=ended_by)
    assert (code, restored) == (128 + ended_by, True), seen
    assert seen.index(_ENTERS) < seen.rindex(_LEAVES)


@pytest.mark.parametrize("opened_by", [b"/", b"p", b"t", b"?", b"n"])
def test_ctrl_c_ends_it_whatever_is_open(served: Daemon, opened_by: bytes) -> None:
    code, seen, restored = on_a_terminal(served.address, opened_by + b"abc\x03")
    assert (code, restored) == (0, True), seen


def test_without_colours_and_unicode_it_writes_neither(served: Daemon) -> None:
    code, seen, restored = on_a_terminal(
        served.address, b"\x03", TERM="linux", NO_COLOR="1", LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii"
    )
    assert (code, restored) == (0, True), seen
    assert seen.isascii()
    coloured = re.findall(rb"\x1b\[(?:\d+;)*[34]8;2;(\d+);(\d+);(\d+)", seen)
    assert all(len(set(channels)) == 1 for channels in coloured), coloured


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_without_a_terminal_it_says_what_to_use_instead(served: Daemon, term: str) -> None:
    given = {**os.environ, "BFTD_SOCKET": served.address, "TERM": term}
    done = subprocess.run(TOP, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=given, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["bft: " + wording("cli.top.no_terminal")]


def test_without_a_daemon_it_ends_in_one_line(tmp_path: Path) -> None:
    code, seen, restored = on_a_terminal(str(tmp_path / "nobody"))
    assert (code, restored) == (1, True)
    assert plain(seen).decode().splitlines() == [
        "bft: "
        + wording(
            "http.client.no_daemon",
            address=tmp_path / "nobody",
            PATH_VARIABLE="BFTD_CONFIG",
            SOCKET_VARIABLE="BFTD_SOCKET",
        )
    ]
