"""Tuning inside a cell: finds the fastest split of a stage's GPUs with few measurements (Crius, section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sizing.base.parallel import Parallel
from sizing.cells.required import CLOSE

Measure = Callable[[], float | None]
"""Runs a stage with one split and returns its seconds, or None if it does not fit; called at most once."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning: the fastest measured split and its seconds, both None if none fits.

    `times` are the seconds of all measured splits, in order of measurement; `candidates` is the number of all splits.
    """

    best: Parallel | None
    time_s: float | None
    times: Mapping[Parallel, float | None]
    candidates: int

    @property
    def tried(self) -> int:
        """The number of measured splits."""
        return len(self.times)


def tune(options: Mapping[Parallel, Measure], *, close: float = CLOSE) -> Tuned:
    """Find the fastest of some splits of the same number of GPUs by calling as few of `options` as possible.

    The extremes are measured first. If one of them does not fit, or if they differ by at most the share `close` of the
    slower one, a third split with dp = tp follows. Then the search moves from the fastest split so far to its
    neighbours, unless measurements rule them out. It assumes that, in the order of dp, times fall and then rise, and
    that the splits that fit are adjacent. So the half of the slower extreme is skipped unless times still fall at its
    edge. While no measured split fits, nothing is ruled out and the search goes on to the last split, so a stage that
    fits is never reported as one that does not. If the assumptions hold, the result is the fastest split of all.
    """
    axis = sorted(options)
    times: dict[Parallel, float | None] = {}
    while (split := _next(axis, times, close)) is not None:
        times[split] = options[split]()
    best = _fastest(times)
    return Tuned(best, None if best is None else times[best], times, len(axis))


def middle(axis: Sequence[Parallel]) -> Parallel:
    """Return the split nearest to dp = tp; of two, the one with more tensor parallelism, which has fewer weights."""
    return min(axis, key=lambda split: (max(split.dp, split.tp) / min(split.dp, split.tp), split.dp))


def _next(axis: Sequence[Parallel], times: Mapping[Parallel, float | None], close: float) -> Parallel | None:
    """Return the split to measure next, or None if no other can be faster."""
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
    found: list[tuple[int, float, int, Parallel]] = []
    for step in (1, -1):
        at = place[best] + step
        if 0 <= at < len(axis) and axis[at] not in times:
            beyond = at
            while axis[beyond] not in times:  # ends at the latest at an extreme, which is measured
                beyond += step
            # First the side whose end does not fit, because times fall towards it, then the side with the faster end.
            found.append((0 if times[axis[beyond]] is None else 1, times[axis[beyond]] or 0.0, -step, axis[at]))
    return min(found)[-1] if found else None


def undecided(one: float | None, other: float | None, close: float = CLOSE) -> bool:
    """Whether the times of the extremes (None for one that does not fit) leave open which half is better."""
    return one is None or other is None or abs(one - other) <= close * max(one, other)


def _fastest(times: Mapping[Parallel, float | None]) -> Parallel | None:
    fitting = {split: seconds for split, seconds in times.items() if seconds is not None}
    return min(fitting, key=fitting.__getitem__, default=None)
