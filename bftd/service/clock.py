"""The clock of a service: wall time, the jumps in it that were not the passing of time, and the time zone."""

from __future__ import annotations

import time
from collections.abc import Callable

from bftd.config.hours import Zone
from bftd.core.model.timing import CLOCK_STEP_S

# A daemon checks its clock every few seconds. If it did not for this long, it or its host stood still: nobody could
# reach it, so no driver counts as silent.
LONGEST_PAUSE_S = 30.0
_DAY_S = 86400
# A daemon is started or reloaded more often than this.
_AHEAD_S = 20 * 365 * _DAY_S


class WallClock:
    """Wall time by `wall`, compared with `elapsed`, which nobody can set; without `elapsed`, wall time is believed."""

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._last = self._read()
        self._set_s = float("-inf")

    def look(self) -> tuple[float, float]:
        """Return the wall time, and by how much it was set since the last look; 0 if it only went on.

        A small difference is accepted as wall time at once, so that many of them never add up.
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
        """Whether a time just read from `wall` belongs to the clock as it is since it was last set."""
        return self._elapsed is None or self._set_s <= time_s <= self._last[0] + CLOCK_STEP_S

    def _read(self) -> tuple[float, float]:
        return self._wall(), self._elapsed() if self._elapsed is not None else 0.0


def local_zone(now_s: float) -> Zone:
    """Return the offsets of local time from yesterday on for twenty years, as this host has them now.

    The core has no clock to ask. Two changes of the clock on one day would be missed.
    """
    time.tzset()  # the host's zone may have been changed since the daemon started
    last_s = int(now_s) - _DAY_S
    offset_s = _offset_s(last_s)
    found = [(float("-inf"), float(offset_s))]
    for day_s in range(last_s + _DAY_S, last_s + _AHEAD_S, _DAY_S):
        if _offset_s(day_s) != offset_s:
            changed_s = _change(day_s - _DAY_S, day_s, offset_s)
            offset_s = _offset_s(day_s)
            found.append((float(changed_s), float(offset_s)))
    return tuple(found)


def _offset_s(at_s: int) -> int:
    return time.localtime(at_s).tm_gmtoff


def _change(before_s: int, after_s: int, offset_s: int) -> int:
    """Return the first second of another offset between two times."""
    while after_s - before_s > 1:
        middle_s = (before_s + after_s) // 2
        if _offset_s(middle_s) == offset_s:
            before_s = middle_s
        else:
            after_s = middle_s
    return after_s
