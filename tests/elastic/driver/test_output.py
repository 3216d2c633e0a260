"""What the driver prints: in order, whole, and never waited for, whatever becomes of the file."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.driver import output as outputs
from elastic.driver.output import JobOutput
from tests.support.messages import wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


class Pipe:
    """A pipe that nobody reads until the test does."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def read_to(self, last: bytes) -> list[bytes]:
        data = b""
        while last not in data:
            data += os.read(self.reader, 1 << 16)
        return data.splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for fd in (pipe.reader, pipe.writer):
        try:
            os.close(fd)
        except OSError:
            continue


class Disk:
    """Stands for os.write: full, or failing in another way, until there is space again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self.data = b""
        self.free_bytes: int | None = 0
        self.tried = threading.Event()
        self._code = code
        monkeypatch.setattr(outputs, "_RETRY_S", 0.001)
        monkeypatch.setattr(outputs, "_LAST_RETRY_S", 0.001)
        monkeypatch.setattr(outputs.os, "write", self._write)

    def _write(self, fd: int, data: bytes) -> int:
        taken = len(data) if self.free_bytes is None else min(len(data), self.free_bytes)
        if not taken:
            self.tried.set()
            raise OSError(self._code, os.strerror(self._code))
        self.data += bytes(data[:taken])
        if self.free_bytes is not None:
            self.free_bytes -= taken
        return taken


def test_lines_are_written_in_order_and_whole(pipe: Pipe) -> None:
    output = JobOutput(pipe.writer)
    for number in range(500):
        output.line(f"line {number}")
    output.close()
    assert pipe.read_to(b"line 499\n") == [f"line {number}".encode() for number in range(500)]


def test_no_write_holds_a_part_of_a_line_or_more_than_a_pipe_takes_in_one_piece(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        written.append(bytes(data))
        return len(data)

    monkeypatch.setattr(outputs.os, "write", write)
    output = JobOutput(pipe.writer)
    lines = ["x" * (number * 37 % 900) for number in range(300)]
    for line in lines:
        output.line(line)
    output.close()
    assert b"".join(written).decode().splitlines() == lines
    assert all(data.endswith(b"\n") and len(data) <= 4096 for data in written)


def test_regression_a_stalled_output_stopped_the_beats_and_all_agents_left(pipe: Pipe) -> None:
    output = JobOutput(pipe.writer, held_bytes=100_000)
    for number in range(5000):  # the pipe takes 64 KiB, and nobody reads: an os.write here would never return
        output.line(f"line {number:04} {'.' * 80}")
    lines = pipe.read_to(b"line 4999")
    output.close()
    gaps, expected = 0, 0
    for line in lines:  # the oldest of what waits go, and it is said where
        if line.startswith(b"bft: "):
            assert line.endswith(b"lines of output are missing here: they were not taken in time")
            gaps, expected = gaps + 1, expected + int(line.split()[1])
        else:
            assert int(line.split()[1]) == expected
            expected += 1
    assert gaps
    assert expected == 5000


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_regression_a_full_disk_cut_agents_off_now_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk = Disk(monkeypatch, code)
    disk.free_bytes = 9  # the last piece that a full disk takes may end anywhere
    output = JobOutput(1, held_bytes=1000)
    output.line("the first")
    output.line("the second")
    assert disk.tried.wait(STILL_S)
    for number in range(100):
        output.line(f"line {number}")
    disk.free_bytes = None
    output.close()
    lines = disk.data.decode().splitlines()
    assert lines[:2] == ["the first", "the second"]
    missing = 100 - len(lines[3:])
    assert lines[2] == wording("elastic.output.missing", dropped=missing, why=os.strerror(code))
    assert lines[3:] == [f"line {number}" for number in range(missing, 100)]


def test_a_disk_that_stays_full_delays_the_end_by_a_bounded_time_and_it_is_said_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(monkeypatch, errno.ENOSPC)
    said: list[str] = []
    monkeypatch.setattr(JobOutput, "_print_aside", lambda self, text: said.append(text))
    output = JobOutput(1)
    for _ in range(3):
        output.line("lost")
    assert disk.tried.wait(STILL_S)
    output.close(within_s=0.05)
    output._thread.join(STILL_S)
    assert said == [wording("elastic.output.not_written", left=3, why="No space left on device")]


def test_regression_a_reader_that_went_away_ended_training_now_it_is_said_once(pipe: Pipe) -> None:
    os.close(pipe.reader)
    said: list[str] = []
    output = JobOutput(pipe.writer)
    output._print_aside = said.append  # type: ignore[method-assign]
    output.line("one")
    output._thread.join(STILL_S)
    for _ in range(100_000):
        output.line("more")
    assert said == [wording("elastic.output.nobody_reads")]
    assert not output._lines
    output.close()


def test_regression_a_letter_that_the_locale_lacks_ended_training(pipe: Pipe) -> None:
    output = JobOutput(pipe.writer, "latin-1")
    output.line("épreuve 3 ███ 57 % \udcff")
    output.close()
    assert os.read(pipe.reader, 100) == b"\xe9preuve 3 \\u2588\\u2588\\u2588 57 % \\udcff\n"


def test_what_libraries_log_goes_the_same_way(pipe: Pipe) -> None:
    output = JobOutput(pipe.writer)
    with output.logging():
        logging.getLogger("asyncio").warning("socket.send() raised %s", "exception")
    logging.getLogger("asyncio").debug("not any more")
    output.close()
    assert os.read(pipe.reader, 100) == b"bft: asyncio: socket.send() raised exception\n"


# -- a whole process ---

PROGRAM = """
import sys
from elastic.driver.output import JobOutput
output = JobOutput.standard()
for number in range(int(sys.argv[1])):
    output.line(f"line {number} " + "." * 100)
output.close(0.5)
sys.exit(7)
"""


def run(stdout: int | None, lines: int = 5, prefix: str = "") -> tuple[int, str]:
    argv = [sys.executable, "-c", PROGRAM, str(lines)]
    if prefix:
        argv = ["/bin/sh", "-c", f'"$0" "$@" {prefix}', *argv]
    with subprocess.Popen(argv, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        return process.wait(STILL_S), said


def test_the_exit_code_stands_and_nothing_is_complained_about_when_the_output_is_full() -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(full.fileno()) == (
            7,
            wording("elastic.output.not_written", left=5, why="No space left on device") + "\n",
        )


def test_the_exit_code_stands_when_nobody_reads(pipe: Pipe) -> None:
    os.close(pipe.reader)
    assert run(pipe.writer) == (7, wording("elastic.output.nobody_reads") + "\n")


def test_the_exit_code_stands_when_a_reader_has_stalled(pipe: Pipe) -> None:
    assert run(pipe.writer, lines=5000)[0] == 7


def test_the_exit_code_stands_where_there_is_no_output_at_all() -> None:
    assert run(None, prefix=">&-") == (7, "")


def test_it_is_not_said_twice_where_both_outputs_are_one_file() -> None:
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, "-c", PROGRAM, "5"]
        assert subprocess.run(argv, stdout=full, stderr=full, check=False, timeout=STILL_S).returncode == 7
