"""Throughput from a command's progress: without the warm-up, as a median with an interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_BLOCKS = 10
_SETTLED = 0.1
"""A block at the beginning that is off by more than this share of the later half's median belongs to the warm-up."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One sign of progress: the steps or samples done by then, or a rate that the command printed."""

    at_s: float
    value: float


class Count:
    """A count that a command prints, which may begin again at each epoch, and that several ranks may print."""

    def __init__(self) -> None:
        self._epochs = 0.0
        self._last = -1.0

    def total(self, value: float) -> float | None:
        """Return the count from the very beginning; None for a line with nothing new.

        Half as much or less is another epoch; somewhat less is the line of a slower rank.
        """
        if value <= self._last:
            if value * 2 > self._last or value == self._last:
                return None
            self._epochs += self._last
        self._last = value
        return self._epochs + value


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady part of a series: the rates of its blocks, the count in it, and its seconds."""

    blocks: tuple[float, ...]
    counted: float
    seconds: float


def steady(seen: Sequence[Seen], warmup_s: float, *, printed: bool = False) -> Steady | None:
    """Return the steady part of a series after `warmup_s` from its first entry; None while there is none.

    Entries are cut into blocks of about equal time, each from entry to entry; blocks at the beginning that differ from
    the later half still belong to the warm-up (prefetched batches make the first steps too fast, compilers and caches
    too slow). With `printed` the values are rates themselves.
    """
    if len(seen) < 2:
        return None
    begin = next((i for i, each in enumerate(seen) if each.at_s >= seen[0].at_s + warmup_s), None)
    if begin is None:
        return None
    kept = seen[begin:]
    cuts = _cuts(kept)
    if len(cuts) < 2:
        return None
    rates = [_rate(kept[a : b + 1], printed=printed) for a, b in itertools.pairwise(cuts)]
    first = _settled(rates)
    last, start = kept[cuts[-1]], kept[cuts[first]]
    counted = float(cuts[-1] - cuts[first]) if printed else last.value - start.value
    return Steady(tuple(rates[first:]), counted, last.at_s - start.at_s)


def interval(blocks: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of blocks, with its 95 % interval by order statistics; below six blocks the interval is all."""
    ordered = sorted(blocks)
    count = len(ordered)
    skip = -1
    covered = 1.0
    while covered >= 0.95 and skip < (count - 1) // 2:  # the next block from both ends may be left out
        skip += 1
        covered -= 2 * math.comb(count, skip) / 2**count
    skip = max(0, skip - 1)
    return median(ordered), ordered[skip], ordered[count - 1 - skip]


def _cuts(kept: Sequence[Seen]) -> list[int]:
    """Return where blocks of about equal time begin and the last ends: at most _BLOCKS of one entry or more."""
    total_s = kept[-1].at_s - kept[0].at_s
    if total_s <= 0:
        return [0]
    cuts = [0]
    for i, each in enumerate(kept):
        if each.at_s - kept[0].at_s >= len(cuts) * total_s / _BLOCKS - 1e-9 and each.at_s > kept[cuts[-1]].at_s:
            cuts.append(i)
    return cuts


def _rate(part: Sequence[Seen], *, printed: bool) -> float:
    if printed:
        return median(each.value for each in part[1:])
    return (part[-1].value - part[0].value) / (part[-1].at_s - part[0].at_s)


def _settled(rates: Sequence[float]) -> int:
    """Return how many blocks at the beginning still belong to the warm-up; at most half."""
    usual = median(rates[len(rates) // 2 :])
    first = 0
    while first < len(rates) // 2 and abs(rates[first] - usual) > _SETTLED * usual:
        first += 1
    return first
