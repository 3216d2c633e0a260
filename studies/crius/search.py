"""ScaleResource and BestPerf (Crius, Algorithm 1): the best choice that scales at most `depth` running jobs.

A choice is a cell for the new job, if there is one, and a new cell for at most `depth` running jobs, such that no type
of GPU is overdrawn; the best choice has the greatest sum of values. The search is exhaustive, but visits few choices:

- Of changes that free and need the same GPUs, only the `depth` best can be in a best choice.
- A partial choice that overdraws a type is extended only by changes that free GPUs of that type; any other only by
  changes with a gain of their own. Every choice can be built in such an order.
- Choices with a change that was explored before are skipped below later changes, so no set is visited twice.
- GPUs have prices (Lagrange multipliers of the capacities). With any prices, the sum of the best priced gains and of
  the free GPUs at these prices is an upper bound of the possible gain; a branch whose bound is below the best choice so
  far is cut off.

The depth grows step by step, so a choice of depth d + 1 is never worse than that of depth d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.simulation.types import Allocation

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

EPSILON = 1e-9
"""Gains that differ by less count as equal, so that the rounding of sums does not decide."""
ROUNDS, PATIENCE = 40, 8
"""The number of steps towards good prices, and the number of steps without improvement before steps get smaller."""
NODES_MAX = 20_000
"""The most partial choices that a search visits before it returns the best so far."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A cell that the new job could have, and the job's value there; `need` are its GPUs by type."""

    allocation: Allocation
    value: float
    need: tuple[int, ...]


class Change(NamedTuple):  # a NamedTuple, because a decision makes thousands
    """A running job (its number) in another cell: the gain, and the additional (negative: freed) GPUs by type."""

    job: int
    allocation: Allocation
    gain: float
    need: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The best choice found: `gain` is its gain over changing nothing, including the new job's value.

    `exact` is False if the search ended early at its limit of `nodes`, the partial choices visited.
    """

    offer: Offer | None
    changes: tuple[Change, ...]
    gain: float
    exact: bool
    nodes: int


def search(
    offers: Sequence[Offer], changes: Sequence[Change], free: Sequence[int], depth: int, nodes_max: int = NODES_MAX
) -> Choice | None:
    """Return the best choice with a gain above 0, or None if there is none.

    With `offers` the new job must get one of them; without, running jobs are changed for their own sake. `free` are
    the idle GPUs by type. Ties go to the fewest changes, then to the order given.
    """
    found = _Search(offers, changes, free, depth, nodes_max)
    for most in range(depth + 1):
        if not found.deepen(most):
            break
    return found.choice()


class _Search:
    """One search: the candidates as arrays, and the best choice so far."""

    def __init__(
        self, offers: Sequence[Offer], changes: Sequence[Change], free: Sequence[int], depth: int, nodes_max: int
    ) -> None:
        self.free = np.array(free, dtype=np.float64)
        self.offers = list(offers)
        self.starts = [(each.value, self.free - np.array(each.need, dtype=np.float64)) for each in offers]
        if not offers:
            self.starts = [(0.0, self.free)]
        self.ranked = _ranked(changes, depth)
        self._take(0)
        self.prices = np.zeros(len(free))
        self.best = EPSILON
        self.found: tuple[int, tuple[Change, ...]] | None = None
        self.nodes, self.nodes_max = 0, nodes_max

    def _take(self, most: int) -> None:
        """Take, as arrays, the changes that can be in a best choice of `most` changes; they do not depend on depth."""
        self.changes = [change for rank, change in self.ranked if rank < most]
        self.gain = np.array([each.gain for each in self.changes], dtype=np.float64)
        self.need = np.array([each.need for each in self.changes], dtype=np.float64).reshape(-1, self.free.size)
        self.job = np.array([each.job for each in self.changes], dtype=np.int64)

    def _better(self, gain: float, start: int, picked: Sequence[int]) -> None:
        """Keep a choice that is better than the best so far."""
        if gain > self.best + EPSILON:
            self.best, self.found = gain, (start, tuple(self.changes[index] for index in picked))

    def choice(self) -> Choice | None:
        """Return the best choice found, or None."""
        if self.found is None:
            return None
        start, changes = self.found
        offer = self.offers[start] if self.offers else None
        gain = (offer.value if offer else 0.0) + sum(each.gain for each in changes)
        return Choice(offer, changes, gain, self.nodes < self.nodes_max, self.nodes)

    def deepen(self, most: int) -> bool:
        """Search all choices of at most `most` changes; returns False if there is no need or no time to go deeper."""
        self._take(most)
        if most > 0 and not self.changes:
            return False
        self._price(most, ROUNDS if most > 2 else ROUNDS // 4)
        priced = self.gain - self.need @ self.prices
        rest = _sum_of_best(priced, most)
        ranked = sorted(
            ((value + float(self.prices @ left) + rest, start) for start, (value, left) in enumerate(self.starts)),
            key=lambda pair: -pair[0],
        )
        for bound, start in ranked:
            if bound <= self.best + EPSILON:
                break
            value, left = self.starts[start]
            self._walk(start, most, value, left, np.ones(len(self.changes), dtype=np.bool_), priced, ())
        return self.nodes < self.nodes_max

    def _price(self, most: int, rounds: int) -> None:
        """Find prices with a low bound at the root, by subgradients with Polyak's steps towards the best so far."""
        if most == 0:
            return
        values = np.array([value for value, _ in self.starts])
        lefts = np.array([left for _, left in self.starts])
        count = min(most, len(self.changes))
        prices, lowest, kept = self.prices, np.inf, self.prices
        scale, worse = 1.0, 0
        for _ in range(rounds):
            priced = self.gain - self.need @ prices
            totals = values + lefts @ prices
            start = int(totals.argmax())
            top = np.argpartition(priced, -count)[-count:]
            top = top[priced[top] > 0]
            bound = float(totals[start] + priced[top].sum())
            if bound < lowest - EPSILON:
                lowest, kept, worse = bound, prices, 0
                if lowest <= self.best + EPSILON:
                    break
            elif (worse := worse + 1) >= PATIENCE:
                scale, worse, prices = scale / 2, 0, kept
                continue
            slope = lefts[start] - self.need[top].sum(axis=0)
            size = float(slope @ slope)
            if size == 0:
                break
            prices = np.maximum(0.0, prices - slope * (scale * (bound - self.best) / size))
        self.prices = kept

    def _walk(
        self, start: int, most: int, gained: float, left: Floats, alive: Flags, priced: Floats, picked: tuple[int, ...]
    ) -> None:
        """Visit a partial choice and all that extend it; `alive` are the changes that may still be added."""
        self.nodes += 1
        fits = bool((left >= 0).all())
        if fits:
            self._better(gained, start, picked)
        if most == 0 or self.nodes >= self.nodes_max:
            return
        base = gained + float(self.prices @ left)
        # a change stays if its gain with the best possible others is more than the best choice so far
        among = np.flatnonzero(alive)
        here = priced[among]
        bounds = base + here + _sum_of_best(here, most - 1)
        keep = bounds > self.best + EPSILON
        among, bounds = among[keep], bounds[keep]
        if most == 1:
            self._last(start, gained, left, among, picked)
            return
        first = self.gain[among] > 0 if fits else self.need[among, int(np.argmin(left))] < 0
        if most == 2:
            self._last_two(start, gained, left, among[first], among, picked)
            return
        open_ = np.zeros_like(alive)
        open_[among] = True
        among, bounds = among[first], bounds[first]
        for place in np.argsort(-bounds, kind="stable"):
            if bounds[place] <= self.best + EPSILON:
                break
            index = int(among[place])
            open_[index] = False
            below = open_ & (self.job != self.job[index])
            gain = gained + float(self.gain[index])
            self._walk(start, most - 1, gain, left - self.need[index], below, priced, (*picked, index))

    def _last(self, start: int, gained: float, left: Floats, among: NDArray[np.intp], picked: tuple[int, ...]) -> None:
        """Try all last changes at once and keep the best."""
        able = among[(self.need[among] <= left).all(axis=1)]
        if able.size:
            index = int(able[np.argmax(self.gain[able])])
            self._better(gained + float(self.gain[index]), start, (*picked, index))

    def _last_two(
        self,
        start: int,
        gained: float,
        left: Floats,
        firsts: NDArray[np.intp],
        seconds: NDArray[np.intp],
        picked: tuple[int, ...],
    ) -> None:
        """Try all pairs of last changes at once and keep the best; single changes were tried at a smaller depth."""
        if not firsts.size or not seconds.size:
            return
        able = self.job[firsts][:, None] != self.job[seconds][None, :]
        for gpu_type in range(left.size):
            able &= self.need[firsts, gpu_type][:, None] + self.need[seconds, gpu_type][None, :] <= left[gpu_type]
        gains = np.where(able, self.gain[firsts][:, None] + self.gain[seconds][None, :], -np.inf)
        row, column = divmod(int(gains.argmax()), seconds.size)
        gain = gained + float(gains[row, column])
        self._better(gain, start, (*picked, int(firsts[row]), int(seconds[column])))


def _ranked(changes: Sequence[Change], depth: int) -> list[tuple[int, Change]]:
    """Return the changes that can be in a best choice of at most `depth`, with their ranks among equal needs.

    A best choice of n changes needs none of rank n or more (from 0): a better one with the same needs is then unused.
    """
    kinds: dict[tuple[int, ...], list[Change]] = {}
    for change in changes:
        if change.gain > 0 or min(change.need) < 0:
            kinds.setdefault(change.need, []).append(change)
    found: list[tuple[int, Change]] = []
    for alike in kinds.values():
        alike.sort(key=lambda change: change.gain, reverse=True)
        # only the best change of each job, because a job has at most one
        best: dict[int, Change] = {}
        for each in alike:
            best.setdefault(each.job, each)
            if len(best) == depth:
                break
        found += enumerate(best.values())
    return found


def _sum_of_best(values: Floats, count: int) -> float:
    """Return the sum of the `count` greatest values, without values below 0."""
    if count <= 0 or values.size == 0:
        return 0.0
    best = np.partition(values, -count)[-count:] if count < values.size else values
    return float(best[best > 0].sum())
