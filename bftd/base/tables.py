"""Tables that fit a given width: no header is ever cut, and whole columns are dropped before a value is cut.

`fit` decides, `lines` returns the table as plain text, and `Fitted` the same in styles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from bftd.base.text import ByRich, Line, Words, folded, restyled
from bftd.protocol.fields import printable

_GAP = 2
_CUT = "+"  # Slurm marks a cut value in the same way


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the column with the highest `rank` is dropped first; one of rank 0 always stays.

    A value keeps its full length if `least` is None. Otherwise it may be shortened to that many characters: folded over
    several lines (`folds`, suitable for sentences and node sets), or cut.
    """

    title: str
    rank: int = 0
    right: bool = False
    least: int | None = None
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """The columns that are shown and their widths; `dropped` are the others, and `needs` is the width for all."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    dropped: tuple[int, ...]
    needs: int


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Fit:
    """Choose columns and their widths for `width` characters; None means unlimited.

    If not even the columns of rank 0 fit, their values are folded as far as their headers allow.
    """
    full = [max([cell_len(column.title), *(cell_len(row[at]) for row in rows)]) for at, column in enumerate(columns)]
    floors = [
        full[at] if column.least is None else max(cell_len(column.title), min(full[at], column.least))
        for at, column in enumerate(columns)
    ]
    shown, needs = list(range(len(columns))), _total(floors)
    if width is None:
        return Fit(tuple(shown), tuple(full), (), needs)
    while _total([floors[at] for at in shown]) > width:
        last = max(shown, key=lambda at: columns[at].rank)
        if columns[last].rank == 0:
            floors = [cell_len(column.title) for column in columns]
            break
        shown.remove(last)
    widths = _shared([floors[at] for at in shown], [full[at] for at in shown], width)
    dropped = sorted(set(range(len(columns))) - set(shown))
    return Fit(tuple(shown), tuple(widths), tuple(dropped), needs)


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Yield the table as lines of text, header first; the last line names the columns that did not fit."""
    rows = _plain(rows)
    chosen = fit(columns, rows, width)
    yield from _lines(columns, chosen, [column.title for column in columns])
    for row in rows:
        yield from _lines(columns, chosen, row)
    if chosen.dropped:
        yield _more(columns, chosen)


def blocks(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[list[str]]:
    """Yield the lines of each row, for a table without a header that has other text between its rows."""
    rows = _plain(rows)
    chosen = fit(columns, rows, width)
    for row in rows:
        yield list(_lines(columns, chosen, row))


class Fitted(ByRich):
    """A table in styles under a title of its own; each row is its values and a style.

    Without a `header` the columns' titles only serve as names for `style`.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Iterable[tuple[Sequence[str], str]],
        *,
        header: bool = True,
    ) -> None:
        self._title = title
        self._columns = columns
        self._rows = [(tuple(map(printable, cells)), style) for cells, style in rows]
        self._header = header
        self._styles: dict[int, Callable[[str], str]] = {}

    def style(self, title: str, of: Callable[[str], str]) -> Fitted:
        """Style the values of one column: `of` returns the style of a value."""
        self._styles[next(at for at, column in enumerate(self._columns) if column.title == title)] = of
        return self

    def lines(self, width: int | None) -> Iterator[Line]:
        """Draw the table in `width` columns; None means unlimited."""
        chosen = fit(self._columns, [cells for cells, _ in self._rows], width)
        yield [(self._title, "bold")]
        if self._header:
            for line in _lines(self._columns, chosen, [column.title for column in self._columns]):
                yield [(line, "bold")]
        # a column's own style begins where the column begins, on every line of the row
        styled = [
            (start, start + width, at, self._styles[at])
            for at, start, width in zip(chosen.shown, _starts(chosen.widths), chosen.widths, strict=True)
            if at in self._styles
        ]
        for cells, style in self._rows:
            spans = [(start, end, of(cells[at])) for start, end, at, of in styled]
            for line in _lines(self._columns, chosen, cells):
                yield restyled(line, style, spans)
        if chosen.dropped:
            yield from Words(_more(self._columns, chosen), "dim").lines(width)


def _more(columns: Sequence[Column], chosen: Fit) -> str:
    return f"more at {chosen.needs} columns: {', '.join(columns[at].title for at in chosen.dropped)}"


def _lines(columns: Sequence[Column], chosen: Fit, cells: Sequence[str]) -> Iterator[str]:
    """Yield one row, in as many lines as its longest folded value needs."""
    parts = [_pieces(columns[at], cells[at], width) for at, width in zip(chosen.shown, chosen.widths, strict=True)]
    for index in range(max(map(len, parts), default=0)):
        line = ""
        for at, width, pieces in zip(chosen.shown, chosen.widths, parts, strict=True):
            piece = pieces[index] if index < len(pieces) else ""
            blank = " " * (width - cell_len(piece))
            line += (blank + piece if columns[at].right else piece + blank) + " " * _GAP
        yield line.rstrip()


def _pieces(column: Column, text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    if column.least is not None and not column.folds:
        return [set_cell_size(text, width - 1).rstrip() + _CUT]
    return list(folded(text, width))


def _plain(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the values without terminal control characters: users choose the names of jobs."""
    return [list(map(printable, row)) for row in rows]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * max(0, len(widths) - 1)


def _starts(widths: Sequence[int]) -> list[int]:
    return [sum(widths[:at]) + _GAP * at for at in range(len(widths))]


def _shared(floors: Sequence[int], full: Sequence[int], width: int) -> list[int]:
    """Distribute the width beyond the floors, narrowest column first, up to each column's full width."""
    widths = list(floors)
    spare = width - _total(widths)
    while spare > 0 and any(now < most for now, most in zip(widths, full, strict=True)):
        at = min((at for at in range(len(widths)) if widths[at] < full[at]), key=lambda at: widths[at])
        widths[at] += 1
        spare -= 1
    return widths
