"""Markdown for pages of figures: tables, percentages and bars that a terminal shows as well as a browser."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_BARS = "▁▂▃▄▅▆▇█"
NOT_PRINTED = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; all columns but the first are right-aligned."""
    rules = ["---"] + ["---:"] * (len(head) - 1)
    lines = [head, rules, *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def percent(value: float | None, digits: int = 1) -> str:
    """A share, such as "83.1 %"; a dash where there is none."""
    return NOT_PRINTED if value is None else f"{100 * value:.{digits}f} %"


def brief_percent(value: float) -> str:
    """A share without a decimal that is 0, such as "7.5 %" and "100 %"."""
    return percent(value).replace(".0 ", " ")


def bounded(text: str, met: bool) -> str:
    """A figure, with a word where it is beyond its bound."""
    return text if met else f"{text}, missed"


def signed(value: float, digits: int = 0) -> str:
    """A relative change, such as "-28 %"."""
    return f"{100 * value:+.{digits}f} %".replace("-", "−")


def points(value: float) -> str:
    """A difference of two shares in percentage points, such as "+5.1"."""
    return f"{100 * value:+.1f}".replace("-", "−")


def bars(values: Sequence[float], low: float, high: float) -> str:
    """One bar for each value, the lowest at `low` and the full one at `high`."""
    span = high - low or 1.0
    places = [round((value - low) / span * (len(_BARS) - 1)) for value in values]
    return "".join(_BARS[min(max(place, 0), len(_BARS) - 1)] for place in places)


def section(title: str, *paragraphs: str) -> str:
    """A section of the page."""
    return "\n\n".join((f"## {title}", *paragraphs))


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of `measured`: what was measured, how much it is, the bound set beforehand and whether it is beyond it."""

    what: str
    text: str
    bound: str = ""
    missed: bool = False


def measured(rows: Iterable[Measured]) -> str:
    """A table of figures and their bounds; a figure beyond its bound is marked as missed."""
    lines = [["what", "measured", "bound"], ["---"] * 3]
    lines += [[row.what, row.text, f"{row.bound}, **missed**" if row.missed else row.bound] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], unit: str, digits: int = 2) -> str:
    """The median of some values with the least and the most, such as "1.01 s (0.43-1.05)"."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} {unit}" + ("" if len(values) == 1 else f" ({low}-{high})")
