"""Rounds of a measurement: how many it takes, and the median with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

NEAR = 0.02  # a median is known well enough when its interval reaches no further than this to either side
MOST = 3  # times the rounds that were asked for, where it does not become so


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % confidence interval by order statistics, of any distribution (Hahn and Meeker 1991).

    Below 6 samples no two of them are that far apart for sure: the least and the largest.
    """
    ordered = sorted(samples)
    count = len(ordered)
    out = 0  # so many from each end are left out
    ways = below = 1  # whole numbers: of 1,024 rounds 2**count is no float any more
    while out + 1 < count / 2:
        ways = ways * (count - out) // (out + 1)
        if 40 * (below + ways) > 2**count:
            break
        out, below = out + 1, below + ways
    return median(ordered), ordered[out], ordered[count - 1 - out]


def settled(samples: Sequence[float]) -> bool:
    """Whether the interval is near the median on both sides."""
    value, low, high = interval(samples)
    return high - value <= NEAR * value and value - low <= NEAR * value


def repeated(one: Callable[[], tuple[float, float]], least: int) -> tuple[list[float], list[float]]:
    """The two times of each round: `least` rounds, and more while the first of them is not settled."""
    first: list[float] = []
    second: list[float] = []
    while len(first) < least or (len(first) < MOST * least and not settled(first)):
        times = one()
        first.append(times[0])
        second.append(times[1])
    return first, second
