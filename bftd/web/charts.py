"""Charts as SVG: what is counted or averaged over a step of time is drawn as a step, and a gap is a gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bftd.web.html import text
from bftd.web.series import Picture

# Values that lie further apart than this are hard to read on a linear axis.
_LOGARITHMIC_FROM = 30.0
# Space around the plot. Half of the last time label stands beyond the last value.
_TOP, _RIGHT = 10, 22
# Values beyond an axis by this part of a step still end there: they are rounded.
_EXACT = 0.01
# Width of a character, in parts of the font size.
_CHARACTER = 0.62


@dataclass(frozen=True, slots=True)
class DrawingSize:
    """The size of a drawing for one width of screen, in its own units.

    `letters` is the largest font size that the style sheet gives it.
    """

    role: str
    width: int
    height: int
    letters: int
    ticks: int


LARGE = (DrawingSize("big", 1160, 300, 17, 13), DrawingSize("small", 360, 240, 12, 5))
FLAT = (DrawingSize("big", 1160, 200, 17, 13), DrawingSize("small", 360, 180, 12, 5))
SMALL = (DrawingSize("big", 640, 240, 13, 7), DrawingSize("small", 360, 200, 12, 5))


def areas(picture: Picture, sizes: Sequence[DrawingSize], about: str) -> str:
    """Draw numbers of nodes as areas upon each other, one drawing for each size of screen.

    Screen readers read `about`.
    """
    heights = zip(*(each.values for each in picture.series), strict=True)
    axis = _linear(max((sum(value or 0 for value in values) for values in heights), default=0), whole=True)
    return "".join(_drawing(picture, size, about, axis, "areas", _stacked) for size in sizes)


def lines(
    picture: Picture, sizes: Sequence[DrawingSize], about: str, *, whole: bool = False, decades: bool = False
) -> str:
    """Draw lines that break at gaps; `whole` says that the values are counts.

    With `decades` the axis is logarithmic if the values are far apart.
    """
    values = [value for each in picture.series for value in each.values if value is not None]
    low, high = min((value for value in values if value > 0), default=1.0), max(values, default=0)
    if decades and 0 not in values and high / low > _LOGARITHMIC_FROM:
        axis = _Axis([10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)])
    else:
        axis = _linear(high, whole)
    return "".join(_drawing(picture, size, about, axis, "lines", _lined) for size in sizes)


def shares(picture: Picture, sizes: Sequence[DrawingSize], about: str) -> str:
    """Draw parts of a whole in percent, each series before the ones it is part of."""
    axis = _Axis([0.0, 25.0, 50.0, 75.0, 100.0])
    return "".join(_drawing(picture, size, about, axis, "areas", _overlaid) for size in sizes)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The values with a grid line: the axis begins at the first and ends at the last. It is logarithmic without a 0."""

    scale: Sequence[float]

    def part(self, value: float) -> float:
        """Return where on the axis a value lies: 0 at its begin, 1 at its end."""
        if self.scale[0] > 0:
            low, high, value = (math.log10(each) for each in (self.scale[0], self.scale[-1], value))
        else:
            low, high = self.scale[0], self.scale[-1]
        return (value - low) / (high - low)


_Paths = Callable[[Picture, Sequence[int], Callable[[float], int]], list[tuple[str, str]]]


def _drawing(picture: Picture, size: DrawingSize, about: str, axis: _Axis, kind: str, paths: _Paths) -> str:
    labels = [_figure(value) for value in axis.scale]
    left = round(_CHARACTER * size.letters * max(map(len, labels))) + 10
    bottom = size.height - 2 * size.letters
    width, height = size.width - left - _RIGHT, bottom - _TOP

    def x(at_s: float) -> float:
        return left + width * (at_s - picture.since_s) / (picture.until_s - picture.since_s)

    def y(value: float) -> int:
        return round(bottom - height * axis.part(value))

    grid = "".join(
        f'<path d="M{left},{y(value)}h{width}"/><text x={left - 6} y={y(value) + size.letters // 3}>{label}</text>'
        for value, label in zip(axis.scale, labels, strict=True)
    )
    ticks = [(round(x(at_s)), label) for at_s, label in picture.ticks(size.ticks)]
    times = "".join(
        f'<path d="M{at},{bottom}v4"/><text x={at} y={bottom + size.letters + 5}>{label}</text>' for at, label in ticks
    )
    edges = [round(x(at_s)) for at_s in picture.starts_s] + [size.width - _RIGHT]
    drawn = "".join(f'<path class={role} d="{path}"/>' for role, path in paths(picture, edges, y))
    step = x(picture.since_s + picture.step_s) - left
    return (
        f'<svg class={size.role} viewBox="0 0 {size.width} {size.height}" role=img aria-label="{text(about)}" '
        f'data-steps="{left},{step:.3f},{bottom}"><g class="axis y">{grid}</g><g class={kind}>{drawn}</g>'
        f'<g class="axis x">{times}</g></svg>'
    )


def _stacked(picture: Picture, edges: Sequence[int], y: Callable[[float], int]) -> list[tuple[str, str]]:
    """Return each series as an area upon those before it."""
    base = [0.0] * (len(edges) - 1)
    found = []
    for each in picture.series:
        top = [low + (value or 0) for low, value in zip(base, each.values, strict=True)]
        found.append((each.role, _area([y(value) for value in base], [y(value) for value in top], edges)))
        base = top
    return [(role, path) for role, path in found if path]


def _overlaid(picture: Picture, edges: Sequence[int], y: Callable[[float], int]) -> list[tuple[str, str]]:
    """Return each series as an area from 0 on."""
    base = [y(0)] * (len(edges) - 1)
    return [(each.role, _area(base, [y(value or 0) for value in each.values], edges)) for each in picture.series]


def _area(low: Sequence[int], high: Sequence[int], edges: Sequence[int]) -> str:
    """Return the outline of an area between two stepped edges; it has a part for each time in which it has a height."""
    path = ""
    for begin, end in _runs([one != other for one, other in zip(low, high, strict=True)]):
        there, back = _steps(high, edges, range(begin, end)), _steps(low, edges, range(end - 1, begin - 1, -1))
        path += f"M{there}L{back}z"
    return path


def _lined(picture: Picture, edges: Sequence[int], y: Callable[[float], int]) -> list[tuple[str, str]]:
    """Return each series as a line with a step wherever its value changes."""
    found = []
    for each in picture.series:
        heights = [0 if value is None else y(value) for value in each.values]
        runs = _runs([value is not None for value in each.values])
        found.append((each.role, "".join(f"M{_steps(heights, edges, range(*run))}" for run in runs)))
    return found


def _runs(known: Sequence[bool]) -> list[tuple[int, int]]:
    """Return begin and end of each run of true values."""
    changes = [at for at in range(len(known) + 1) if (at and known[at - 1]) != (at < len(known) and known[at])]
    return list(zip(changes[::2], changes[1::2], strict=True))


def _steps(heights: Sequence[int], edges: Sequence[int], run: range) -> str:
    """Return the corners of a stepped edge in the order of `run`; a level part has none within."""
    from_, to = (0, 1) if run.step > 0 else (1, 0)
    path = f"{edges[run[0] + from_]},{heights[run[0]]}"
    for before, at in pairwise(run):
        if heights[at] != heights[before]:
            path += f"H{edges[at + from_]}V{heights[at]}"
    return f"{path}H{edges[run[-1] + to]}"


def _linear(most: float, whole: bool) -> _Axis:
    """Return an axis from 0 to at least `most` with about five round steps, of `whole` numbers if so."""
    rough = (most if most > 1e-9 else 1.0) / (5 + _EXACT)
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * nice for nice in (1, 2, 2.5, 5, 10) if base * nice >= rough)
    if whole:
        step = float(math.ceil(step))
    return _Axis([at * step for at in range(max(1, math.ceil(most / step - _EXACT)) + 1)])


def _figure(value: float) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,.10g}"
