"""Means, percentiles and seeded bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_RESAMPLES = 4000
_SEED = 20260101


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the values do not exceed, interpolated; None of nothing."""
    return float(np.quantile(values, share)) if len(values) else None


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the mean; None below two values."""
    if len(values) < 2:
        return None
    rng = np.random.default_rng(_SEED)
    sample = np.asarray(values, dtype=float)
    means = sample[rng.integers(0, len(sample), (_RESAMPLES, len(sample)))].mean(axis=1)
    return _interval(means)


def difference_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of mean(b) - mean(a), of two groups that share no members."""
    if len(a) < 2 or len(b) < 2:
        return None
    rng = np.random.default_rng(_SEED)
    means = [
        np.asarray(group, dtype=float)[rng.integers(0, len(group), (_RESAMPLES, len(group)))].mean(axis=1)
        for group in (a, b)
    ]
    return _interval(means[1] - means[0])


def pair_mean_interval(pairs: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Where the mean difference of *one* pair of runs lies in 95 of 100 cases, in both directions.

    `pairs` holds the differences of each pair, job by job. A pair is drawn, its sign is drawn (which of two like runs
    comes first means nothing), and its jobs are drawn with replacement.
    """
    pairs = [pair for pair in pairs if len(pair)]
    if not pairs:
        return None
    rng = np.random.default_rng(_SEED)
    means = np.empty(_RESAMPLES)
    for number in range(_RESAMPLES):
        pair = np.asarray(pairs[rng.integers(len(pairs))], dtype=float)
        means[number] = rng.choice((-1.0, 1.0)) * pair[rng.integers(0, len(pair), len(pair))].mean()
    return _interval(means)


def _interval(means: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
