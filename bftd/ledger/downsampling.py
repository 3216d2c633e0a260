"""Thinning of progress: each driver reports it every second, the ledger gets one row a minute.

The last report before any other event of the same trainer is always kept: the state it had reached when it was resized,
suspended or ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bftd.ledger.rows import EventRow

EVERY_S = 60.0


class Thinning:
    """The last written progress of each trainer, and the progress held back since.

    `plan` changes nothing: `settle` does, once the planned rows are written.
    """

    def __init__(self) -> None:
        self._written_s: dict[str | None, float] = {}
        self._held: dict[str | None, EventRow] = {}
        self._planned = self._written_s, self._held

    def plan(self, rows: Iterable[EventRow]) -> list[EventRow]:
        """Return the rows to write now, in order, when `rows` happen."""
        written_s, held = self._planned = dict(self._written_s), dict(self._held)
        out: list[EventRow] = []
        for row in rows:
            at_s, kind, trainer, _, _ = row
            if kind != "progress":
                if (last := held.pop(trainer, None)) is not None:
                    out.append(last)
                    written_s[trainer] = last[0]
                if kind == "finished":
                    written_s.pop(trainer, None)
                out.append(row)
            elif 0.0 <= at_s - written_s.get(trainer, float("-inf")) < EVERY_S:
                held[trainer] = row
            else:
                held.pop(trainer, None)
                written_s[trainer] = at_s
                out.append(row)
        return out

    def overdue(self, now_s: float) -> Iterator[EventRow]:
        """Return rows held back of trainers that report nothing more, or whose time has gone back."""
        return (row for row in self._held.values() if not 0.0 <= now_s - row[0] < EVERY_S)

    def release(self, rows: Iterable[EventRow]) -> None:
        """Drop held-back rows that have been written."""
        for row in rows:
            self._held.pop(row[2], None)
            self._written_s[row[2]] = row[0]

    def settle(self) -> None:
        """Apply the last plan: its rows are written."""
        self._written_s, self._held = self._planned
