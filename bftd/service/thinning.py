"""Progress, which each driver reports every second, made one row a minute in the ledger.

The last report before anything else of the same trainer is always kept: what it had reached when it was resized,
suspended or ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bftd.service.rows import EventRow

EVERY_S = 60.0


class Thinning:
    """What was written of each trainer's progress last, and what is held back since.

    `plan` changes nothing: `settle` does, once what was planned is written.
    """

    def __init__(self) -> None:
        self._written_s: dict[str | None, float] = {}
        self._held: dict[str | None, EventRow] = {}
        self._planned = self._written_s, self._held

    def plan(self, rows: Iterable[EventRow]) -> list[EventRow]:
        """The rows to write now, in order, when `rows` happen."""
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
        """What is held back of trainers that say nothing more, or whose time has gone back."""
        return (row for row in self._held.values() if not 0.0 <= now_s - row[0] < EVERY_S)

    def release(self, rows: Iterable[EventRow]) -> None:
        """Hold these back no longer: they are written."""
        for row in rows:
            self._held.pop(row[2], None)
            self._written_s[row[2]] = row[0]

    def settle(self) -> None:
        """What was planned last is written."""
        self._written_s, self._held = self._planned
