"""Dates as Slurm's commands write and take them, by this machine's time zone."""

from __future__ import annotations

import re
from datetime import datetime

_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?")


def local(text: str) -> tuple[float, float]:
    """Unix seconds of a local date, earliest and latest where a change of clocks repeats it; ValueError for no date."""
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    date = datetime.fromisoformat(text)
    try:
        first, last = date.timestamp(), date.replace(fold=1).timestamp()
    except (OverflowError, OSError) as error:
        raise ValueError(text) from error
    return min(first, last), max(first, last)
