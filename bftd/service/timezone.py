"""The time zone of this host as a table: the core has no clock to ask."""

from __future__ import annotations

import time

from bftd.config.hours import Zone

_DAY_S = 86400
# A daemon is started or reloaded more often than this.
_AHEAD_S = 20 * 365 * _DAY_S


def local_zone(now_s: float) -> Zone:
    """Return the offsets of local time from yesterday on for twenty years, as this host has them now.

    Two changes of the clock on one day would be missed.
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
