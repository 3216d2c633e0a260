"""History as it is made: about once a minute a sample of the core is written to the ledger and the windows computed.

Node-seconds are differences of the core's counters since the last record, so that their sum over all records is the
growth of the counters, also over restarts. While the ledger cannot be written, the last two hours are kept in memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from bftd.base.errors import BftError, LedgerError
from bftd.core.model.domain import NodeUsage, State, Trainer
from bftd.core.sampling import PoolSample, TrainerPoint, sample
from bftd.ledger import codec, rolling
from bftd.ledger.file import Ledger
from bftd.ledger.history import table
from bftd.ledger.history.query import LOOKED_S
from bftd.ledger.history.table import PoolRecord, TrainerIdentity, TrainerRecord
from bftd.ledger.reader import LedgerReader
from bftd.ledger.rolling import Aims, RollingPeriod

log = logging.getLogger("bftd")

EVERY_S = 60
# Most trainers in a record: of the active ones those with nodes come first, then those that arrived first.
POINTS_MOST = 500
# Records that wait while the ledger cannot be written: two hours. Beyond that, each two are joined into one.
OWED_MOST = 120
# The time after which a trainer's learned curve is written again.
CURVE_EVERY_S = 600
# Upkeep looks for work this often, and goes on this soon while there is more.
_TEND_S = 60.0
_MORE_S = 1.0
_KEPT = "history"


class HistoryRecorder:
    """Samples of one service; `sample` is the last one."""

    def __init__(self, ledger: Ledger, state: State) -> None:
        self.sample: PoolSample | None = None
        self._windows: tuple[RollingPeriod, ...] = ()
        self._counted_s = 0.0
        self._ledger = ledger
        self._reader = LedgerReader(ledger.path)
        self._points_most = table.points_most(ledger.max_bytes)
        self._last_s, self._samples = ledger.read(table.last)
        kept = ledger.kept(_KEPT)
        self._usage = codec.decode(NodeUsage, kept) if kept else state.usage
        self._owed: list[PoolRecord] = []
        self._named: dict[str, TrainerIdentity] = {}
        self._written: dict[str, tuple[Any, int]] = {}
        self._tend_s = float("-inf")
        self._failed = False
        self._wanted: tuple[int, Aims, float] | None = None
        self._thread = ThreadPoolExecutor(1, "windows")
        self._work: Future[None] | None = None

    def windows(self, usage: NodeUsage) -> tuple[RollingPeriod, ...]:
        """Return the results of the last hour, day and week by the last record; () while they are not known.

        A window in which all of the record lies has the node-seconds of `usage`, which are those of this moment: in the
        first minutes of a ledger its last record tells little of what has happened since.
        """
        now = (usage.pool_node_seconds, usage.used_node_seconds, usage.training_node_seconds)
        return tuple(
            RollingPeriod(window.window_s, window.u, *now)
            if math.isclose(window.pool_node_seconds, self._counted_s, rel_tol=1e-9)
            else window
            for window in self._windows
        )

    def note(self, state: State, *, owed: bool = False, last: bool = False) -> None:
        """Take a sample if a new minute has begun since the last one, or if it is the `last` before the end.

        With `owed` the ledger cannot be written now.
        """
        at_s = int(state.time_s) if state.pool.seen else None
        if at_s is None or at_s == self._last_s:
            return
        if self._last_s is not None and self._work is None:  # after a start, compute the windows from earlier records
            self._refresh(state)
        if self._last_s is not None and at_s // EVERY_S == self._last_s // EVERY_S and not last:
            return
        self.sample = sample(state)
        self._owe(self._record(state, self.sample, at_s))
        if not owed:
            self._write(state)

    def move(self, by_s: float) -> None:
        """Move the time of the last record by `by_s`: the clock was set."""
        if self._last_s is not None:
            self._last_s += int(by_s)

    def tend(self, now_s: float) -> None:
        """Do some milliseconds of upkeep; raises LedgerError."""
        if 0.0 <= self._tend_s - now_s <= _TEND_S:
            return
        more = self._ledger.write(lambda db: table.tidy(db, now_s, self._points_most))
        self._tend_s = now_s + (_MORE_S if more else _TEND_S)

    def settle(self) -> None:
        """Wait until the windows are those of the last record."""
        if self._work is not None:
            self._work.result()

    def _record(self, state: State, taken: PoolSample, at_s: int) -> PoolRecord:
        passed_s = at_s - (at_s if self._last_s is None else self._last_s)
        span_s = passed_s if 0 < passed_s <= LOOKED_S else 1
        usage, before = state.usage, self._usage
        chosen = sorted(taken.trainers, key=lambda id_: taken.trainers[id_].leased, reverse=True)[:POINTS_MOST]
        points = tuple(self._point(state.trainers[id_], taken.trainers[id_], at_s) for id_ in chosen)
        for id_ in chosen:
            self._name(state.trainers[id_], at_s)
        self._last_s, self._usage = at_s, usage
        self._samples = {id_: point.samples for id_, point in taken.trainers.items()}
        return PoolRecord(
            at_s,
            span_s,
            taken.nodes,
            max(0.0, usage.pool_node_seconds - before.pool_node_seconds),
            max(0.0, usage.used_node_seconds - before.used_node_seconds),
            max(0.0, usage.training_node_seconds - before.training_node_seconds),
            points,
        )

    def _point(self, trainer: Trainer, now: TrainerPoint, at_s: int) -> TrainerRecord:
        before = self._samples.get(trainer.id, 0.0)
        gained = max(0.0, now.samples - before)
        if before <= 0.0:
            # it may continue from a save made elsewhere: it made no more samples here than its speed allows
            gained = min(gained, now.samples_per_s * max(0.0, at_s - trainer.arrived_s))
        present = float(trainer.active)
        return TrainerRecord(
            trainer.id, now.working, now.leased, now.samples_per_s, now.step, now.samples, gained, present
        )

    def _name(self, trainer: Trainer, at_s: int) -> None:
        """Have a new trainer written to the ledger, and from time to time what has been learned about it since."""
        known, written_s = self._written.get(trainer.id, (None, None))
        old = written_s is None or not 0 <= at_s - written_s < CURVE_EVERY_S
        if (old or not trainer.active) and known is not trainer.knowledge:
            curve = rolling.curve_of(trainer)
            self._named[trainer.id] = TrainerIdentity(trainer.id, trainer.name, trainer.user, curve)
            self._written[trainer.id] = (trainer.knowledge, at_s)

    def _owe(self, record: PoolRecord) -> None:
        if len(self._owed) >= OWED_MOST:
            self._owed = [_joined(one, two) for one, two in zip(self._owed[::2], self._owed[1::2], strict=True)]
        self._owed.append(record)

    def _write(self, state: State) -> None:
        records, named = self._owed, list(self._named.values())

        def work(db: Any) -> None:
            table.add(db, records, named)
            self._ledger.put_kept(_KEPT, codec.encode(self._usage))

        try:
            self._ledger.write(work)
        except LedgerError:  # the next step that is written reports it
            return
        self._owed, self._named = [], {}
        self._written = {id_: known for id_, known in self._written.items() if id_ in state.trainers}
        self._refresh(state)

    def _refresh(self, state: State) -> None:
        """Have the windows computed again beside the loop, after an earlier computation that may still be running."""
        decide = state.settings.decide
        aims = Aims(decide.objective, decide.pj_max, state.settings.trusting)
        self._wanted = (self._last_s or 0, aims, self._usage.pool_node_seconds)
        self._work = self._thread.submit(self._reckon)

    def _reckon(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None:  # an earlier computation has done it
            return
        last_s, aims, counted_s = wanted
        try:
            self._windows, self._counted_s = rolling.reckoned(self._reader, last_s, aims), counted_s
        except BftError as error:  # the previous windows stay
            log.debug("the windows could not be reckoned: %s", error)
        except Exception:
            if not self._failed:  # the same error each minute would fill the log
                log.exception("U, and what trained and was held, could not be reckoned")
            self._failed = True


def _joined(one: PoolRecord, two: PoolRecord) -> PoolRecord:
    """Return two records as one, with the nodes and sizes of the second."""
    first: Mapping[str, TrainerRecord] = {point.trainer: point for point in one.points}
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
