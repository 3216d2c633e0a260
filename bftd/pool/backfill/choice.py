"""Which of the nodes that would do a job gets: as Slurm chooses for a plan, and as suits us where we make room.

For a plan Slurm goes by the nodes' weight, the least first, and of equal ones takes the smallest run of neighbours that
suffices, or else the largest one. (Read in select/cons_tres, and seen; its topology plug-ins choose otherwise.) Where a
job can start now, Slurm can only take nodes that are idle, so we say which these are by what we leave free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from bftd.pool.backfill.wanted import Numbering
from bftd.pool.leaving import Leaving

_RUN = re.compile("1+")


@dataclass(frozen=True, slots=True)
class Need:
    """How many nodes are needed at once, which ones among them, and whether they are neighbours."""

    count: int
    required: int = 0
    contiguous: bool = False

    def met(self, free: int) -> bool:
        """Whether a set of nodes has enough of them."""
        if free.bit_count() < self.count or self.required & ~free:
            return False
        return not self.contiguous or bool(_places(free, self))


@dataclass(frozen=True, slots=True)
class Preferred:
    """Nodes that are preferred to those that come later; of `leased` ones the trainers say which."""

    mask: int
    leased: bool = False


# Picks some of the nodes of a set: how many, and out of which.
_Pick = Callable[[int, int], int]


def for_plan(free: int, need: Need, weights: Iterable[int]) -> int:
    """The nodes that Slurm would plan a job on. `free` meets the need."""
    if need.contiguous:
        if need.required:  # from the first required node upwards, as far as there are neighbours
            return _window(1 << _places(free, need).bit_length() - 1, need)
        return _window(_smallest(free, need.count), need)
    return _filled(need.required, free, need, weights, _neighbours)


def for_room(
    free: int,
    need: Need,
    weights: Sequence[int],
    wishes: Iterable[Preferred],
    leave: Callable[[int, int], int],
) -> int:
    """The nodes that a job is given to start now, by preference. `free` meets the need.

    `leave(mask, count)` chooses among leased nodes, of which it is asked for fewer than there are.
    """
    if need.contiguous:
        return _window(_best_place(_places(free, need), need.count, [wish.mask for wish in wishes]), need)
    chosen = need.required
    for wish in wishes:
        some = free & wish.mask
        if some:
            chosen = _filled(chosen, some, need, weights, leave if wish.leased else _neighbours)
            if chosen.bit_count() >= need.count:
                return chosen
    return _filled(chosen, free, need, weights, _neighbours)


def leaver(numbering: Numbering, leaving: Leaving, already: Collection[str]) -> _Pick:
    """Choose among leased nodes by what their leaving costs, beside those that leave already."""

    def leave(mask: int, count: int) -> int:
        names = numbering.of_mask(mask)
        # what comes back is not trusted to be what was asked for
        return _neighbours_of(mask, numbering.mask(list(leaving.cheapest(names, count, already))[:count]) & mask, count)

    return leave


def _neighbours_of(mask: int, chosen: int, count: int) -> int:
    """A choice filled up to `count` nodes of a set."""
    missing = count - chosen.bit_count()
    return chosen | _neighbours(mask & ~chosen, missing) if missing > 0 else chosen


def _filled(chosen: int, free: int, need: Need, weights: Iterable[int], pick: _Pick) -> int:
    """A choice with as many nodes of `free` added as are needed and there are, the least weight first."""
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
            return chosen | pick(some, left)
        chosen |= some
        free &= ~some
        left -= count
        if not left:
            return chosen
    # nodes of which no weight is known come last
    return chosen | (free if free.bit_count() <= left else pick(free, left))


def _neighbours(mask: int, count: int) -> int:
    """Some nodes of a larger set: of the smallest run of neighbours that suffices, or else the largest, and so on."""
    chosen = 0
    length = _longest(mask, count)
    if length < count:
        # all runs that are longer, which do not suffice together, and as many of this length as do not either
        chosen = _in_runs(mask, length + 1)
        count -= chosen.bit_count()
        some = _lowest(_alone(mask, length), (count - 1) // length)
        chosen |= _widened(some, length)
        count -= some.bit_count() * length
        mask &= ~chosen
    return chosen | ((1 << count) - 1) * _smallest(mask, count)


def _longest(mask: int, count: int) -> int:
    """The greatest length, up to `count`, for which the runs that are at least as long have `count` nodes together."""
    if _runs(mask, count):
        return count
    # runs are short where nodes are scattered, and long ones take longer to look for
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
    """The first node of the first of the smallest runs that have `count` nodes."""
    exact = _alone(mask, count)
    if exact:
        return exact & -exact
    runs = _RUN.finditer(bin(_in_runs(mask, count))[:1:-1])
    _, start = min((run.end() - run.start(), run.start()) for run in runs)
    return 1 << start


def _alone(mask: int, count: int) -> int:
    """The nodes with which a run of exactly `count` neighbours begins."""
    return _runs(mask, count) & ~(mask << 1) & ~(mask >> count)


def _in_runs(mask: int, count: int) -> int:
    """The nodes that are in a run of at least `count` neighbours."""
    return _widened(_runs(mask, count), count)


def _widened(starts: int, length: int) -> int:
    """The `length` neighbours from each of some nodes on."""
    done = 1
    while done < length:
        step = min(done, length - done)
        starts |= starts << step
        done += step
    return starts


def _lowest(mask: int, count: int) -> int:
    """The first `count` nodes of a set that has as many."""
    low, high = 0, mask.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return mask & ((1 << low) - 1)


def _runs(mask: int, count: int) -> int:
    """The nodes with which a run of `count` neighbours begins."""
    length = 1
    while mask and length < count:
        step = min(length, count - length)
        mask &= mask >> step
        length += step
    return mask


def _places(free: int, need: Need) -> int:
    """The nodes with which a run of neighbours begins that meets a need."""
    places = _runs(free, need.count)
    if need.required:
        lowest = (need.required & -need.required).bit_length() - 1
        first = max(0, need.required.bit_length() - need.count)
        places &= ((1 << (lowest + 1)) - 1) & ~((1 << first) - 1)
    return places


def _window(place: int, need: Need) -> int:
    """The neighbours from a node on."""
    return ((1 << need.count) - 1) * place


def _best_place(places: int, count: int, wishes: Iterable[int]) -> int:
    """Of the places where a run may begin, the first of those with most nodes of the wishes, in their order."""
    left = [index for index, bit in enumerate(bin(places)[:1:-1]) if bit == "1"]
    span = (1 << (left[-1] + count)) - 1
    for wish in wishes:
        if len(left) == 1 or not wish & span:
            continue
        bits = bin(wish & span | span + 1)[:2:-1]
        sums = [0, *accumulate(map(int, bits))]
        found = [sums[index + count] - sums[index] for index in left]
        most = max(found)
        left = [index for index, nodes in zip(left, found, strict=True) if nodes == most]
    return 1 << left[0]
