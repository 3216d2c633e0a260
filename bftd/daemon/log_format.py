"""The format of log lines: with the time, or with the priority where journald reads them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from bftd.protocol.fields import printable

_STDERR = 2
# A line's prefix, as in sd-daemon(3): syslog's err, warning, info and debug.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))


class JournalFormatter(logging.Formatter):
    """A formatter that puts the priority before every line, also of a traceback: journald takes each for a message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of one record."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in _lines(super().format(record)))


class PlainFormatter(logging.Formatter):
    """A formatter that puts the time before each record, for a terminal or a file."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of one record."""
        return "\n".join(_lines(super().format(record)))


def _lines(text: str) -> list[str]:
    """Split a record into printable lines: names that users and jobs choose must not control a terminal."""
    return [printable(line) for line in text.splitlines()] or [""]


def formatter(environ: Mapping[str, str], fd: int = _STDERR) -> logging.Formatter:
    """Return the formatter for `fd`: journald knows the time, the program's name and how to show a priority."""
    if is_journal(environ, fd):
        return JournalFormatter("%(message)s")
    return PlainFormatter("%(asctime)s %(levelname)s %(message)s")


def is_journal(environ: Mapping[str, str], fd: int = _STDERR) -> bool:
    """Say whether journald reads `fd`: processes whose output goes elsewhere inherit $JOURNAL_STREAM too."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def error_prefix(environ: Mapping[str, str], fd: int = _STDERR) -> str:
    """Return the prefix of an error's line on `fd`."""
    return f"<{_PRIORITIES[0][1]}>" if is_journal(environ, fd) else ""
