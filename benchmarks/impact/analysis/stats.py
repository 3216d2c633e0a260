"""Means and percentiles, and what streams of jobs say about a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

WANTED_S = 1.5
"""The half-width of an interval that would tell a cost of one percent from none, at the default stretch."""

SIMULATED_SPREAD = 13.0 / 147.0
"""Standard deviation of the difference of one stream, of its mean wait: `python -m benchmarks.twin`, stretch 3."""

ENOUGH = 10
"""With fewer streams their own spread says little: the real one may be several times as large."""

_Z = 1.96
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Of a 95 % interval, from one degree of freedom."""


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the values do not exceed, interpolated; None of nothing."""
    return float(np.quantile(values, share)) if len(values) else None


def of_streams(differences: Sequence[float], wait_s: float | None) -> dict[str, Any]:
    """Mean, 95 % interval and power of the differences of streams, of which each counts once; all in seconds.

    `tells_s` is the least difference that so many streams tell from chance, and `streams_needed` how many would tell
    WANTED_S, both by `spread_s`, the standard deviation of one stream's difference: that of these streams if they are
    ENOUGH, else that of the simulation at a mean wait of `wait_s`. With fewer than two streams there is no interval.
    """
    count = len(differences)
    enough = count >= ENOUGH
    spread_s = statistics.stdev(differences) if enough else SIMULATED_SPREAD * wait_s if wait_s is not None else None
    return {
        "streams": count,
        "mean_s": mean(differences),
        "interval_s": interval(differences),
        "spread_s": spread_s,
        "spread_of": "streams" if enough else "simulation",
        "tells_s": None if spread_s is None or count < 2 else _half_width_s(spread_s, count),
        "streams_needed": None if spread_s is None else math.ceil((_Z * spread_s / WANTED_S) ** 2),
    }


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean, by Student's t; None of fewer than two values."""
    if len(values) < 2:
        return None
    middle, half = statistics.mean(values), _half_width_s(statistics.stdev(values), len(values))
    return middle - half, middle + half


def _half_width_s(spread_s: float, count: int) -> float:
    degrees = count - 1
    factor = _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else _Z + 2.6 / degrees
    return factor * spread_s / math.sqrt(count)
