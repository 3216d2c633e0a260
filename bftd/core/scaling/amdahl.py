"""The scaling of a trainer at sizes where it was not seen: Amdahl's law with an unknown serial part.

Each of a few serial parts has a probability, given the rates seen and, before that, how trainers here scaled. The
expected speed-up is the mean over them: concave from the first size on, and surer with each size that was seen. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from milp import Points

# Serial parts of a step on one node. They are closer where a little matters more: on 64 nodes 0.2 % costs an eighth.
SERIAL = (0.0, 0.002, 0.005, 0.01, 0.02, 0.035, 0.06, 0.1, 0.15, 0.22, 0.3, 0.4, 0.5, 0.7)
# The probability of each serial part; () before anything is known: all equal.
Weights = tuple[float, ...]
# The deviation of a rate seen from the law, as a standard deviation of its logarithm: noise, and no network follows the
# law to the letter (those of the paper's Table 2 are within 2 to 7 % of the nearest).
ERROR = 0.03
# Two sizes tell of a shape when one is this multiple of the other: between closer ones an error is as large as a gain.
APART = 1.5
# About this many of a site's last trainers are remembered. The even prior before them counts like ASSUMED trainers.
REMEMBERED = 30.0
ASSUMED = 2.0

_EVEN: Weights = (1.0 / len(SERIAL),) * len(SERIAL)


def speed_up(serial: float, nodes: float) -> float:
    """Return the speed of `nodes` nodes relative to one."""
    return nodes / (serial * (nodes - 1.0) + 1.0) if nodes > 0 else 0.0


@lru_cache(maxsize=1 << 10)
def likely(seen: Points, prior: Weights) -> Weights:
    """Return the serial parts' probabilities (sum 1) once rates were seen at (nodes, samples/s), increasing."""
    before = prior or _EVEN
    points = [(nodes, math.log(rate)) for nodes, rate in seen if nodes > 0 and rate > 0]
    if len(points) < 2:
        return before
    misses = []
    for serial in SERIAL:
        ratios = [log - math.log(speed_up(serial, nodes)) for nodes, log in points]
        mean = sum(ratios) / len(ratios)
        misses.append(sum((ratio - mean) ** 2 for ratio in ratios))
    least = min(misses)  # if none comes near, the nearest one counts
    weights = [
        weight * math.exp((least - miss) / (2.0 * ERROR**2)) for weight, miss in zip(before, misses, strict=True)
    ]
    total = sum(weights)
    return tuple(weight / total for weight in weights) if total > 0 else before


@lru_cache(maxsize=1 << 14)
def expected(weights: Weights, nodes: int) -> float:
    """Return the expected speed of `nodes` nodes relative to one."""
    ups = (speed_up(serial, nodes) for serial in SERIAL)
    return math.fsum(weight * up for weight, up in zip(weights, ups, strict=True))


def apart(one: int, other: int) -> bool:
    """Whether rates at these two sizes tell of a shape."""
    return max(one, other) >= APART * min(one, other)


def is_informative(seen: Points) -> bool:
    """Whether rates were seen at sizes that are far enough apart to tell of a shape."""
    return len(seen) > 1 and apart(seen[0][0], seen[-1][0])


def prior(history: Weights) -> Weights:
    """Return the prior of a new trainer at a site where earlier ones add up to `history`."""
    if not history:
        return ()
    weights = [ASSUMED / len(SERIAL) + weight for weight in history]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def remembered(history: Weights, seen: Sequence[Points]) -> Weights:
    """Return the history with one more trainer, by its rates seen on each class of nodes."""
    informative = [points for points in seen if is_informative(points)]
    if not informative:
        return history
    before, found = history or (0.0,) * len(SERIAL), likely(max(informative, key=len), ())
    return tuple((1.0 - 1.0 / REMEMBERED) * old + new for old, new in zip(before, found, strict=True))
