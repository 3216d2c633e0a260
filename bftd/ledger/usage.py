"""Node-seconds by hour, user and account: written with the steps that count them, kept for more than a year.

A step and its charges are one transaction, so that the sums equal the counters' growth even after a kill.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftd.base.errors import LedgerError
from bftd.core.model.domain import UsageShare

# As in Slurm's own usage tables: a time within an hour counts as its beginning.
HOUR_S = 3600
KEEP_S = 400 * 86400.0
# The columns by which usage may be summed.
BY = ("user", "account")

_ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (hour_s, user, account) DO UPDATE SET
used_s = used_s + excluded.used_s, training_s = training_s + excluded.training_s,
leaving_s = leaving_s + excluded.leaving_s
"""


@dataclass(frozen=True, slots=True)
class UsageRequest:
    """A request for usage from `since_s` to `until_s`, summed by the columns `by`; `user` None means all users."""

    since_s: float
    until_s: float
    by: Sequence[str]
    user: str | None = None


class Tally:
    """The shares of one or more steps, summed by hour, user and account."""

    def __init__(self, sums: Mapping[tuple[int, str, str], tuple[float, float, float]] | None = None) -> None:
        self._sums = dict(sums or {})

    def copy(self) -> Tally:
        """Return a copy that can be added to."""
        return Tally(self._sums)

    def take(self, at_s: float, shares: Iterable[UsageShare]) -> None:
        """Charge shares to the hour in which they end."""
        hour_s = int(at_s // HOUR_S) * HOUR_S
        for share in shares:
            key = (hour_s, share.user, share.account)
            used_s, training_s, leaving_s = self._sums.get(key, (0.0, 0.0, 0.0))
            self._sums[key] = (
                used_s + share.used_node_seconds,
                training_s + share.training_node_seconds,
                leaving_s + share.leaving_node_seconds,
            )

    def write(self, db: sqlite3.Connection) -> None:
        """Add all of it to the table, inside the caller's transaction."""
        db.executemany(_ADD, [(*key, *sums) for key, sums in self._sums.items()])


def forget(db: sqlite3.Connection, now_s: float) -> None:
    """Drop hours of more than 400 days ago."""
    db.execute("DELETE FROM usage WHERE hour_s < ?", (now_s - KEEP_S,))


def read(path: Path, asked: UsageRequest) -> dict[str, Any]:
    """Return the answer of `GET /v1/usage`: times in unix seconds, usage in node-seconds, the largest first.

    Opens the ledger at `path` itself, so that it may run in a thread beside the loop.
    """
    since_s, until_s = asked.since_s // HOUR_S * HOUR_S, asked.until_s
    columns = ", ".join(name for name in BY if name in asked.by)
    only = "" if asked.user is None else "AND user = :user"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            rows = db.execute(
                f"SELECT {columns}, sum(used_s), sum(training_s), sum(leaving_s) FROM usage "
                f"WHERE hour_s >= :since AND hour_s < :until {only} GROUP BY {columns} ORDER BY sum(used_s) DESC, 1",
                {"since": since_s, "until": until_s, "user": asked.user},
            ).fetchall()
            (first_s,) = db.execute("SELECT min(hour_s) FROM usage").fetchone()
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be read ({error})") from None
    names = [*columns.split(", "), "held_node_seconds", "training_node_seconds", "leaving_node_seconds"]
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for row in found:
        row["used_node_seconds"] = row["held_node_seconds"]  # its older name
    return {"since_s": since_s, "until_s": until_s, "first_s": first_s, "usage": found}
