"""The table of trainers: only changed cells are rewritten, and the cursor stays on its trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual.widgets import DataTable

from bftd.client import Trainer
from bftd.protocol.fields import printable
from bftd.ui.live import panels
from bftd.ui.live.glyphs import Glyphs


@dataclass(frozen=True, slots=True)
class LiveColumn:
    """A column: title, field of a TrainerLine, width, rank and sort key; the highest rank is dropped first."""

    title: str
    field: str
    width: int
    rank: int
    sort: Callable[[Trainer], Any]
    right: bool = False


def _unknown_last(value: float | None, sign: int = 1) -> tuple[bool, float]:
    return (value is None, sign * (value or 0.0))


COLUMNS = (
    LiveColumn("ID", "id", 8, 0, lambda item: (len(item.id), item.id)),
    LiveColumn("NAME", "name", 12, 0, lambda item: item.name),
    LiveColumn("USER", "user", 8, 2, lambda item: item.user),
    LiveColumn("STATE", "state", 12, 0, lambda item: item.state),
    LiveColumn("NODES", "nodes", 9, 0, lambda item: -item.working, right=True),
    LiveColumn("RANGE", "range", 7, 3, lambda item: (item.nodes_min, item.nodes_max), right=True),
    LiveColumn("SAMPLES/S", "rate", 9, 0, lambda item: -item.samples_per_s, right=True),
    LiveColumn("ENDS", "left", 6, 0, lambda item: _unknown_last(item.expected_end_s), right=True),
    LiveColumn("EFF", "efficiency", 4, 1, lambda item: _unknown_last(item.efficiency, -1), right=True),
    LiveColumn("STEP", "step", 15, 4, lambda item: -item.step, right=True),
    LiveColumn("ACCOUNT", "account", 9, 5, lambda item: item.account or ""),
    LiveColumn("RESIZES", "resizes", 7, 6, lambda item: -item.resizes, right=True),
    LiveColumn("ON", "on", 24, 7, lambda item: item.on or ""),
)
# The most that a name may grow to before the last column gets the rest.
_NAME_MOST = 32
_GAP = 1
_BAR = 2  # the scroll bar


class TrainerTable(DataTable[Text]):
    """A table of trainers by key (see `keys`), in an order that can be chosen."""

    def __init__(self, glyphs: Glyphs, **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=0, **options)
        self._glyphs = glyphs
        self._columns_shown: tuple[tuple[LiveColumn, int], ...] = ()
        self._shown: dict[str, tuple[str, ...]] = {}
        self.sorted_by: LiveColumn | None = None
        self.reverse = False

    def show(self, trainers: Sequence[Trainer], now_s: float) -> None:
        """Show exactly these trainers."""
        ordered = list(trainers)
        if self.sorted_by is not None:
            ordered.sort(key=self.sorted_by.sort)
        if self.reverse:
            ordered.reverse()
        chosen = self.current
        self._fit()
        rows = dict(zip(keys(ordered), (self._cells(item, now_s) for item in ordered), strict=True))
        if list(rows) != list(self._shown):
            self._rebuild(rows, chosen)
            return
        for row, cells in rows.items():
            for (column, width), before, after in zip(self._columns_shown, self._shown[row], cells, strict=True):
                if before != after:
                    self.update_cell(row, column.title, _cell(column, width, after))
        self._shown = rows

    @property
    def current(self) -> str:
        """The key of the row under the cursor, "" if there is none."""
        return list(self._shown)[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else ""

    def _fit(self) -> None:
        """Choose columns and widths for the available width."""
        width_most = max(20, self.size.width or 80) - _BAR
        columns = list(COLUMNS)
        while sum(column.width + _GAP for column in columns) > width_most and any(column.rank for column in columns):
            columns.remove(max(columns, key=lambda column: column.rank))
        spare = max(0, width_most - sum(column.width + _GAP for column in columns))
        more = {"NAME": min(spare, _NAME_MOST - 12)}
        more |= {"ON": spare - more["NAME"]}
        widths = tuple((column, column.width + more.get(column.title, 0)) for column in columns)
        marks = tuple(self._title(column) for column, _ in widths)
        if widths != self._columns_shown or marks != tuple(str(each.label).strip() for each in self.ordered_columns):
            self._columns_shown = widths
            self._shown = {}
            self.clear(columns=True)
            for (column, width), mark in zip(widths, marks, strict=True):
                self.add_column(_cell(column, width, mark), width=width + _GAP, key=column.title)

    def _title(self, column: LiveColumn) -> str:
        """Return a column's title, with a mark that is never cut off if the rows are sorted by it."""
        if column is not self.sorted_by:
            return column.title
        mark = "^" if self.reverse else "v"
        return f"{column.title[: column.width - 1]}{mark}"

    def _rebuild(self, rows: dict[str, tuple[str, ...]], chosen: str) -> None:
        """Rewrite all rows after some were added, removed or moved."""
        at_y = self.scroll_y
        self.clear()
        for row, cells in rows.items():
            self.add_row(
                *(_cell(column, width, cell) for (column, width), cell in zip(self._columns_shown, cells, strict=True)),
                key=row,
            )
        self._shown = rows
        if chosen in rows:
            self.move_cursor(row=list(rows).index(chosen), animate=False, scroll=False)
        self.scroll_to(y=at_y, animate=False)

    def _cells(self, item: Trainer, now_s: float) -> tuple[str, ...]:
        line = item.line(now_s)
        return tuple(printable(getattr(line, column.field)) for column, _ in self._columns_shown)


def keys(trainers: Sequence[Trainer]) -> list[str]:
    """Return a key for each trainer: its id, or if that is private its position among those without one."""
    found: list[str] = []
    nameless = 0
    for item in trainers:
        nameless += not item.id
        found.append(item.id or f"\n{nameless}")
    return found


def _cell(column: LiveColumn, width: int, text: str) -> Text:
    """Format a value to the width of its column: never as markup, and cut off with a + as Slurm does."""
    shown = text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}+"
    style = panels.STATE_COLOURS.get(text.partition(" ")[0], "") if column.title == "STATE" else ""
    return Text(f"{shown:>{width}}" if column.right else shown, style=style, no_wrap=True, end="")
