"""Which of the nodes that would do a job gets: as Slurm chooses for a plan, and as suits us where we make room.

For a plan Slurm goes by the nodes' weight, the least first, and of equal ones takes the smallest run of neighbours that
suffices, or else the largest one. (Read in select/cons_tres, and seen; its topology plug-ins choose otherwise.) Where a
job can start now, Slurm can only take nodes that are idle, so we say which these are by what we leave free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from bftd.pool.backfill.wanted import lowest
from bftd.pool.leaving import Chooser


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


def leaver(chooser: Chooser, already: int) -> _Pick:
    """Choose among leased nodes by what their leaving costs, beside those that leave already."""

    def leave(mask: int, count: int) -> int:
        # what comes back is not trusted to be what was asked for
        chosen = chooser(mask, count, already) & mask
        missing = count - chosen.bit_count()
        if missing < 0:
            return lowest(chosen, count)
        return chosen | _neighbours(mask & ~chosen, missing) if missing else chosen

    return leave


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
        some = lowest(_alone(mask, length), (count - 1) // length)
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
    if not exact:
        # as long as no run has been left out, the smallest one is longer
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
    """How many runs of neighbours a set has."""
    return (mask & ~(mask << 1)).bit_count()


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
    span = (1 << places.bit_length() - 1 + count) - 1
    for wish in wishes:
        if not places & places - 1:
            break
        # from the highest digit down: where some have it, those without it have fewer
        for digit in reversed(_counted(wish & span, count)):
            places = places & digit or places
    return places & -places


def _counted(mask: int, count: int) -> list[int]:
    """How many of the `count` neighbours from each node on are in a set, in binary: a mask a digit, the lowest first.

    All places are counted at once: windows are added up in pairs, twice as long each time.
    """
    total: list[int] = []
    window, length, done = [mask], 1, 0
    while True:
        if count & length:
            total = _added(total, [digit >> done for digit in window])
            done += length
        length *= 2
        if length > count:
            return total
        window = _added(window, [digit >> length // 2 for digit in window])


def _added(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The sums of two numbers at each place, digit by digit."""
    found, carry = [], 0
    for one, other in zip_longest(first, second, fillvalue=0):
        half = one ^ other
        found.append(half ^ carry)
        carry = one & other | half & carry
    return [*found, carry] if carry else found
