"""Time limits of one trainer's pilots, spread so that they do not all end in the same minute.

Pilots that are granted together would end together, and the trainer would have to be suspended each time. If it can go
on without some of its nodes, they end in a few groups over the last quarter of the longest limit instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from bftd.core.model.timing import whole_minutes

# The number of groups, each a resize or two: more would cost more than the suspension that they spare.
_GROUPS = 4
# They are spread over the last part of the longest limit.
_SPREAD = 0.25


class StaggeredLimits:
    """The ends of one trainer's pilots, in seconds of the core's clock; newly granted pilots are added."""

    def __init__(self, ends_s: Iterable[float], now_s: float, longest_s: float) -> None:
        """`longest_s` is the longest time that a pilot may last, whatever its node's window."""
        self._ends_s = sorted(ends_s)
        self._now_s = now_s
        apart_s = longest_s * _SPREAD / _GROUPS
        lengths = (whole_minutes(longest_s - group * apart_s) for group in range(_GROUPS))
        self._lengths_s = tuple(dict.fromkeys(lengths))
        self._near_s = apart_s / 2

    @staticmethod
    def together(nodes: int) -> int:
        """Return how many of `nodes` nodes end in one group if all of them were granted at once."""
        return -(-nodes // _GROUPS)

    def length_s(self) -> float:
        """Return the length of the next pilot with which the fewest others end about when it does; whole minutes."""
        return min(self._lengths_s, key=self._crowd)

    def add(self, length_s: float) -> None:
        """Add a pilot of that length which begins now."""
        insort(self._ends_s, self._now_s + length_s)

    def _crowd(self, length_s: float) -> int:
        """Count the pilots that end within half a group's distance."""
        end_s = self._now_s + length_s
        after = bisect_left(self._ends_s, end_s + self._near_s)
        return after - bisect_right(self._ends_s, end_s - self._near_s)
