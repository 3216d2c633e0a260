"""History as it is made: a sample of the core about once a minute, written to the ledger, and what follows from it.

Node-seconds are differences of the core's counters since the last record, so that their sum over all records is what
the counters have grown by, also over restarts. Where the ledger cannot be written, the last two hours are owed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bftd.core.domain import State, Trainer, Usage
from bftd.core.sample import Sample, TrainerPoint
from bftd.core.sampling import sample
from bftd.errors import BftError, LedgerError
from bftd.service import codec, history_table, windows
from bftd.service.history_table import Named, Point, Record
from bftd.service.ledger import Ledger
from bftd.service.reader import Reader
from bftd.service.windows import Aims, Window

log = logging.getLogger("bftd")

EVERY_S = 60
# A record stands for the time since the last one, unless that is so long ago that nobody looked in between.
GAP_S = 180
# Of trainers that are active, those with nodes and then those that came first are in a record; no more than these.
POINTS_MOST = 500
# Records that wait for a ledger that cannot be written: two hours. After that two are made one.
OWED_MOST = 120
# How often what is learned of a trainer's curve is written down anew.
CURVE_EVERY_S = 600
# Upkeep looks for something to do so often, and goes on so soon while there is more.
_TEND_S = 60.0
_MORE_S = 1.0
_KEPT = "history"


class History:
    """Samples of one service; `sample` is the last one, and `windows` what was made of the last hour, day and week."""

    def __init__(self, ledger: Ledger, state: State) -> None:
        self.sample: Sample | None = None
        self.windows: tuple[Window, ...] = ()
        self._ledger = ledger
        self._reader = Reader(ledger.path)
        self._points_most = history_table.points_most(ledger.max_bytes)
        self._last_s, self._samples = ledger.read(history_table.last)
        kept = ledger.kept(_KEPT)
        self._usage = codec.decode(Usage, kept) if kept else state.usage
        self._owed: list[Record] = []
        self._named: dict[str, Named] = {}
        self._told: dict[str, tuple[Any, int]] = {}
        self._tend_s = float("-inf")
        self._failed = False
        self._wanted: tuple[int, Aims] | None = None
        self._work: threading.Thread | None = None

    def note(self, state: State, *, owed: bool = False, last: bool = False) -> None:
        """Take a sample where the minute is another than that of the last one, or it is the `last` before the end.

        With `owed` the ledger cannot be written now.
        """
        at_s = int(state.time_s) if state.pool.seen else None
        if at_s is None or at_s == self._last_s:
            return
        if self._last_s is not None and self._work is None:  # after a start, what is known from before
            self._refresh(state)
        if self._last_s is not None and at_s // EVERY_S == self._last_s // EVERY_S and not last:
            return
        self.sample = sample(state)
        self._owe(self._record(state, self.sample, at_s))
        if not owed:
            self._write(state)

    def move(self, by_s: float) -> None:
        """Let what was noted last be `by_s` later: the clock was set."""
        if self._last_s is not None:
            self._last_s += int(by_s)

    def tend(self, now_s: float) -> None:
        """Some milliseconds of upkeep; raises LedgerError."""
        if 0.0 <= self._tend_s - now_s <= _TEND_S:
            return
        more = self._ledger.write(lambda db: history_table.tidy(db, now_s, self._points_most))
        self._tend_s = now_s + (_MORE_S if more else _TEND_S)

    def settle(self) -> None:
        """Wait until `windows` are those of the last record."""
        if self._work is not None:
            self._work.join()
            self._reckon()  # what was wanted in the moment in which it ended

    def _record(self, state: State, taken: Sample, at_s: int) -> Record:
        passed_s = at_s - (at_s if self._last_s is None else self._last_s)
        span_s = passed_s if 0 < passed_s <= GAP_S else 1
        usage, before = state.usage, self._usage
        chosen = sorted(taken.trainers, key=lambda id_: taken.trainers[id_].leased, reverse=True)[:POINTS_MOST]
        points = tuple(self._point(state.trainers[id_], taken.trainers[id_], at_s) for id_ in chosen)
        for id_ in chosen:
            self._name(state.trainers[id_], at_s)
        self._last_s, self._usage = at_s, usage
        self._samples = {id_: point.samples for id_, point in taken.trainers.items()}
        return Record(
            at_s,
            span_s,
            taken.nodes,
            max(0.0, usage.pool_node_seconds - before.pool_node_seconds),
            max(0.0, usage.used_node_seconds - before.used_node_seconds),
            max(0.0, usage.training_node_seconds - before.training_node_seconds),
            points,
        )

    def _point(self, trainer: Trainer, now: TrainerPoint, at_s: int) -> Point:
        before = self._samples.get(trainer.id, 0.0)
        gained = max(0.0, now.samples - before)
        if before <= 0.0:
            # it may go on from what it had saved elsewhere: no more was made here than its speed allows
            gained = min(gained, now.samples_per_s * max(0.0, at_s - trainer.arrived_s))
        present = float(trainer.active)
        return Point(trainer.id, now.working, now.leased, now.samples_per_s, now.step, now.samples, gained, present)

    def _name(self, trainer: Trainer, at_s: int) -> None:
        """Have a trainer written down that is new, and now and then what is known of it by now."""
        known, told_s = self._told.get(trainer.id, (None, None))
        old = told_s is None or not 0 <= at_s - told_s < CURVE_EVERY_S
        if (old or not trainer.active) and known is not trainer.knowledge:
            curve = windows.curve_of(trainer)
            self._named[trainer.id] = Named(trainer.id, trainer.name, trainer.user, curve)
            self._told[trainer.id] = (trainer.knowledge, at_s)

    def _owe(self, record: Record) -> None:
        if len(self._owed) >= OWED_MOST:
            self._owed = [_joined(one, two) for one, two in zip(self._owed[::2], self._owed[1::2], strict=True)]
        self._owed.append(record)

    def _write(self, state: State) -> None:
        records, named = self._owed, list(self._named.values())

        def work(db: Any) -> None:
            history_table.add(db, records, named)
            self._ledger.put_kept(_KEPT, codec.encode(self._usage))

        try:
            self._ledger.write(work)
        except LedgerError:  # the next step that is written says so
            return
        self._owed, self._named = [], {}
        self._told = {id_: told for id_, told in self._told.items() if id_ in state.trainers}
        self._refresh(state)

    def _refresh(self, state: State) -> None:
        """Have the windows reckoned anew, beside the loop; the last time may not be over yet."""
        decide = state.settings.decide
        self._wanted = (self._last_s or 0, Aims(decide.objective, decide.pj_max, state.settings.trusting))
        if self._work is None or not self._work.is_alive():
            self._work = threading.Thread(target=self._reckon, name="windows", daemon=True)
            self._work.start()

    def _reckon(self) -> None:
        while self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            try:
                self.windows = windows.reckoned(self._reader, *wanted)
            except BftError as error:  # those of before stay
                log.debug("the windows could not be reckoned: %s", error)
            except Exception:
                if not self._failed:  # the same again each minute would fill the log
                    log.exception("U, and what trained and was held, could not be reckoned")
                self._failed = True


def _joined(one: Record, two: Record) -> Record:
    """Two records as one, with the nodes and sizes of the second."""
    first: Mapping[str, Point] = {point.trainer: point for point in one.points}
    points = tuple(
        replace(point, gained=point.gained + first[point.trainer].gained) if point.trainer in first else point
        for point in two.points
    )
    return replace(
        two,
        span_s=one.span_s + two.span_s,
        pool_s=one.pool_s + two.pool_s,
        used_s=one.used_s + two.used_s,
        training_s=one.training_s + two.training_s,
        points=points,
    )
