"""The reservations of Slurm's planner: by time, the nodes that no plan has yet."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import reduce
from math import inf
from operator import and_


class Timeline:
    """Slots of time, each with the set of nodes (a mask) that are free in it; the last slot never ends."""

    __slots__ = ("begins", "grows", "masks")

    def __init__(self, begin_s: float, everything: int) -> None:
        self.begins = [begin_s]
        self.masks = [everything]
        # The nodes that become free where the next slot begins; 0 for the last one.
        self.grows = [0]

    def take(self, mask: int, begin_s: float, end_s: float) -> None:
        """Take nodes from `begin_s` until just before `end_s`; time before the first slot is ignored."""
        begin_s = max(begin_s, self.begins[0])
        if not end_s > begin_s or not mask:
            return
        first = self._cut(begin_s)
        last = self._cut(end_s) if end_s < inf else len(self.begins)
        keep = ~mask
        self.masks[first:last] = [free & keep for free in self.masks[first:last]]
        before = max(first - 1, 0)
        self.grows[before : last - 1] = [more and more & keep for more in self.grows[before : last - 1]]
        if last < len(self.masks):
            self.grows[last - 1] = self.masks[last] & ~self.masks[last - 1]
        # Slurm joins two slots that have become the same, at most once per plan.
        if first and self.masks[first - 1] == self.masks[first]:
            self._join(first)
        elif last < len(self.masks) and self.masks[last - 1] == self.masks[last]:
            self._join(last)

    def _cut(self, at_s: float) -> int:
        """Return the index of the slot that begins at a time; the slot is made if need be."""
        index = bisect_right(self.begins, at_s) - 1
        if self.begins[index] == at_s:
            return index
        self.begins.insert(index + 1, at_s)
        self.masks.insert(index + 1, self.masks[index])
        self.grows.insert(index, 0)
        return index + 1

    def _join(self, index: int) -> None:
        """Join a slot with the one before it, which is the same."""
        del self.begins[index], self.masks[index], self.grows[index - 1]

    def slots(self, begin_s: float, end_s: float) -> tuple[int, int]:
        """Return the slots that a time touches, both ends included: the first index, and the index after the last."""
        return max(0, bisect_right(self.begins, begin_s) - 1), bisect_right(self.begins, end_s)

    def free(self, mask: int, slots: tuple[int, int]) -> int:
        """Return the nodes of a set that are free in all of some slots."""
        first, stop = slots
        return reduce(and_, self.masks[first:stop], mask)

    def sample(self, slots: tuple[int, int]) -> int:
        """Return the nodes that are free in the first, middle and last of some slots: all of `free` and more."""
        first, stop = slots
        return self.masks[first] & self.masks[(first + stop) // 2] & self.masks[stop - 1]

    def grown(self, within: int, slots: tuple[int, int]) -> float | None:
        """Return when a node of `within` first becomes free that is not free at the beginning of `slots`.

        As in Slurm the search goes as far as one slot behind them; None if nothing is found there.
        """
        first, stop = slots
        for index in range(first, min(stop + 1, len(self.begins) - 1)):
            if self.grows[index] & within:
                return self.begins[index + 1]
        return None

    def leaves(self, mask: int, begin_s: float, end_s: float) -> bool:
        """Whether a whole set is free from `begin_s` until just before `end_s`: a plan may begin where another ends."""
        first = max(0, bisect_right(self.begins, begin_s) - 1)
        return not any(mask & ~free for free in self.masks[first : bisect_left(self.begins, end_s)])

    def until(self, mask: int, limit_s: float) -> float:
        """Return when a node of a set is first taken after the first slot and before `limit_s`; else `limit_s`."""
        for begin_s, free in zip(self.begins[1:], self.masks[1:], strict=True):
            if begin_s >= limit_s:
                break
            if mask & ~free:
                return begin_s
        return limit_s
