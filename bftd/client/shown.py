"""Answers as tables: in a terminal by rich, in a notebook as HTML. Neither is loaded before one is shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from bftd.client.shapes import written
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

# Of a long list, in a notebook as in a terminal: the rest is counted.
_ROWS_MOST = 200
_CELL_STYLE = "text-align:{};padding:0.15em 0.7em"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table: titles, and rows of texts; `right` has the columns that hold numbers."""

    title: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()

    @property
    def head(self) -> str:
        """The title, and how many rows a long table has that are not shown."""
        left = len(self.rows) - _ROWS_MOST
        return f"{self.title} ({left} more rows)" if left > 0 else self.title


class Shown:
    """What every answer can do: be shown in a terminal and in a notebook, and become JSON again."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        """The tables that show it; of an object with cells, one with a row a cell."""
        rows = tuple((name, text(value)) for name, value in self.cells().items())
        return (Sheet(type(self).__name__, ("", ""), rows),)

    def cells(self) -> Mapping[str, Any]:
        """Its values by title, as a row of a table."""
        return {}

    def to_dict(self) -> Any:
        """The JSON that it was made of, without keys that this version does not know."""
        return written(self)

    def __rich__(self) -> RenderableType:
        """Tables that fit their terminal."""
        from rich.console import Group

        from bftd.tables import Column, Fitted

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
        """Tables for a notebook; nothing that others have named is taken for HTML."""
        return "".join(map(_html, self.sheets()))


T = TypeVar("T", bound=Shown)


class Rows(tuple[T, ...], Shown):
    """Several of a kind: a tuple that is shown as one table."""

    __slots__ = ()

    def sheets(self) -> Sequence[Sheet]:
        """A row each."""
        return (sheet(type(self[0]).__name__ + "s" if self else "Nothing", self),)


def sheet(title: str, items: Sequence[Shown]) -> Sheet:
    """A table with a row an item."""
    rows = [item.cells() for item in items]
    titles = tuple(rows[0]) if rows else ()
    numbers = {
        at for at, name in enumerate(titles) if not any(isinstance(row.get(name), (str, bool, tuple)) for row in rows)
    }
    cells = tuple(tuple(text(row.get(name)) for name in titles) for row in rows)
    return Sheet(title, titles, cells, frozenset(numbers))


def text(value: Any) -> str:
    """A value in a table: "-" for what is not known."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return ", ".join(map(text, value)) if isinstance(value, tuple) else str(value)


def moment(time_s: float | None) -> str | None:
    """A time on this host's clock; None where it is not known, or no time that a clock shows."""
    try:
        return None if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):
        return None


def _html(item: Sheet) -> str:
    """One table as HTML, with no style but the alignment: a notebook has its own."""
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
