"""The ends of running jobs as Slurm's planner sees them: not one by one, but in groups.

Slurm takes the jobs that have a node in the set that it looks at, in the order of their ends, and tests only at the end
of each group whether the waiting job fits; it then starts when the last job of the group ends. Groups are cut at fixed
times: 30, 60, 120, 240, ... seconds after the first end, rounded up to a multiple of 30 s. (Read in 22.05.8's and later
sources of select/cons_tres, and in the former's compiled code; bf_resolution has no part in it.) From 25.05.1 on the
start is the end of the last job of the group on nodes that Slurm has chosen, not of its last job. Slurm tests whether a
group is over only at the job that follows one that was looked at. So if that follower has no node in the set, it is
passed over, and the next job that has one joins the group however late it ends. All running jobs count, those of other
partitions, too. Jobs that end at the same time, as those of one cycle with one limit do, follow each other as Slurm
lists them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from math import inf, isfinite

from bftd.pool.backfill.model import JobEnd, Rank

_STEP_S = 30.0


class JobEnds:
    """The nodes that are `ready` now, and those that running jobs leave later."""

    def __init__(self, ready: int, ends: Iterable[JobEnd], now_s: float) -> None:
        self.ready = ready
        self._now_s = now_s
        self._masks: list[int] = []
        self._times: list[float] = []
        self._ranks: list[Rank] = []
        # The nodes of each end and of all ends before it, for as many ends as have been asked for.
        self._sums: list[int] = []
        listed, last = sorted((end for end in ends if isfinite(end.at_s)), key=_when), dict[int, int]()
        seen = 0
        for index in range(len(listed) - 1, -1, -1):
            if left := listed[index].mask & ~seen:
                last[index] = left
            seen |= listed[index].mask
        for index, end in enumerate(listed):
            mask = last.get(index, 0)
            # An end without nodes matters only as the follower of one with nodes; of several in a row, only the first.
            if mask or (self._masks and self._masks[-1]):
                self._masks.append(mask)
                self._times.append(end.at_s)
                self._ranks.append(end.rank)

    def add(self, mask: int, end_s: float, rank: Rank) -> None:
        """Note that a job of that rank uses nodes, which no other job uses, until a time."""
        if not isfinite(end_s) or not mask:
            return
        first, behind = bisect_left(self._times, end_s), bisect_right(self._times, end_s)
        index = bisect_right(self._ranks, rank, first, behind)
        self._masks.insert(index, mask)
        self._times.insert(index, end_s)
        self._ranks.insert(index, rank)
        del self._sums[index:]

    def earliest(self, mask: int, extra: int, enough: Callable[[int], bool]) -> float:
        """Return a time before which no part of `mask` can be enough: -inf if it is enough now, inf if it never is."""
        if enough((self.ready | extra) & mask):
            return float("-inf")
        index = self._first(mask, extra, enough)
        return float("inf") if index is None else self._at(index)

    def by(self, mask: int, extra: int, at_s: float) -> int:
        """Return the nodes of `mask` that are free at a time, ignoring groups."""
        index = bisect_right(self._times, at_s)
        return (self.ready | extra | (self._summed()[index - 1] if index else 0)) & mask

    def start(
        self,
        mask: int,
        extra: int,
        enough: Callable[[int], bool],
        begin_s: float = -inf,
        until_s: float = inf,
        chosen: Callable[[int], int] | None = None,
    ) -> tuple[float, int] | None:
        """Return when enough nodes of `mask` are free as Slurm counts, and these nodes; None if they never are.

        The time is now if they are free already. `extra` nodes count as ready. A set that is `enough` stays so if nodes
        are added. Newer releases take all nodes of jobs that end by `begin_s` for free, and look as far as `until_s`.
        From 25.05.1 on the time is that of the last end on the nodes `chosen` of the free ones.
        """
        sums = self._summed()
        # a job that should have ended by now has its nodes still
        low = bisect_right(self._times, begin_s) if begin_s > self._now_s else 0
        stop = bisect_right(self._times, until_s)
        now = (self.ready | extra | (sums[low - 1] if low else 0)) & mask
        if enough(now):
            return self._now_s, now
        index = self._first(mask, extra, enough)
        if index is None or index >= stop:
            return None
        last = self._last_of_group(index, mask, low)
        if last >= stop:
            last = self._previous(stop - 1, mask) or index
        free = (self.ready | extra | sums[last]) & mask
        if chosen is not None:
            own = self._previous(last, chosen(free))
            last = last if own is None or own < low else own
        return self._at(last), free

    def _at(self, index: int) -> float:
        """Return the time of an end; the unknown end of an overdue job is assumed to be soon."""
        return max(self._times[index], self._now_s + 1.0)

    def _first(self, mask: int, extra: int, enough: Callable[[int], bool]) -> int | None:
        """Return the index of the first end with which there are enough."""
        sums = self._summed()
        now = self.ready | extra
        if not sums or not enough((now | sums[-1]) & mask):
            return None
        low, high = 0, len(sums) - 1
        while low < high:
            middle = (low + high) // 2
            if enough((now | sums[middle]) & mask):
                high = middle
            else:
                low = middle + 1
        return low

    def _summed(self) -> list[int]:
        """Return the nodes of each end and of all before it."""
        for index in range(len(self._sums), len(self._times)):
            before = self._sums[-1] if self._sums else 0
            self._sums.append(before | self._masks[index])
        return self._sums

    def _last_of_group(self, index: int, mask: int, low: int) -> int:
        """Return the last end of a group that has nodes of `mask`, if the first `low` ends are not looked at.

        The group is that of the end `index`. A group is cut behind an end whose follower comes after the next of the
        fixed times, and the next group lasts at least until the follower does. So the end of a group depends only on
        the follower of the last end that was looked at before `index`.
        """
        first = self._next(low, mask)
        edge_s = self._times[first or 0] // _STEP_S * _STEP_S + _STEP_S
        before = self._previous(index - 1, mask)
        reach_s = _STEP_S
        if before is not None and before >= low:
            while edge_s + reach_s < self._times[before + 1]:
                reach_s *= 2
        # the first end that is followed by a later one
        last = max(index, bisect_right(self._times, edge_s + reach_s) - 1)
        found = self._next(last, mask)
        if found is None:
            found = self._previous(last, mask)
        return index if found is None else found

    def _next(self, index: int, mask: int) -> int | None:
        """Return the first end from an index on that has nodes of a set."""
        before = self._sums[index - 1] & mask if index else 0
        if index == len(self._sums) or self._sums[-1] & mask == before:
            return None
        low, high = index, len(self._sums) - 1
        while low < high:
            middle = (low + high) // 2
            if self._sums[middle] & mask != before:
                high = middle
            else:
                low = middle + 1
        return low

    def _previous(self, index: int, mask: int) -> int | None:
        """Return the last end up to an index that has nodes of a set."""
        if index < 0:
            return None
        upto = self._sums[index] & mask
        if not upto:
            return None
        low, high = 0, index
        while low < high:
            middle = (low + high) // 2
            if self._sums[middle] & mask == upto:
                high = middle
            else:
                low = middle + 1
        return low


def _when(end: JobEnd) -> tuple[float, Rank]:
    """Return the sort key of ends."""
    return end.at_s, end.rank
