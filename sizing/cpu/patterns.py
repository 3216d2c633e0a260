"""A regular expression that reads a command's progress from its output, and the lines that it is searched in.

Like progress= of --elastic (elastic/driver/progress/regex.py), which this package cannot import.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Literal

from sizing.base.errors import UsageError

Group = Literal["samples", "step", "rate"]
GROUPS: tuple[Group, ...] = ("samples", "step", "rate")
"""Groups that an expression may have; of several, the first one here that a line has is taken."""

_LINE_BYTES = 4096
"""The part of a line that is looked at; a line without an end is not kept in memory."""

_MATCH_S = 0.5
"""CPU time for one line: an expression that needs more may never end."""

COUNT_MOST = 2**53
"""From here on a float is not the exact count that was printed, and sums of floats are not exact either."""

_EXAMPLE = "--regex 'step (?P<step>[0-9]+)'"
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_PRINTED = re.compile(r"[0-9][0-9,_]*(?![0-9,_]*[.%])")
"""A whole number within a line: no part of a decimal one, and no percentage."""
_LETTERS = re.compile(r"[^A-Za-z]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9,_]*)?\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?$|[0-9][0-9,_]*\.?$")


class _TooLongError(Exception):
    """The expression takes too long on a line."""


class Pattern:
    """A checked expression; `said` says why it is no longer searched for, "" while it is."""

    def __init__(self, text: str) -> None:
        """Compile the expression; raise UsageError, one line, if it is invalid or has no known group."""
        try:
            self._expression = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"--regex {text!r}: not a regular expression: {error}") from None
        if not set(GROUPS) & set(self._expression.groupindex):
            named = ", ".join(sorted(self._expression.groupindex))
            raise UsageError(
                f"--regex {text!r}: {f'{named} is no known group' if named else 'it has no named group'}: write one of "
                f"(?P<step>...), (?P<samples>...) and (?P<rate>...), for example {_EXAMPLE}"
            )
        self.text = text
        self.said = ""
        self._matching = False

    def search(self, line: str) -> tuple[Group, float] | None:
        """Return the group that a line has, and the number in it; None if it has none.

        In the main thread no line takes longer than a moment: Python's engine checks for signals while it searches.
        """
        if self.said:
            return None
        match = self._matched(line)
        if match is None:
            return None
        said = match.groupdict()
        for group in GROUPS:
            if said.get(group) is not None and (value := number(said[group])) is not None:
                return group, value
        return None

    def _matched(self, line: str) -> re.Match[str] | None:
        if threading.current_thread() is not threading.main_thread():
            return self._expression.search(line)
        before = signal.signal(signal.SIGVTALRM, self._too_long)
        try:
            try:
                self._matching = True
                signal.setitimer(signal.ITIMER_VIRTUAL, _MATCH_S)
                return self._expression.search(line)
            finally:
                self._matching = False
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _TooLongError:
            self.said = (
                f"--regex {self.text!r} takes too long on a line of the output: write it without repeats of repeats, "
                "such as (a+)+"
            )
            return None
        finally:
            signal.signal(signal.SIGVTALRM, before)

    def _too_long(self, number: int, frame: FrameType | None) -> None:
        if self._matching:
            raise _TooLongError


# Letters of a line, and lines, that an expression is looked for in: some commands print tensors.
_SUGGESTED_OF, _SUGGESTED_BY = 200, 6


def number(text: str) -> float | None:
    """Return a number as scripts print it, with or without thousands separators; None for any other text."""
    text = text.strip()
    if len(text) > 40 or not _NUMBER.match(text):
        return None
    value = float(text.replace(",", "").replace("_", ""))
    return value if 0 <= value < COUNT_MOST else None


def suggested(lines: Sequence[str]) -> str:
    """Return an expression for the step that a command prints: the first whole number that grows between lines alike.

    Return "" if there is none: of the lines, the last are compared with those before that differ in numbers only.
    """
    lines = [line[:_SUGGESTED_OF] for line in list(lines)[-_SUGGESTED_BY:]]
    for place in range(len(lines) - 1, 0, -1):
        line = lines[place]
        alike = (each for each in reversed(lines[:place]) if _LETTERS.sub(" ", each) == _LETTERS.sub(" ", line))
        if (before := next(alike, None)) is not None and (found := _grown(before, line)):
            return found
    return ""


def _grown(before: str, line: str) -> str:
    """Return an expression for the first whole number that is larger in a line than in the one before."""
    earlier, later = ([found for found in _PRINTED.finditer(text) if _alone(text, found)] for text in (before, line))
    if len(earlier) != len(later):
        return ""
    for was, now in zip(earlier, later, strict=True):
        old, new = number(was[0]), number(now[0])
        if old is None or new is None or new <= old:
            continue
        word = re.search(r"[A-Za-z_]+[^A-Za-z0-9]{0,3}$", line[: now.start()])
        begins = re.escape(word[0]) if word else "" if line[: now.start()].strip() else "^"
        ends = re.escape(line[now.end() : now.end() + 1].strip())
        expression = f"{begins}(?P<step>[0-9][0-9,_]*){ends}".replace("\\ ", " ")
        if (found := re.search(expression, line)) is not None and found["step"] == now[0]:
            return expression
    return ""


def _alone(line: str, found: re.Match[str]) -> bool:
    """Whether a whole number is not part of a decimal one, a word, a date or a time of day."""
    return not (
        re.search(r"[0-9A-Za-z_.,]$|[0-9][:-]$", line[: found.start()]) or re.match("[:-][0-9]", line[found.end() :])
    )


class OutputLines:
    """A splitter of output into lines, also at the carriage returns of progress bars; colours are removed."""

    def __init__(self) -> None:
        self._rest = b""
        self.last = ""
        """The last non-empty line."""

    def feed(self, chunk: bytes) -> list[str]:
        """Return the lines that end in a chunk; only the beginning of a long line is kept."""
        parts = chunk.replace(b"\r", b"\n").split(b"\n")
        parts[0] = self._rest + parts[0][:_LINE_BYTES]
        self._rest = parts.pop()[:_LINE_BYTES]
        found = [text for part in parts if (text := plain(part[:_LINE_BYTES]))]
        if found:
            self.last = found[-1]
        return found

    def end(self) -> list[str]:
        """Return the last output without a line ending."""
        return self.feed(b"\n")


def plain(line: bytes) -> str:
    """Return a line as text that is safe for a terminal: without colours and control characters."""
    text = _ESCAPES.sub("", line.decode(errors="replace"))
    return "".join(each if each.isprintable() else " " if each == "\t" else "?" for each in text).strip()
