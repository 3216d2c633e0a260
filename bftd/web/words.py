"""Numbers, times and names for the page; all text from outside is escaped here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from bftd.protocol.fields import printable


def text(value: object) -> str:
    """Escape a value as HTML text or as an attribute in double quotes: no tags, no control characters."""
    return escape(printable(str(value)))


def count(number: float) -> str:
    """Format a whole number with commas."""
    return f"{number:,.0f}"


def amount(number: float) -> str:
    """Format a number with as many digits as are meaningful."""
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def share(part: float | None) -> str:
    """Format a share in percent; a dash if it is not known."""
    return "–" if part is None else f"{100 * part:.1f}\N{NO-BREAK SPACE}%"


def node_hours(node_seconds: float) -> str:
    """Format node-seconds as node-hours."""
    hours = node_seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.1f}"


def clock(at_s: float) -> str:
    """Format a time of today."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def moment(at_s: float) -> str:
    """Format a time with its date."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


def zone(at_s: float) -> str:
    """Return the time zone of the daemon's host, in which all times are shown."""
    return time.strftime("%Z", time.localtime(at_s))


def span(seconds: float) -> str:
    """Format a duration in the largest unit that divides it."""
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length_s and seconds % length_s == 0:
            number = int(seconds // length_s)
            return f"{number} {unit}{'s' if number > 1 else ''}"
    return f"{seconds:g} s"


def cut(nodes: str, most: int = 60) -> str:
    """Shorten a folded set of nodes if it is long."""
    return nodes if len(nodes) <= most else nodes[: nodes.rfind(",", 0, most) if "," in nodes[:most] else most] + ",…"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return a table in a region that scrolls by itself and by keyboard; "" without rows.

    Cells are HTML, the first of a row is its heading. `right` are the columns of numbers.
    """
    right = frozenset(right)
    made = []
    for row in rows:
        cells = "".join(f"<td{' class=n' if at in right else ''}>{cell}" for at, cell in enumerate(row) if at)
        made.append(f"<tr><th scope=row>{row[0]}{cells}")
    if not made:
        return ""
    heads = "".join(f"<th scope=col{' class=n' if at in right else ''}>{cell}" for at, cell in enumerate(head))
    return (
        f'<div class=wide role=region tabindex=0 aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{heads}<tbody>{''.join(made)}</table></div>"
    )
