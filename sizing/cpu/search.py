"""How many CPUs a job can use, found with few of them tried: Synergy's binary search (section 3.1).

The most CPUs are tried first, then the middle of what is left: where the best that was seen is less than `threshold`
(10 %) faster, the search goes on among fewer CPUs, else among more. The comparison is with the best and not with the
point before, so losses of several halvings do not add up, and a curve that is flat for a while and rises again is
followed to where it ends: less than the best stays less than the best, however flat it is there.

**How this agrees with a full sweep**, which asks for the least CPUs that reach 98 % of the best (`matrix.SATURATED`).
On an exact curve that rises by more than the threshold with the last CPUs that count, both find the same. A measured
curve is not exact: on a plateau that is measured within 3 %, the 98 % are wherever chance has them, while the
threshold does not see the noise. What it does not see besides is the end of a rise: a loader that needs 24 CPUs is
within 10 % of its best on 22. Below its knee such a job is as fast as it has CPUs, so there is one place to look at: as
many more CPUs as it lacks speed. They are tried, and asked for where the rate grew by at least half (`WORTH`) of what
the CPUs did. With this, any curve that rises in proportion and then is flat has the sweep's demand, within one step.
On one that bends slowly (each CPU brings less than the one before, and none nothing) the search stops where the sweep
goes on: what it leaves is below the threshold, and costs more than twice its share of CPUs.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sizing.cpu.matrix import SATURATED
from sizing.errors import SizingError

THRESHOLD = 0.1
"""How much faster the best must be for more CPUs to be looked at (Synergy, section 3.1)."""

WORTH = 0.5
"""Of the growth of CPUs, the least growth of the rate for which the last of them are asked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has seen: `cpus` are all that could be tried, ascending; `tried` maps those that were to rates.

    `tried` is in the order of trying. It may be of a search that was broken off: all here holds of what there is.
    """

    cpus: tuple[float, ...]
    tried: Mapping[float, float]
    threshold: float = THRESHOLD

    @property
    def best(self) -> float:
        """The greatest rate that was seen."""
        return max(self.tried.values(), default=0.0)

    @property
    def within(self) -> float:
        """The least CPUs tried that the best is less than the threshold faster than; raises SizingError if none."""
        best = self.best
        if not best > 0:
            most = f"{max(self.tried):g} CPUs" if self.tried else "any CPUs"
            raise SizingError(f"no throughput with {most}: run the command alone and look at what it prints")
        return min(cpus for cpus, rate in self.tried.items() if rate * (1 + self.threshold) >= best)

    @property
    def demand(self) -> float:
        """The CPUs that the job can use; raises SizingError where it makes no progress at all."""
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
        """The most CPUs with which it was slower than with fewer, by more than half the threshold; None without such.

        A job can leave CPUs idle, so there is no reason to be: the first point, which has the most CPUs, may have found
        its data not in memory yet, or something else ran. Measured once more, it does not hide what CPUs bring.
        """
        for cpus in sorted(self.tried, reverse=True):
            fewer = max((rate for other, rate in self.tried.items() if other < cpus), default=0.0)
            if self.tried[cpus] * (1 + self.threshold / 2) < fewer:
                return cpus
        return None

    def following(self) -> float | None:
        """The CPUs to try next, None where enough is known."""
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

    def tell(self, cpus: float, rate: float) -> Found:
        """The same with one more point; raises ValueError where it is no rate, or of CPUs that are not to be tried."""
        if not (math.isfinite(rate) and rate >= 0) or cpus not in self.cpus:
            raise ValueError(f"{rate} with {cpus} CPUs: give a rate of 0 or more, with CPUs of {self.cpus}")
        return Found(self.cpus, {**self.tried, cpus: rate}, self.threshold)


def begin(cpus: Sequence[float], threshold: float = THRESHOLD) -> Found:
    """A search that has seen nothing yet; raises ValueError where CPUs do not ascend, or any number is not above 0."""
    if not cpus or cpus[0] <= 0 or any(a >= b for a, b in itertools.pairwise(cpus)) or not threshold > 0:
        raise ValueError("CPUs to try ascend, and are more than 0, as the threshold is")
    return Found(tuple(cpus), {}, threshold)


def search(cpus: Sequence[float], measure: Callable[[float], float], threshold: float = THRESHOLD) -> Found:
    """Try as few of the CPUs (ascending) as needed; `measure` gives a rate, and is called once at most for each.

    At most 2 + log2(len(cpus)) are tried while rates do not fall with more CPUs. Raises SizingError where there is no
    progress with the most CPUs, and what `measure` raises.
    """
    found = begin(cpus, threshold)
    while (at := found.following()) is not None:
        found = found.tell(at, measure(at))
    return found


def sweep(cpus: Sequence[float], rates: Sequence[float]) -> float:
    """What trying all of them finds: the least CPUs that reach 98 % of the best rate."""
    best = max(rates)
    return next(count for count, rate in zip(cpus, rates, strict=True) if rate >= SATURATED * best)


def points_most(count: int) -> int:
    """How many of so many CPUs are tried at most, where rates do not fall with more CPUs."""
    return min(count, 2 + math.ceil(math.log2(count)))


def curve(found: Found) -> dict[float, float]:
    """The rate with each of the CPUs: tried, or on the straight line between those that were; never falls.

    A job that has more CPUs can leave some idle, so a rate below one with fewer CPUs counts as that. Below the least
    tried it is as if in proportion to CPUs, which is no more than a job has that gains less with each.
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
