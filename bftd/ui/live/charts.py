"""Charts made of characters: the division of nodes, a trainer's curve and its sizes; pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from bftd.base import format
from bftd.ui.live.glyphs import Glyphs

Points = Sequence[tuple[int, float]]
# Curves of more nodes than this have a logarithmic axis, half of which is for the first few nodes.
_LINEAR_MOST = 16


def parts(counts: Mapping[str, int], width: int) -> list[tuple[str, int]]:
    """Divide `width` characters among the states; a state with nodes gets at least one, if there are enough."""
    there = {state: count for state, count in counts.items() if count > 0}
    total = sum(there.values())
    if not there or width < len(there):
        return []
    shares = {state: max(1, int(width * count / total)) for state, count in there.items()}
    while sum(shares.values()) > width:
        shares[max(shares, key=lambda state: shares[state])] -= 1
    rests = sorted(there, key=lambda state: shares[state] - width * there[state] / total)
    for at in range(width - sum(shares.values())):
        shares[rests[at % len(rests)]] += 1
    return list(shares.items())


def spark(sizes: Sequence[tuple[float, float]], since_s: float, until_s: float, width: int, glyphs: Glyphs) -> str:
    """Draw sizes over time in one line: a column shows the mean of its time, or a blank without data.

    `sizes` are (unix seconds, size); the tallest character is the largest size.
    """
    if width <= 0 or until_s <= since_s:
        return ""
    columns: list[list[float]] = [[] for _ in range(width)]
    for at_s, size in sizes:
        if since_s <= at_s <= until_s:
            columns[min(width - 1, int((at_s - since_s) / (until_s - since_s) * width))].append(size)
    means = [sum(column) / len(column) if column else None for column in columns]
    # between two points of a history coarser than the columns, the size stays as before
    gap = max(1, math.ceil(width * 90.0 / (until_s - since_s)))
    held, age = None, 0
    for at, mean in enumerate(means):
        held, age = (mean, 0) if mean is not None else (held, age + 1)
        means[at] = held if age <= gap else None
    most = max((mean for mean in means if mean is not None), default=0.0)
    return "".join(" " if mean is None else _level(mean, most, glyphs.levels) for mean in means)


def _level(value: float, most: float, levels: str) -> str:
    if value <= 0 or most <= 0:
        return levels[0]
    return levels[min(len(levels) - 1, max(1, math.ceil(value / most * (len(levels) - 1))))]


def curve(
    estimate: Points, measured: Points, now: int, size: tuple[int, int], glyphs: Glyphs, high: int = 0
) -> list[str]:
    """Draw samples/s against nodes in `size` characters (width, height): estimated, measured, and at present.

    The last two lines are the axis and its numbers. Returns [] if nothing is known or it does not fit.
    """
    width, height = size
    known = [(nodes, rate) for nodes, rate in (*estimate, *measured) if nodes > 0 and math.isfinite(rate)]
    if not known or height < 4 or width < 20:
        return []
    last = max(high, now, *(nodes for nodes, _ in known))
    most = max(rate for _, rate in known) or 1.0
    label = format.rate(most)
    left = len(label) + 1
    wide, tall = width - left, height - 2
    grid = [[" "] * wide for _ in range(tall)]

    def column(nodes: float) -> int:
        if last <= 1:
            return wide // 2
        share = (nodes - 1) / (last - 1) if last <= _LINEAR_MOST else math.log(max(1.0, nodes)) / math.log(last)
        return min(wide - 1, max(0, round(share * (wide - 1))))

    def row(rate: float) -> int:
        return min(tall - 1, max(0, tall - 1 - round(max(0.0, rate) / most * (tall - 1))))

    if now > 0:
        for line in grid:
            line[column(now)] = glyphs.here
    for at, rate in _between(estimate, column):
        grid[row(rate)][at] = glyphs.estimate
    for nodes, rate in measured:
        if nodes > 0 and math.isfinite(rate):
            grid[row(rate)][column(nodes)] = glyphs.current if nodes == now else glyphs.measured
    lines = [f"{label if at == 0 else '':>{left - 1}}{glyphs.up}{''.join(line)}" for at, line in enumerate(grid)]
    axis = f"{'0':>{left - 1}}{glyphs.corner}{glyphs.across * wide}"
    return [*lines, axis, " " * left + _ticks({1: column(1), last: column(last), now: column(now or 1)}, now, wide)]


def _between(points: Points, column: Callable[[float], int]) -> Iterable[tuple[int, float]]:
    """Yield a rate for each column from the first to the last point, interpolated linearly in nodes."""
    ordered = sorted((nodes, rate) for nodes, rate in points if nodes > 0 and math.isfinite(rate))
    for (one, low), (other, high) in itertools.pairwise(ordered):
        first, last = column(one), column(other)
        for at in range(first, last + 1):
            share = (at - first) / (last - first) if last > first else 0.0
            yield at, low + (high - low) * share
    if len(ordered) == 1:
        yield column(ordered[0][0]), ordered[0][1]


def _ticks(places: Mapping[int, int], now: int, width: int) -> str:
    """Return the numbers below an axis: the present size first, then the ends if they do not overlap it."""
    line = [" "] * width
    for nodes in sorted(places, key=lambda nodes: nodes != now):
        if nodes <= 0:
            continue
        text = f"{nodes}"
        start = min(width - len(text), max(0, places[nodes] - len(text) // 2))
        around = line[max(0, start - 1) : start + len(text) + 1]
        if not "".join(around).strip():
            line[start : start + len(text)] = text
    return "".join(line).rstrip()
