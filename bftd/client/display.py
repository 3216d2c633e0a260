"""Answers as tables: in a terminal by rich, in a notebook as HTML.

Neither is loaded before it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from bftd.client.decode import written
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

# Most rows shown of a long list, in a notebook as in a terminal: the rest are counted.
_ROWS_MOST = 200
_CELL_STYLE = "text-align:{};padding:0.15em 0.7em"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table: titles, and rows of texts; `right` are the columns that hold numbers."""

    title: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()

    @property
    def head(self) -> str:
        """The title, and the number of rows that are not shown."""
        left = len(self.rows) - _ROWS_MOST
        return f"{self.title} ({left} more rows)" if left > 0 else self.title


class Shown:
    """The base of all answers: shows them in a terminal and in a notebook, and converts them back to JSON."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        """Return the tables that show the answer; by default one with a row per cell."""
        rows = tuple((name, text(value)) for name, value in self.cells().items())
        return (Sheet(type(self).__name__, ("", ""), rows),)

    def cells(self) -> Mapping[str, Any]:
        """Return the values by title, as a row of a table."""
        return {}

    def to_dict(self) -> Any:
        """Return the JSON that the answer came from, without keys that this version does not know."""
        return written(self)

    def __rich__(self) -> RenderableType:
        """Return tables that fit their terminal."""
        from rich.console import Group

        from bftd.base.tables import Column, Fitted

        return Group(
            *(
                Fitted(
                    sheet.head,
                    [
                        Column(title, rank=at if at > 1 else 0, right=at in sheet.right, least=8, folds=at == 0)
                        for at, title in enumerate(sheet.titles)
                    ],
                    [(row, "") for row in sheet.rows[:_ROWS_MOST]],
                    header=any(sheet.titles),
                )
                for sheet in self.sheets()
            )
        )

    def _repr_html_(self) -> str:
        """Return tables for a notebook; all text is escaped."""
        return "".join(map(_html, self.sheets()))


T = TypeVar("T", bound=Shown)


class Rows(tuple[T, ...], Shown):
    """A tuple of answers of one kind, shown as one table."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        """Return one table with a row per answer."""
        return (sheet(type(self[0]).__name__ + "s" if self else "Nothing", self),)


def sheet(title: str, items: Sequence[Shown]) -> Sheet:
    """Return a table with a row per item."""
    rows = [item.cells() for item in items]
    titles = tuple(rows[0]) if rows else ()
    numbers = {
        at for at, name in enumerate(titles) if not any(isinstance(row.get(name), (str, bool, tuple)) for row in rows)
    }
    cells = tuple(tuple(text(row.get(name)) for name in titles) for row in rows)
    return Sheet(title, titles, cells, frozenset(numbers))


def text(value: Any) -> str:
    """Format a value in a table: "-" if it is not known."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return ", ".join(map(text, value)) if isinstance(value, tuple) else str(value)


def _html(item: Sheet) -> str:
    """Return one table as HTML, with no style but alignment and padding: a notebook has its own."""
    return "".join(_parts(item))


def _parts(item: Sheet) -> Iterator[str]:
    sides = [_CELL_STYLE.format("right" if at in item.right else "left") for at in range(len(item.titles))]
    yield f"<table><caption style='text-align:left'><b>{_safe(item.head)}</b></caption>"
    if any(item.titles):
        heads = "".join(
            f"<th scope='col' style='{side}'>{_safe(title)}</th>"
            for title, side in zip(item.titles, sides, strict=True)
        )
        yield f"<thead><tr>{heads}</tr></thead>"
    yield "<tbody>"
    for row in item.rows[:_ROWS_MOST]:
        cells = (f"<td style='{side}'>{_safe(cell)}</td>" for cell, side in zip(row, sides, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _safe(value: str) -> str:
    return escape(printable(value))
