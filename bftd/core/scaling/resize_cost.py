"""The expected cost of a resize, from the stalls of earlier ones: a weighted median.

Recent stalls, those from about as many nodes and those with a checkpoint of about that size weigh more. A single odd
one among several alike moves nothing, a lasting change counts after three resizes, and the result never lies outside
the reported stalls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# One resize: the nodes before it, the bytes of the checkpoint (0 if not known), and seconds of stall.
Stall = tuple[int, float, float]

# Stalls remembered of each direction: the weight of an older one is below a tenth.
STALLS_KEPT = 8
# Weight of a stall beside that of the one after it: the newest three together outweigh all before them, two do not.
_RECENCY = 0.75
# Weight of a guess beside that of a fresh stall at the same size and checkpoint: one stall outweighs it, and it
# outweighs stalls of a checkpoint that has become many times as large since.
_GUESS = 0.5
# Relative weights closer than this are equal.
_WEIGHTLESS = 1e-9


def added(stalls: tuple[Stall, ...], stall: Stall) -> tuple[Stall, ...]:
    """Return the stalls to remember with the newest, which is the last."""
    return (*stalls, stall)[-STALLS_KEPT:]


@lru_cache(maxsize=1 << 12)
def cost_s(stalls: tuple[Stall, ...], nodes: int, state_bytes: float, guess_s: float | None = None) -> float:
    """Return the seconds that a resize from `nodes` nodes costs; the checkpoint has `state_bytes`, 0 if unknown.

    `guess_s` is worked out from other measurements; it stands beside stalls that tell little of this resize. There must
    be a stall or a guess. The result is between the least and the largest of them, and never falls if one is raised.
    """
    weighed = [
        (stall_s, _RECENCY**age * _alike(before, nodes) * _alike(size, state_bytes))
        for age, (before, size, stall_s) in enumerate(reversed(stalls))
    ]
    if guess_s is not None:
        weighed.append((guess_s, _GUESS))
    return _median(weighed)


def _alike(one: float, other: float) -> float:
    """Return 1 for equal numbers, a quarter for four times as much or as little; 1 if one is not known."""
    return min(one, other) / max(one, other) if one > 0 and other > 0 else 1.0


def _median(weighed: Sequence[tuple[float, float]]) -> float:
    """Return the least value that, with all below it, has half of the weight; the mean of two if exactly half."""
    ordered = sorted(weighed)
    half, below = sum(weight for _, weight in ordered) / 2, 0.0
    for place, (value, weight) in enumerate(ordered):
        below += weight
        if abs(below - half) <= _WEIGHTLESS * half and place + 1 < len(ordered):
            return (value + ordered[place + 1][0]) / 2
        if below > half:
            return value
    return ordered[-1][0]
