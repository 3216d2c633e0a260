"""Tables of Slurm's accounting commands: a header and rows of fields separated by "|", and the dates in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.job_model import LATEST_S
from slurm_plugin.read.dates import local

# Free-text fields, which may contain a "|".
_FREE_TEXT = frozenset({"reason", "jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir"})
# The ways in which Slurm's releases write a missing list of nodes, and a missing time.
NO_NODES = frozenset({"", "none assigned", "none", "n/a", "(null)", "unknown"})
_NO_TIME = frozenset({"", "unknown", "none", "n/a", "(null)", "0"})
_SECONDS = re.compile(r"\d{1,12}")
# The beginning of a row whose first field is the id of a job.
_JOB = re.compile(r"\d[^|\s]*\|")


@dataclass(frozen=True, slots=True)
class SacctRow:
    """One row: its place as shown in messages, and its fields by column name in lower case."""

    where: str
    fields: Mapping[str, str]

    def first(self, *names: str) -> str:
        """Return the field of the first of these columns that exists, or "" if none does."""
        return next((self.fields[name] for name in names if name in self.fields), "")


def columns(text: str) -> list[str]:
    """Return the columns of a table, in lower case."""
    return text[: text.find("\n") + 1 or len(text)].strip().removesuffix("|").lower().split("|")


def rows(text: str, where: str, needed: tuple[tuple[str, ...], ...], advice: str) -> Iterator[SacctRow]:
    """Yield the rows of a table; a header that is repeated, as in concatenated files, is no row.

    Each entry of `needed` lists alternative names, one of which the header must have; `advice` says how to make a
    correct file. Raise TraceError for a missing column or a row with another number of fields. Free text in the last
    column may have several lines, of which the first is kept.
    """
    lines = _lines(text)
    header = next(lines, "").strip()
    names = columns(header)
    if lack := [each[0] for each in needed if not set(each) & set(names)]:
        raise TraceError(f"{where}, line 1: no column {lack[0]}: {advice}")
    free = [name in _FREE_TEXT for name in names]
    spare = free.index(True) if sum(free) == 1 else None
    wraps = free[-1] and names[0] in ("jobidraw", "jobid")
    for number, line in enumerate(lines, start=2):
        if not line.strip() or line.strip() == header or (wraps and not _JOB.match(line)):
            continue
        fields = line.split("|")
        if header.endswith("|") and len(fields) > len(names) and not fields[-1]:
            fields.pop()
        surplus = len(fields) - len(names)
        if surplus > 0 and spare is not None:
            fields[spare : spare + surplus + 1] = ["|".join(fields[spare : spare + surplus + 1])]
        elif surplus:
            raise TraceError(f"{where}, line {number}: {len(fields)} fields instead of {len(names)}: {advice}")
        yield SacctRow(f"{where}, line {number}", dict(zip(names, map(str.strip, fields), strict=True)))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines one by one: a list of them would take as much memory as the text again."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end].rstrip("\r\n")
        start = end


@dataclass(slots=True)
class Dates:
    """A reader of dates as unix seconds, local ones in this machine's time zone, that counts ambiguous local times."""

    ambiguous: int = 0

    def read(self, row: SacctRow, *names: str, latest: bool = False) -> float | None:
        """Return the time in the first of these columns that exists, or None if it holds none.

        Of a local time that a change of clocks repeats, return the earlier instant, or the later one with `latest`.
        Raise TraceError for text that is no time.
        """
        text = row.first(*names)
        if text.lower() in _NO_TIME:
            return None
        if _SECONDS.fullmatch(text) and float(text) <= LATEST_S:
            return float(text)
        try:
            first, last = local(text)
        except ValueError:
            raise TraceError(f"{row.where}: {text[:40]!r} is not a time") from None
        self.ambiguous += first != last
        return last if latest else first
