"""Rounds of a measurement: their number, and the median with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

NEAR = 0.02  # the median is settled when its interval reaches no further than this to either side
MOST = 3  # limit of the rounds, in multiples of the requested ones, if the median does not settle


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % confidence interval by order statistics (Hahn and Meeker 1991).

    It holds for any distribution. Fewer than 6 samples give no such interval; it is then the least and the largest.
    """
    ordered = sorted(samples)
    count = len(ordered)
    out = 0  # the number of samples left out at each end
    ways = below = 1  # whole numbers, because from 1,024 rounds on 2**count is too large for a float
    while out + 1 < count / 2:
        ways = ways * (count - out) // (out + 1)
        if 40 * (below + ways) > 2**count:
            break
        out, below = out + 1, below + ways
    return median(ordered), ordered[out], ordered[count - 1 - out]


def settled(samples: Sequence[float]) -> bool:
    """Whether both ends of the interval are near the median."""
    value, low, high = interval(samples)
    return high - value <= NEAR * value and value - low <= NEAR * value


def repeated(one: Callable[[], tuple[float, float]], least: int) -> tuple[list[float], list[float]]:
    """Return the two times of each round: `least` rounds, and more while the first time is not settled."""
    first: list[float] = []
    second: list[float] = []
    while len(first) < least or (len(first) < MOST * least and not settled(first)):
        times = one()
        first.append(times[0])
        second.append(times[1])
    return first, second
