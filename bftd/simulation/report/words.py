"""Numbers formatted for readers."""

from __future__ import annotations

from collections.abc import Sequence


def percent(share: float, digits: int = 0) -> str:
    """Format a share in percent, with a thin no-break space before the sign."""
    return f"{100 * share:.{digits}f}\u202f%"


def count(number: float) -> str:
    """Format a number with one decimal below a hundred, without any above."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.1f}"


def length(seconds: float) -> str:
    """Format a span of time in the unit that suits it."""
    for unit, least_s, unit_s in (("days", 2 * 86400, 86400), ("h", 3600, 3600), ("min", 60, 60)):
        if seconds >= least_s:
            return f"{seconds / unit_s:.3g}\u00a0{unit}"
    return f"{seconds:.3g}\u00a0s"


def seconds(value: float) -> str:
    """Format seconds as they were set."""
    return f"{value:g}\u00a0s"


def hours(seconds: float) -> str:
    """Format a span in hours, all with the same digits: for columns."""
    return f"{seconds / 3600:,.2f}\u00a0h"


def listed(parts: Sequence[str]) -> str:
    """Join parts as in a sentence: a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
