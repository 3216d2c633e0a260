"""The time of a resize in parts: saving a checkpoint, rendezvous, loading it.

Pure. Durations are measured by the driver on a monotonic clock, and the loading time by the worker: times of different
clocks are never compared. Work that workers do before they reach the step at which they save is no stall, so if the
parts exceed the whole, the excess is taken off the save.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bftd.protocol.bounds import NUMBER_MOST, WHOLE_MOST

_SAVES_KEPT = 5
"""The number of saves whose median is reported: one that met a busy file server is forgotten."""


@dataclass(frozen=True)
class Parts:
    """The parts of a resize, see ResizeReport; None is a part that was not measured."""

    save_s: float | None = None
    rendezvous_s: float | None = None
    load_s: float | None = None
    state_bytes: int | None = None


@dataclass
class ResizeTimes:
    """The times of saves and of the present resize; `saves_at_resize`: each resize saves and loads a checkpoint."""

    saves_at_resize: bool = False
    state_bytes: int | None = None
    _saves_s: list[float] = field(default_factory=list)
    _asked_s: float | None = None
    _stored_s: float | None = None
    _graceful: bool = False
    _began_s: float | None = None

    @property
    def save_s(self) -> float | None:
        """The time of a save, if each resize has one and some were seen."""
        return statistics.median(self._saves_s) if self.saves_at_resize and self._saves_s else None

    def saved(self, took_s: float, state_bytes: int) -> None:
        """Notes that a checkpoint of this size was fully stored, `took_s` after it began to arrive or to be written."""
        self.state_bytes = min(state_bytes, WHOLE_MOST)
        self._saves_s = [*self._saves_s, min(took_s, NUMBER_MOST)][-_SAVES_KEPT:]

    def asked(self, at_s: float, *, graceful: bool) -> None:
        """Notes that the workers are to save and end; without `graceful`, their last checkpoint has to do."""
        self._asked_s, self._graceful = at_s, graceful
        self._stored_s = self._began_s = None

    def stored(self, at_s: float) -> None:
        """Notes that their checkpoint is stored, or that nobody waits for it any longer."""
        self._stored_s = at_s

    def began(self, at_s: float) -> None:
        """Notes that a worker runs."""
        self._began_s = at_s

    def parts(self, stall_s: float, reported: Mapping[str, Any]) -> Parts:
        """Returns the parts of a resize that stalled training for `stall_s`, called at its first step.

        `reported` is the worker's report of its start (Session.costs), in seconds and bytes.
        """
        load_s, load_bytes = number(reported.get("load_s")), number(reported.get("load_bytes"))
        if load_bytes:
            self.state_bytes = int(load_bytes)
        asked_s, stored_s, began_s = self._asked_s, self._stored_s, self._began_s
        self.forget()
        if load_s is not None:
            load_s = min(load_s, stall_s)
        left_s = stall_s - (load_s or 0.0)
        if asked_s is None:  # workers went on with the state in their memory
            return Parts(0.0, left_s if load_s is not None else None, load_s, self.state_bytes)
        if stored_s is None or began_s is None or began_s < stored_s:
            return Parts(None, None, load_s, self.state_bytes)
        # A checkpoint that was saved before Slurm took nodes is downloaded during the rendezvous.
        rendezvous_s = min(left_s, began_s - (stored_s if self._graceful else asked_s))
        save_s = min(left_s - rendezvous_s, stored_s - asked_s) if self._graceful else 0.0
        return Parts(save_s, rendezvous_s, load_s, self.state_bytes)

    def forget(self) -> None:
        """Ends the measurement: the next group is no part of a resize, as training begins or goes on."""
        self._asked_s = self._stored_s = self._began_s = None


def number(value: Any) -> float | None:
    """Returns a worker's value as a number; None if it is no non-negative number that a report may have."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= WHOLE_MOST:
        return float(value)
    return None
