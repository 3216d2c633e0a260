"""Where the time of a resize goes: saving the state, coming together, loading it.

Pure. Durations are the driver's own, by a clock that nobody sets, and the loading is the worker's: no time of one
clock is compared with one of another. What workers did before they came to the step at which they save is no stall,
so what the parts are more than the whole is taken off the save.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SAVES_KEPT = 5
"""Saves whose median is told: one that met a busy file server is forgotten."""


@dataclass(frozen=True)
class Parts:
    """See ResizeReport; None is what was not measured."""

    save_s: float | None = None
    rendezvous_s: float | None = None
    load_s: float | None = None
    state_bytes: int | None = None


@dataclass
class Costs:
    """What saves took, and how the present resize comes along; `tells_saves`: each resize saves and loads the state."""

    tells_saves: bool = False
    state_bytes: int | None = None
    _saves_s: list[float] = field(default_factory=list)
    _asked_s: float | None = None
    _stored_s: float | None = None
    _graceful: bool = False
    _began_s: float | None = None

    @property
    def save_s(self) -> float | None:
        """How long a save of the state takes, where each resize has one and some were seen."""
        return statistics.median(self._saves_s) if self.tells_saves and self._saves_s else None

    def saved(self, took_s: float, state_bytes: int) -> None:
        """A state of this size was stored as a whole, `took_s` after it began to come or to be written."""
        self.state_bytes = state_bytes
        self._saves_s = [*self._saves_s, took_s][-_SAVES_KEPT:]

    def asked(self, at_s: float, *, graceful: bool) -> None:
        """The workers are to save and end; not `graceful`: what they saved last has to do."""
        self._asked_s, self._graceful = at_s, graceful
        self._stored_s = self._began_s = None

    def stored(self, at_s: float) -> None:
        """Their state is stored, or nobody waits for it any longer."""
        self._stored_s = at_s

    def began(self, at_s: float) -> None:
        """A worker runs."""
        self._began_s = at_s

    def parts(self, stall_s: float, told: Mapping[str, Any]) -> Parts:
        """The parts of a resize that stalled training for `stall_s`, when its first step was done.

        `told` is what the worker says of its start (Session.costs), in seconds and bytes.
        """
        load_s, load_bytes = number(told.get("load_s")), number(told.get("load_bytes"))
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
        # A state that had been saved before Slurm took nodes is fetched while the others come together.
        rendezvous_s = min(left_s, began_s - (stored_s if self._graceful else asked_s))
        save_s = min(left_s - rendezvous_s, stored_s - asked_s) if self._graceful else 0.0
        return Parts(save_s, rendezvous_s, load_s, self.state_bytes)

    def forget(self) -> None:
        """What comes is no part of a resize: training begins, or goes on."""
        self._asked_s = self._stored_s = self._began_s = None


def number(value: Any) -> float | None:
    """A worker's word as a number; None for what is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    return None
