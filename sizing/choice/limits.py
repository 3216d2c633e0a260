"""Time limits in Slurm's notation, and durations in words."""

from __future__ import annotations

import math
import re

from sizing.base.estimate import Estimate

_STEP_S = 300
YEAR_S = 365 * 86400.0
"""From this length on a duration is told in years alone: neither Slurm's plans nor estimates are worth a date then."""
_FORMS = (
    (re.compile(r"(\d{1,9})$"), (60,)),
    (re.compile(r"(\d{1,9}):(\d{1,9})$"), (60, 1)),
    (re.compile(r"(\d{1,9}):(\d{1,9}):(\d{1,9})$"), (3600, 60, 1)),
    (re.compile(r"(\d{1,9})-(\d{1,9})$"), (86400, 3600)),
    (re.compile(r"(\d{1,9})-(\d{1,9}):(\d{1,9})$"), (86400, 3600, 60)),
    (re.compile(r"(\d{1,9})-(\d{1,9}):(\d{1,9}):(\d{1,9})$"), (86400, 3600, 60, 1)),
)


def limit_s(longest_s: float, max_time_s: float | None) -> float:
    """Return a time limit for a run of at most `longest_s`: rounded up to five minutes, within the partition's."""
    rounded = float(math.ceil(longest_s / _STEP_S) * _STEP_S)
    return rounded if max_time_s is None else min(rounded, max_time_s)


def slurm(seconds: float) -> str:
    """Return the duration as [days-]hours:minutes:seconds, as --time takes it."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock


def of_slurm(text: str) -> float | None:
    """Return the seconds of a --time.

    Its forms are minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]. Infinity for no limit
    (0, UNLIMITED, INFINITE, -1), None for an invalid text.
    """
    if text.strip().upper() in ("0", "-1", "UNLIMITED", "INFINITE"):
        return math.inf
    for form, units in _FORMS:
        if found := form.match(text.strip()):
            return float(sum(int(part) * unit for part, unit in zip(found.groups(), units, strict=True)))
    return None


def words(seconds: float) -> str:
    """Return about two figures for people: 45 s, 12 min, 3 h 20 min, 2 d 4 h, over a year, over 20 years."""
    if seconds >= YEAR_S:
        years = int(seconds / YEAR_S) if math.isfinite(seconds) else 0
        return f"over {years:,} years" if years > 1 else "over a year"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minute = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minute} min" if minute else f"{hours} h"
    days, hour = divmod(round(seconds / 3600), 24)
    return f"{days} d {hour} h" if hour else f"{days} d"


def hours(count: float) -> str:
    """Return three figures of GPU-hours: 0.0336, 12.4, 1,620."""
    return f"{count:.3g}" if count < 999.5 else f"{float(f'{count:.3g}'):,.0f}"


def too_long(run: Estimate, max_time_s: float) -> str:
    """Return the reason why a run is too long for a partition."""
    return f"it would run {words(run.value)} ({run.origin}), and the partition's MaxTime is {words(max_time_s)}"
