"""What a resize will cost, from the stalls of earlier ones: a weighted median.

Recent stalls, those from about as many nodes and those with a state of about the same size weigh more. A single odd one
among several alike moves nothing, a lasting change counts after three resizes, and of what is told no value outside
the stalls comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# One resize: the nodes before it, the bytes of the state (0 where that is not known), and seconds of stall.
Stall = tuple[int, float, float]

# Stalls remembered of each direction: the weight of an older one is below a tenth.
STALLS_KEPT = 8
# Weight of a stall beside that of the one after it: the newest three together outweigh all before them, two do not.
_RECENCY = 0.75
# Weight of a guess beside that of a fresh stall at the same size and state: one stall outweighs it, and it outweighs
# those of a state that has become many times as large since.
_GUESS = 0.5
# What cannot be told apart: a stall of no time is no surprise.
_WEIGHTLESS = 1e-9


def added(stalls: tuple[Stall, ...], stall: Stall) -> tuple[Stall, ...]:
    """The stalls to remember with the newest, which is the last."""
    return (*stalls, stall)[-STALLS_KEPT:]


@lru_cache(maxsize=1 << 12)
def cost_s(stalls: tuple[Stall, ...], nodes: int, state_bytes: float, guess_s: float | None = None) -> float:
    """Seconds that a resize from `nodes` nodes will cost a trainer whose state has `state_bytes`, 0 where unknown.

    `guess_s` is what was worked out of other measures; it stands beside stalls that tell little of this. There must be
    a stall or a guess. The result is between the least and the largest of them, and never falls where one is raised.
    """
    weighed = [
        (stall_s, _RECENCY**age * _alike(before, nodes) * _alike(size, state_bytes))
        for age, (before, size, stall_s) in enumerate(reversed(stalls))
    ]
    if guess_s is not None:
        weighed.append((guess_s, _GUESS))
    return _median(weighed)


def _alike(one: float, other: float) -> float:
    """1 for the same, a quarter for four times as much or as little; 1 where one is not known."""
    return min(one, other) / max(one, other) if one > 0 and other > 0 else 1.0


def _median(weighed: Sequence[tuple[float, float]]) -> float:
    """The least value that, with all below it, has half of the weight; between two where it is exactly half."""
    ordered = sorted(weighed)
    half, below = sum(weight for _, weight in ordered) / 2, 0.0
    for place, (value, weight) in enumerate(ordered):
        below += weight
        if abs(below - half) <= _WEIGHTLESS * half and place + 1 < len(ordered):
            return (value + ordered[place + 1][0]) / 2
        if below > half:
            return value
    return ordered[-1][0]
