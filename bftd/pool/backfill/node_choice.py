"""Slurm's choice among the nodes that would do for a job, for a plan and for a job that could start now.

Slurm goes by the nodes' weight, the least first, and of equal ones takes the smallest run of neighbours that suffices,
or else the largest one; since 26.05 a job of one node gets the first one instead. (Read in select/cons_tres, and
observed; its topology plug-ins choose otherwise.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from bftd.pool.backfill.model import lowest


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """A need for nodes: how many at once, which ones among them, and whether they must be neighbours."""

    count: int
    required: int = 0
    contiguous: bool = False

    def met(self, free: int) -> bool:
        """Whether a set of nodes meets the need."""
        if free.bit_count() < self.count or self.required & ~free:
            return False
        return not self.contiguous or bool(_places(free, self))


def for_plan(free: int, need: NodeNeed, weights: Iterable[int], first: int = 0, *, one_by_order: bool = False) -> int:
    """Return the nodes that Slurm would choose, after as many of the `first` as there are. `free` meets the need.

    With `one_by_order` the choice for one node is that of 26.05 and newer releases.
    """
    if need.contiguous:
        if need.met(free & first):
            free &= first
        if need.required:  # from the first required node upwards, as far as there are neighbours
            return _window(1 << _places(free, need).bit_length() - 1, need)
        return _window(_smallest(free, need.count), need)
    some = lowest if one_by_order and need.count == 1 else _neighbours
    chosen = _filled(need.required, free & first, need, weights, some) if first else need.required
    return _filled(chosen, free, need, weights, some)


def _filled(chosen: int, free: int, need: NodeNeed, weights: Iterable[int], some_of: Callable[[int, int], int]) -> int:
    """Return a choice extended by nodes of `free`, as many as are needed and there are, the least weight first."""
    left = need.count - chosen.bit_count()
    free &= ~chosen
    if left <= 0 or not free:
        return chosen
    for weight in weights:
        some = free & weight
        if not some:
            continue
        count = some.bit_count()
        if count > left:
            return chosen | some_of(some, left)
        chosen |= some
        free &= ~some
        left -= count
        if not left:
            return chosen
    # nodes without a known weight come last
    return chosen | (free if free.bit_count() <= left else some_of(free, left))


@lru_cache(maxsize=1 << 10)
def _neighbours(mask: int, count: int) -> int:
    """Return some nodes of a larger set: the smallest run of neighbours that suffices, else the largest, and so on."""
    chosen = 0
    length = _longest(mask, count)
    if length < count:
        # take all longer runs, which do not suffice together, and as many of this length as still do not suffice
        chosen = _in_runs(mask, length + 1)
        count -= chosen.bit_count()
        some = lowest(_alone(mask, length), (count - 1) // length)
        chosen |= _widened(some, length)
        count -= some.bit_count() * length
        mask &= ~chosen
    return chosen | ((1 << count) - 1) * _smallest(mask, count)


def _longest(mask: int, count: int) -> int:
    """Return the greatest length, up to `count`, for which the runs of at least that length have `count` nodes."""
    if _runs(mask, count):
        return count
    # runs are short where nodes are scattered, and long ones take longer to search for
    low, high = 1, min(2, count)
    while high < count and _in_runs(mask, high).bit_count() >= count:
        low, high = high, min(2 * high, count)
    while high - low > 1:
        middle = (low + high) // 2
        if _in_runs(mask, middle).bit_count() >= count:
            low = middle
        else:
            high = middle
    return low


def _smallest(mask: int, count: int) -> int:
    """Return the first node of the first of the smallest runs that have `count` nodes."""
    exact = _alone(mask, count)
    if not exact:
        # as long as no run has been dropped, the smallest one is longer
        starts = _runs(mask, count)
        every = _runs_of(starts)
        low, high = 1, 2
        while _runs_of(_runs(starts, high)) == every:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if _runs_of(_runs(starts, middle)) == every:
                low = middle
            else:
                high = middle
        exact = _alone(starts, low)
    return exact & -exact


def _runs_of(mask: int) -> int:
    """Count the runs of neighbours in a set."""
    return (mask & ~(mask << 1)).bit_count()


def _alone(mask: int, count: int) -> int:
    """Return the nodes with which a run of exactly `count` neighbours begins."""
    return _runs(mask, count) & ~(mask << 1) & ~(mask >> count)


def _in_runs(mask: int, count: int) -> int:
    """Return the nodes that are in a run of at least `count` neighbours."""
    return _widened(_runs(mask, count), count)


def _widened(starts: int, length: int) -> int:
    """Return the `length` neighbours from each of some nodes on."""
    done = 1
    while done < length:
        step = min(done, length - done)
        starts |= starts << step
        done += step
    return starts


def _runs(mask: int, count: int) -> int:
    """Return the nodes with which a run of `count` neighbours begins."""
    length = 1
    while mask and length < count:
        step = min(length, count - length)
        mask &= mask >> step
        length += step
    return mask


def _places(free: int, need: NodeNeed) -> int:
    """Return the nodes with which a run of neighbours begins that meets a need."""
    places = _runs(free, need.count)
    if need.required:
        lowest = (need.required & -need.required).bit_length() - 1
        first = max(0, need.required.bit_length() - need.count)
        places &= ((1 << (lowest + 1)) - 1) & ~((1 << first) - 1)
    return places


def _window(place: int, need: NodeNeed) -> int:
    """Return the neighbours from a node on."""
    return ((1 << need.count) - 1) * place
