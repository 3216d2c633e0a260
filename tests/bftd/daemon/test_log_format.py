from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bftd.daemon import log_format
from tests.support.messages import fragment, pattern
from tests.support.waiting import STILL_S


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("bftd", level, __file__, 1, text, None, None)


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, 3), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7)],
)
def test_journald_is_told_the_priority_of_every_line(level: int, priority: int) -> None:
    lines = log_format.JournalFormatter("%(message)s").format(record(level, "one\ntwo")).splitlines()
    assert lines == [f"<{priority}>one", f"<{priority}>two"]


def test_only_a_stream_that_journald_reads_gets_priorities() -> None:
    reader, writer = os.pipe()
    try:
        status = os.fstat(writer)
        ours = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert log_format.is_journal(ours, writer)
        assert log_format.error_prefix(ours, writer) == "<3>"
        assert not log_format.is_journal({"JOURNAL_STREAM": "8:1"}, writer)
        assert not log_format.is_journal({}, writer)
        assert log_format.error_prefix({}, writer) == ""
    finally:
        os.close(reader)
        os.close(writer)


def test_a_daemon_that_cannot_start_says_so_as_an_error_of_the_journal(tmp_path: Path) -> None:
    log = tmp_path / "stream"
    with log.open("wb") as stream:
        status = os.fstat(stream.fileno())
        environ = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        command = [sys.executable, "-m", "bftd.daemon.process", "--config", str(tmp_path / "none.toml")]
        subprocess.run(command, env=environ, stderr=stream, check=False, timeout=STILL_S)
    assert re.match("<3>bftd: " + pattern("cli.unreadable", path=fragment("the configuration")), log.read_text())
