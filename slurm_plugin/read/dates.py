"""Dates as Slurm's commands print and accept them, in this machine's time zone."""

from __future__ import annotations

import re
from datetime import datetime

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?")


def local(text: str) -> tuple[float, float]:
    """Return the earliest and latest unix seconds of a local date, which differ if a change of clocks repeats it.

    Raise ValueError for text that is no date.
    """
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    date = datetime.fromisoformat(text)
    try:
        first, last = date.timestamp(), date.replace(fold=1).timestamp()
    except (OverflowError, OSError) as error:
        raise ValueError(text) from error
    return min(first, last), max(first, last)
