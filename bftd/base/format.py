"""Numbers and times as people read them: one form for each quantity, on every screen, table and page.

"-" stands for anything unknown. Times are unix seconds, shown on this host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

UNKNOWN = "-"
_DAY_S = 86400.0
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def size(size_bytes: float) -> str:
    """Format bytes: 1023 B, 21.8 KiB."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    scale, unit = next(item for item in _BYTES if size_bytes >= item[0])
    return f"{size_bytes / scale:.1f} {unit}"


def between(low: int, high: int, noun: str) -> str:
    """Return "1 to 4 nodes", or "4 nodes" if both are the same."""
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"


def counted(number: int, noun: str) -> str:
    """Format a number of things: 1 job, 1,200 jobs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    """Join parts as in a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def some(names: Sequence[str], count: int | None = None, most: int = 3) -> str:
    """Name the first of `count` things, by default of all the names: a and b; a, b, c and 2 more."""
    named = names[:most]
    left = (len(names) if count is None else count) - len(named)
    return f"{', '.join(named)} and {left:,} more" if left else listed(named)


def decimal(value: float) -> str:
    """Format a number with fewer decimals the larger it is: 0.47, 12.3, 1,234."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"


def node_hours(node_seconds: float) -> str:
    """Format node-seconds as node-hours."""
    return decimal(node_seconds / 3600)


def amount(value: float | None) -> str:
    """Format a number that is often a whole one with as many digits as are meaningful: 3, 0.25, 1,234."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share in percent."""
    return UNKNOWN if share is None else f"{share:.{digits}%}"


def rate(per_s: float) -> str:
    """Format samples/s in three digits, four below 10,000: 3.14, 9999, 12.3k, 1M."""
    for scale, unit in _THOUSANDS:
        if abs(per_s) >= max(9999.5, 0.9995 * scale):
            return f"{per_s / scale:.3g}{unit}"
    return f"{per_s:.0f}" if abs(per_s) >= 99.95 else f"{per_s:.3g}"


def span(seconds: float) -> str:
    """Format the time to or since something: 45 s, 12 min, 3.5 h, 2.1 d."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * _DAY_S else f"{seconds / _DAY_S:.1f} d"


def duration(seconds: float) -> str:
    """Format a measured time in three digits: 0.25 s, 12.5 min, 3.2 h, 7 days."""
    for unit, least_s, unit_s in (("days", 2 * _DAY_S, _DAY_S), ("h", 3600, 3600), ("min", 60, 60)):
        if seconds >= least_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def period(seconds: float) -> str:
    """Format a chosen time in the largest unit that divides it: 7 days, 1 hour, 90 minutes."""
    for unit, unit_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= unit_s and seconds % unit_s == 0:
            return counted(int(seconds // unit_s), unit)
    return f"{seconds:g} s"


def elapsed(since_s: float | None, until_s: float | None) -> str:
    """Format the time from one moment to another as Slurm does: [D-]H:MM:SS."""
    if since_s is None or until_s is None:
        return UNKNOWN
    minutes, seconds = divmod(max(0, int(until_s - since_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}" if days else f"{hours}:{minutes:02d}:{seconds:02d}"


def clock(at_s: float | None) -> str:
    """Format a time of day: 20:00:05."""
    return _at(at_s, "%H:%M:%S")


def moment(at_s: float | None) -> str:
    """Format a date and time: 2026-01-31 20:00:05."""
    return _at(at_s, "%Y-%m-%d %H:%M:%S")


def minute(at_s: float | None) -> str:
    """Format a date and time without seconds: 2026-01-31 20:00."""
    return _at(at_s, "%Y-%m-%d %H:%M")


def end(at_s: float | None, now_s: float) -> str:
    """Format the expected end of something: a time of day within a day from now, else a date."""
    text = _at(at_s, "%H:%M" if at_s is not None and abs(at_s - now_s) < _DAY_S else "%Y-%m-%d")
    return "never" if text == UNKNOWN and at_s is not None else text  # at its present rate it never ends


def _at(at_s: float | None, form: str) -> str:
    try:
        return UNKNOWN if at_s is None else time.strftime(form, time.localtime(at_s))
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return UNKNOWN
