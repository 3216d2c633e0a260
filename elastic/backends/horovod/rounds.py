"""Horovod's registry of the workers that ask for a new round; it counts workers where upstream counts requests."""

from __future__ import annotations

import threading
from typing import Any

from horovod.runner.elastic.registration import FAILURE, WorkerStateRegistry


class Rounds(WorkerStateRegistry):  # type: ignore[misc]
    """A registry that ends a round once each of its workers has reported to be ready, successful or failed.

    A worker can ask for the next round, be lost with its node and, before it dies, ask once more. Upstream's barrier
    counts every request: the round then ends before all survivors have asked, and a survivor that asks later waits
    forever.
    """

    def __init__(self, driver: Any, host_manager: Any) -> None:
        super().__init__(driver, host_manager)
        self._changed = threading.Condition()
        self._ends = 0
        self._ending = False

    def _record_state(self, host: str, slot: int, state: str) -> int:
        """Return the number of the round that ended; raises RuntimeError if the worker is known to have failed."""
        key = (host, slot)
        with self._changed:
            self._changed.wait_for(lambda: not self._ending)
            if self._driver.finished() or not self._driver.has_rank_assignment(host, slot):
                return int(self._rendezvous_id)
            before = self._states.get(key)
            if before == FAILURE:
                raise RuntimeError(f"{host}[{slot}] has failed and is not waited for")
            if before is not None:
                self._workers[before].discard(key)
            self._states[key] = state
            self._workers[state].add(key)
            round_id, ends = int(self._rendezvous_id), self._ends
            if len(self._states) < self._size:
                self._changed.notify_all()
                # While a round ends its states are cleared, which is no change of this worker's own.
                self._changed.wait_for(
                    lambda: self._ends > ends or (not self._ending and self._states.get(key) != state)
                )
                if self._ends == ends:
                    raise RuntimeError(f"{host}[{slot}] was {state} and is {self._states.get(key)}")
                return round_id
            self._ending = True
        try:
            self._on_workers_recorded()
        finally:
            with self._changed:
                self._ends, self._ending = self._ends + 1, False
                self._changed.notify_all()
        return round_id
