"""The clock of a service: wall time, and what was not time itself in its progress."""

from __future__ import annotations

import time
from collections.abc import Callable

from bftd.core.timing import CLOCK_STEP_S

# A daemon looks at its clock every few seconds. One that did not for so long stood still, or its host slept: nobody
# could reach it, so nobody was silent.
LONGEST_PAUSE_S = 30.0


class Clock:
    """Wall time by `wall`, held against `elapsed`, which nobody can set; without that, wall time is believed."""

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._last = self._read()
        self._set_s = float("-inf")

    def look(self) -> tuple[float, float]:
        """The wall time, and by how much it was set since the last look; 0 where it only went on.

        A small difference is taken for wall time at once, so that many of them never add up.
        """
        now_s, elapsed_s = self._read()
        passed_s = min(elapsed_s - self._last[1], LONGEST_PAUSE_S)
        by_s = now_s - self._last[0] - passed_s
        self._last = now_s, elapsed_s
        if self._elapsed is None or abs(by_s) <= CLOCK_STEP_S:
            return now_s, 0.0
        self._set_s = now_s
        return now_s, by_s

    def believes(self, time_s: float) -> bool:
        """Whether a time that was just taken by `wall` is of the clock as it is since it was last set."""
        return self._elapsed is None or self._set_s <= time_s <= self._last[0] + CLOCK_STEP_S

    def _read(self) -> tuple[float, float]:
        return self._wall(), self._elapsed() if self._elapsed is not None else 0.0
