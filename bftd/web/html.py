"""HTML of the page: all text from outside is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote

from bftd.protocol.fields import printable


def text(value: object) -> str:
    """Escape a value as HTML text or as an attribute in double quotes: no tags, no control characters."""
    return escape(printable(str(value)))


def cut(nodes: str, most: int = 60) -> str:
    """Shorten a folded set of nodes if it is long."""
    return nodes if len(nodes) <= most else nodes[: nodes.rfind(",", 0, most) if "," in nodes[:most] else most] + ",…"


def link(kind: str, name: str, shown: str = "") -> str:
    """Return a link to the page of a trainer or a node: `kind` is "trainers" or "nodes"."""
    return f'<a href="/{kind}/{quote(printable(name), safe="")}">{text(shown or name)}</a>'


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
