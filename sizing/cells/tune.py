"""Tuning inside a cell: the fastest split of a stage's GPUs, of which few are measured (Crius, section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sizing.cells.cell import Split
from sizing.cells.wanted import CLOSE

Measure = Callable[[], float | None]
"""Runs a stage with one split and says its seconds, None where it does not fit; called once at most."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning found: the fastest split that was measured and its seconds, both None where none fits.

    `times` are the seconds of all that were measured, in that order, of `candidates` that there are.
    """

    best: Split | None
    time_s: float | None
    times: Mapping[Split, float | None]
    candidates: int

    @property
    def tried(self) -> int:
        """How many were measured."""
        return len(self.times)


def tune(options: Mapping[Split, Measure], *, close: float = CLOSE) -> Tuned:
    """Find the fastest of some splits of the same number of GPUs; only what `options` are called for is known.

    The extremes are measured first, and a third split with dp = tp where one of them does not fit or they are within
    the share `close` of the slower one.
    Then the search moves from the fastest so far to what lies beside it, while that is not ruled out by what was
    measured: splits in the order of dp are taken to have times that fall and then rise, and those that fit to lie side
    by side. So the half of the slower extreme is left alone unless times still fall at its edge. Where nothing
    measured fits nothing is ruled out, and the search goes on to the last: no stage that fits is called one that does
    not. Where splits are as assumed, what is found is the fastest of all.
    """
    axis = sorted(options)
    times: dict[Split, float | None] = {}
    while (split := _next(axis, times, close)) is not None:
        times[split] = options[split]()
    best = _fastest(times)
    return Tuned(best, None if best is None else times[best], times, len(axis))


def middle(axis: Sequence[Split]) -> Split:
    """The split that is nearest to dp = tp; of two, the one with more tensor parallelism, which has fewer weights."""
    return min(axis, key=lambda split: (max(split.dp, split.tp) / min(split.dp, split.tp), split.dp))


def _next(axis: Sequence[Split], times: Mapping[Split, float | None], close: float) -> Split | None:
    """What is to be measured now, None where nothing more can be faster."""
    left = [split for split in axis if split not in times]
    if not left:
        return None
    for extreme in (axis[-1], axis[0]):
        if extreme not in times:
            return extreme
    third = middle(axis)
    if third in left and undecided(times[axis[0]], times[axis[-1]], close):
        return third
    place = {split: at for at, split in enumerate(axis)}
    best = _fastest(times)
    if best is None:
        return min(left, key=lambda split: (abs(place[split] - place[third]), split.dp))
    found: list[tuple[int, float, int, Split]] = []
    for step in (1, -1):
        at = place[best] + step
        if 0 <= at < len(axis) and axis[at] not in times:
            beyond = at
            while axis[beyond] not in times:  # it ends at an extreme
                beyond += step
            # Of both sides first the one towards which times fall: where memory ends, that is the way there.
            found.append((0 if times[axis[beyond]] is None else 1, times[axis[beyond]] or 0.0, -step, axis[at]))
    return min(found)[-1] if found else None


def undecided(one: float | None, other: float | None, close: float = CLOSE) -> bool:
    """Whether the times of the extremes (None for one that does not fit) leave open which half is the better one."""
    return one is None or other is None or abs(one - other) <= close * max(one, other)


def _fastest(times: Mapping[Split, float | None]) -> Split | None:
    fitting = {split: seconds for split, seconds in times.items() if seconds is not None}
    return min(fitting, key=fitting.__getitem__, default=None)
