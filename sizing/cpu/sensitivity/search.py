"""The CPUs that a job can use, found with few points: Synergy's binary search (section 3.1).

The most CPUs are tried first, then the middle of the rest: if the best rate so far is less than `threshold` (10 %)
faster, the search goes on among fewer CPUs, else among more. The comparison is with the best and not with the point
before, so losses of several halvings do not add up, and a curve that is flat for a while and rises again is followed to
its end: less than the best stays less than the best, however flat it is there.

**How this agrees with a full sweep**, which finds the least CPUs that reach 98 % of the best (`matrix.SATURATED`). On
an exact curve that rises by more than the threshold with the last CPUs that count, both find the same. A measured curve
is not exact: on a plateau measured within 3 %, chance decides where the 98 % are reached, while the threshold is not
affected by the noise. The threshold also misses the end of a rise: a loader that needs 24 CPUs is within 10 % of its
best on 22. Below its knee such a job's speed is proportional to its CPUs, so there is one place to look at: as many
more CPUs as it lacks speed. They are tried, and asked for if the rate grew by at least half (`WORTH`) as much as the
CPUs. With this, any curve that rises in proportion and then is flat has the sweep's demand, within one step. On a curve
that bends slowly (each CPU brings less than the one before, but always something) the search stops before the sweep
does: the gain that it forgoes is below the threshold, and costs more than twice its share of CPUs.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sizing.base.errors import SizingError
from sizing.cpu.sensitivity.matrix import SATURATED

THRESHOLD = 0.1
"""The share by which the best must be faster for the search to go on among more CPUs (Synergy, section 3.1)."""

WORTH = 0.5
"""The least growth of the rate, as a share of the growth of CPUs, for which the last CPUs are asked for."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """The state of a search: `cpus` are all that could be tried, ascending; `tried` maps those that were to rates.

    `tried` is in the order of trying. The search may have been broken off: all properties hold for the points so far.
    """

    cpus: tuple[float, ...]
    tried: Mapping[float, float]
    threshold: float = THRESHOLD

    @property
    def best(self) -> float:
        """The greatest rate so far."""
        return max(self.tried.values(), default=0.0)

    @property
    def within(self) -> float:
        """The least CPUs tried whose rate is within the threshold of the best; raises SizingError if there are none."""
        best = self.best
        if not best > 0:
            most = f"{max(self.tried):g} CPUs" if self.tried else "any CPUs"
            raise SizingError(f"no throughput with {most}: run the command alone and look at what it prints")
        return min(cpus for cpus, rate in self.tried.items() if rate * (1 + self.threshold) >= best)

    @property
    def demand(self) -> float:
        """The CPUs that the job can use; raises SizingError if it makes no progress at all."""
        asked = self.within
        for cpus in sorted(each for each in self.tried if each > asked):
            now, then = self.tried[asked], self.tried[cpus]
            if now >= SATURATED * self.best:
                break
            if then / now - 1 >= WORTH * (cpus / asked - 1):
                asked = cpus
        return asked

    @property
    def slower(self) -> float | None:
        """The largest number of CPUs slower than a smaller one by more than half the threshold; None if there is none.

        A job can leave CPUs idle, so more CPUs should not be slower: the first point, which has the most CPUs, may not
        have found its data in memory yet, or something else ran. Measured once more, it does not hide the gain from
        CPUs.
        """
        for cpus in sorted(self.tried, reverse=True):
            fewer = max((rate for other, rate in self.tried.items() if other < cpus), default=0.0)
            if self.tried[cpus] * (1 + self.threshold / 2) < fewer:
                return cpus
        return None

    def following(self) -> float | None:
        """Return the CPUs to try next, None if enough is known."""
        if not self.tried:
            return self.cpus[-1]
        within = self.within
        high = bisect_left(self.cpus, within)
        low = max((bisect_left(self.cpus, cpus) for cpus in self.tried if cpus < within), default=-1)
        if high - low > 1:
            return self.cpus[(low + high) // 2]
        lacking = SATURATED * self.best / self.tried[within]
        at = bisect_left(self.cpus, within * lacking * (1 - 1e-9))
        knee = self.cpus[min(at, len(self.cpus) - 1)]
        return None if lacking <= 1 or knee in self.tried else knee

    def tell(self, cpus: float, rate: float) -> SearchState:
        """Return the search with one more point; raise ValueError for an invalid rate, or CPUs outside `cpus`."""
        if not (math.isfinite(rate) and rate >= 0) or cpus not in self.cpus:
            raise ValueError(f"{rate} with {cpus} CPUs: give a rate of 0 or more, with CPUs of {self.cpus}")
        return SearchState(self.cpus, {**self.tried, cpus: rate}, self.threshold)


def begin(cpus: Sequence[float], threshold: float = THRESHOLD) -> SearchState:
    """Start a search; raise ValueError if CPUs do not ascend, or any number is not above 0."""
    if not cpus or cpus[0] <= 0 or any(a >= b for a, b in itertools.pairwise(cpus)) or not threshold > 0:
        raise ValueError("CPUs to try ascend, and are more than 0, as the threshold is")
    return SearchState(tuple(cpus), {}, threshold)


def search(cpus: Sequence[float], measure: Callable[[float], float], threshold: float = THRESHOLD) -> SearchState:
    """Try as few of the CPUs (ascending) as needed; `measure` returns a rate, and is called at most once for each.

    At most 2 + log2(len(cpus)) are tried while rates do not fall with more CPUs. Raises SizingError if there is no
    progress with the most CPUs, and any error of `measure`.
    """
    found = begin(cpus, threshold)
    while (at := found.following()) is not None:
        found = found.tell(at, measure(at))
    return found


def sweep(cpus: Sequence[float], rates: Sequence[float]) -> float:
    """Return the result of trying all CPUs: the least that reach 98 % of the best rate."""
    best = max(rates)
    return next(count for count, rate in zip(cpus, rates, strict=True) if rate >= SATURATED * best)


def points_most(count: int) -> int:
    """Return how many of `count` numbers of CPUs are tried at most, if rates do not fall with more CPUs."""
    return min(count, 2 + math.ceil(math.log2(count)))


def curve(found: SearchState) -> dict[float, float]:
    """Return the rate with each of the CPUs: tried, or on the straight line between tried ones; never falling.

    A job that has more CPUs can leave some idle, so a rate below one with fewer CPUs counts as that one. Below the
    least tried the rate is taken as proportional to CPUs, which does not exceed that of a job with diminishing gains.
    """
    at = sorted(found.tried)
    known = list(itertools.accumulate((found.tried[cpus] for cpus in at), max))
    return {cpus: _between([0.0, *at], [0.0, *known], cpus) for cpus in found.cpus}


def _between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    right = bisect_left(xs, x)
    if right == len(xs):
        return ys[-1]
    if xs[right] == x:
        return ys[right]
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])
