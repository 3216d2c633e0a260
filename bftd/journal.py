"""The form of log lines: with their time, or, where journald reads them, with their priority."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from bftd.protocol.fields import printable

_STDERR = 2
# A line's prefix, as sd-daemon(3) has it: syslog's err, warning, info and debug.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))


class JournalFormatter(logging.Formatter):
    """Puts the priority before every line, those of a traceback too: journald takes each for a message."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in _lines(super().format(record)))


class PlainFormatter(logging.Formatter):
    """Lines with their time, as a terminal or a file takes them."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        return "\n".join(_lines(super().format(record)))


def _lines(text: str) -> list[str]:
    """The lines of a record, which are read on terminals: what users and jobs are called must not command these."""
    return [printable(line) for line in text.splitlines()] or [""]


def formatter(environ: Mapping[str, str], fd: int = _STDERR) -> logging.Formatter:
    """The formatter for the stream `fd`: journald knows the time, the program's name and how to show a priority."""
    if is_journal(environ, fd):
        return JournalFormatter("%(message)s")
    return PlainFormatter("%(asctime)s %(levelname)s %(message)s")


def is_journal(environ: Mapping[str, str], fd: int = _STDERR) -> bool:
    """Say whether journald reads `fd`: $JOURNAL_STREAM is inherited by processes whose output goes elsewhere."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def error_prefix(environ: Mapping[str, str], fd: int = _STDERR) -> str:
    """What stands before an error's line on `fd`."""
    return f"<{_PRIORITIES[0][1]}>" if is_journal(environ, fd) else ""
