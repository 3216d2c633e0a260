"""A multiple-choice knapsack in terms of losses, by dynamic programming over the nodes used so far.

Trainers with equal candidates, such as the trials of a hyperparameter search, are taken together: only the number of
those that deviate from the choice without loss matters, and few can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from milp.solvers.arrays import Floats, Ints


@dataclass(frozen=True)
class Candidates:
    """The counts that each trainer may get and their losses, as three arrays sorted by row and then count.

    A row may stand for several trainers, each of which may get any of its counts.
    """

    rows: Ints
    counts: Ints
    losses: Floats


class _Group(NamedTuple):
    """Trainers with the same candidates, in ascending order; `losses` are those beyond the smallest one."""

    rows: list[int]
    counts: Ints
    losses: Floats


class _Unit(NamedTuple):
    """One decision: trainers that all get the same one of `counts`.

    Together they use `extra` nodes beyond their minimum of `least`, at most `span`, and lose `losses`.
    """

    rows: list[int]
    counts: Ints
    extra: Ints
    losses: Floats
    least: int
    span: int

    @classmethod
    def of(cls, rows: list[int], counts: Ints, losses: Floats) -> _Unit:
        """Build a unit of the trainers `rows`; `losses` are those of one trainer."""
        least, times = int(counts[0]), len(rows)
        extra = (counts - least) * times
        return cls(rows, counts, extra, losses * times, least * times, int(extra[-1]))


class _Stage(NamedTuple):
    """A decision and the states before it.

    `before[i]` is the least loss of the earlier units when they use `start + i` nodes above their least.
    """

    unit: _Unit
    start: int
    before: Floats


def cheapest(
    candidates: Candidates,
    capacity: int,
    price: float,
    limit: float,
    *,
    members: Sequence[list[int]] | None = None,
    reach: float | None = None,
) -> Ints | None:
    """Return the counts (J,) with the least total loss that fit `capacity`, or None if that exceeds `limit`.

    A node left unused loses `price`. Every row has a candidate. `members` lists the trainers that each row stands for,
    0..J-1 in all; by default one per row. With `reach`, plans that lose more are not all tried.
    """
    bounds = np.searchsorted(candidates.rows, np.arange(int(candidates.rows[-1]) + 2))
    members = members or [[row] for row in range(len(bounds) - 1)]
    times = np.array([len(rows) for rows in members])
    least = candidates.counts[bounds[:-1]]
    found = np.empty(int(times.sum()), np.int64)
    found[list(chain.from_iterable(members))] = np.repeat(least, times)
    # From here on a loss is that beyond every trainer's smallest one, and the limits are for the sum of these.
    lost = float((times * np.minimum.reduceat(candidates.losses, bounds[:-1])).sum())
    reach, limit = (limit if reach is None else reach) - lost, limit - lost
    if limit < 0:
        return None
    closed = np.diff(bounds) == 1
    groups = _groups(candidates, bounds.tolist(), np.flatnonzero(~closed).tolist(), members)
    units = [unit for group in groups for unit in _units(group, max(reach, 0.0))]
    spare = capacity - int((times * least)[closed].sum()) - sum(unit.least for unit in units)
    if spare < 0:
        return None
    for unit in units:
        if not unit.span:  # nothing to decide: it is the count that loses least
            found[unit.rows] = unit.counts[0]
    units = [unit for unit in units if unit.span]
    # Narrow ones first, so that the states stay few for as long as possible.
    units.sort(key=lambda unit: unit.span)
    later = sum(unit.span for unit in units)
    slack = int(min(spare, limit / price)) if price > 0 else spare

    stages: list[_Stage] = []
    start, state = 0, np.zeros(1)
    for unit in units:
        stages.append(_Stage(unit, start, state))
        later -= unit.span
        # States that fit, and from which the later units can still use enough nodes.
        low = max(start, spare - slack - later)
        high = min(start + len(state) - 1 + unit.span, spare)
        state = _advance(state, start, unit.extra, unit.losses, low, high)
        within = np.flatnonzero(state <= limit)
        if not len(within):
            return None
        start, state = low + int(within[0]), state[within[0] : within[-1] + 1]

    totals = state + price * (spare - np.arange(start, start + len(state)))
    if totals.min() > limit:
        return None
    at = start + int(totals.argmin())
    for stage in reversed(stages):
        at = _retreat(stage, at, found)
    for group in groups:
        found[group.rows] = np.sort(found[group.rows])[::-1]  # the earlier trainer gets more
    return found


def _groups(candidates: Candidates, bounds: list[int], rows: list[int], members: Sequence[list[int]]) -> list[_Group]:
    """Return the trainers of `rows` grouped by equal candidates, with losses beyond the smallest one."""
    alike: dict[bytes, _Group] = {}
    for row in rows:
        part = slice(bounds[row], bounds[row + 1])
        counts, losses = candidates.counts[part], candidates.losses[part]
        group = alike.setdefault(counts.tobytes() + losses.tobytes(), _Group([], counts, losses - losses.min()))
        group.rows.extend(members[row])
    for group in alike.values():
        group.rows.sort()
    return list(alike.values())


def _units(group: _Group, limit: float) -> Iterator[_Unit]:
    """Split equal trainers into decisions that still contain the best plan among those that lose at most `limit`.

    In descending order of their losses, the k-th trainer loses no more than limit / k. Trainers left with one or two
    counts need no order: the number of those that take the larger count is a sum of powers of 2.
    """
    if len(group.rows) == 1:
        within = group.losses <= limit
        yield _Unit.of(group.rows, group.counts[within], group.losses[within])
        return
    for position, row in enumerate(group.rows):
        within = group.losses <= limit / (position + 1)
        counts, losses = group.counts[within], group.losses[within]
        if len(counts) <= 2:
            yield from _doubling(_Group(group.rows[position:], counts, losses))
            return
        yield _Unit.of([row], counts, losses)


def _doubling(group: _Group) -> Iterator[_Unit]:
    start, size = 0, 1
    while start < len(group.rows):
        yield _Unit.of(group.rows[start : start + size], group.counts, group.losses)
        start, size = start + size, size * 2


def _advance(state: Floats, start: int, extra: Ints, losses: Floats, low: int, high: int) -> Floats:
    """Least losses after one more unit, for `low`..`high` nodes used (`start` <= `low`)."""
    if low > high:
        return np.empty(0)
    fitting = int(extra.searchsorted(high - start, side="right"))
    extra, losses = extra[:fitting], losses[:fitting]
    left = int(extra[-1])
    padded = np.empty(left + high - start + 1)
    padded.fill(np.inf)
    padded[left : left + len(state)] = state[: high - start + 1]
    if len(extra) == 2:  # the usual case: take the larger count, or do not
        fewer, more = padded[left + low - start :], padded[low - start : high - start + 1]
        best: Floats = np.minimum(fewer + losses[0], more + losses[1])
        return best
    # Every window of it, one row for each start; a choice of more nodes begins further left.
    width = high - low + 1
    windows = np.ndarray((left + low - start + 1, width), np.float64, padded, strides=padded.strides * 2)
    after: Floats = (windows[left + low - start - extra] + losses[:, None]).min(axis=0)
    return after


def _retreat(stage: _Stage, at: int, found: Ints) -> int:
    """Record the counts of the stage's trainers when `at` nodes were used after it; return the nodes used before."""
    unit, start, before = stage
    best, choice = np.inf, 0
    # A handful of choices: faster one by one than as arrays.
    for place, (extra, loss) in enumerate(zip(unit.extra.tolist(), unit.losses.tolist(), strict=True)):
        used = at - start - extra
        if 0 <= used < len(before) and before[used] + loss < best:
            best, choice = before[used] + loss, place
    found[unit.rows] = unit.counts[choice]
    return at - int(unit.extra[choice])
