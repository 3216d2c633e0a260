"""Charts by pygal, stripped of what the page has already: no ids, no scripts, no styles, whole pixels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bftd.web.html import text
from bftd.web.series import Picture

_NUMBER = re.compile(r"-?\d+\.\d+")
_PLOT = re.compile(r'<g transform="translate\((\d+), (\d+)\)" class="plot">(.*?)</g><g class="titles"', re.S)
_DROPPED = re.compile(r"<title>[^<]*</title>|<rect [^>]*/>|<g class=\"series [^\"]*\" />")
# A line over a range larger than this is hard to read on a linear axis.
_LOGARITHMIC_FROM = 30.0
# pygal leaves 1/52 of its plot empty on each side of the first and the last value.
_FREE = 1 / 52
# More steps than this cannot be told apart on a phone.
_FINE = 100
# The right margin, since half of the last time label stands beyond the last value.
_RIGHT = 20


@dataclass(frozen=True, slots=True)
class DrawingSize:
    """The size of a drawing for one width of screen, in its own units; `letters` is the font size."""

    role: str
    width: int
    height: int
    letters: int
    ticks: int


LARGE = (DrawingSize("big", 1160, 300, 13, 13), DrawingSize("small", 360, 240, 12, 4))
FLAT = (DrawingSize("big", 1160, 190, 13, 13), DrawingSize("small", 360, 170, 12, 4))
SMALL = (DrawingSize("big", 640, 240, 13, 7), DrawingSize("small", 360, 200, 12, 4))


def areas(picture: Picture, sizes: Sequence[DrawingSize], about: str) -> str:
    """Draw stacked areas, one drawing for each size of screen; screen readers read `about`."""
    tops = [
        sum(values) for values in zip(*([value or 0 for value in each.values] for each in picture.series), strict=True)
    ]
    top = max(tops, default=0)
    scale = _scale(top, 3 if sizes is FLAT else 5)
    return "".join(_drawn(picture, size, about, _Axis(scale, 1.02 * top or 1.0), filled=True) for size in sizes)


def lines(
    picture: Picture, sizes: Sequence[DrawingSize], about: str, most: float | None = None, decades: bool = False
) -> str:
    """Draw lines that break at gaps; with `decades` on a logarithmic axis if the values are far apart.

    The axis ends at `most`, if given.
    """
    values = [value for each in picture.series for value in each.values if value is not None]
    low, high = min((value for value in values if value > 0), default=1.0), max(values, default=0)
    if decades and 0 not in values and high / low > _LOGARITHMIC_FROM:
        scale = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        axis = _Axis(scale, scale[-1], logarithmic=True)
    else:
        axis = _Axis(_scale(most or high), most or 1.05 * high or 1.0)
    return "".join(_drawn(picture, size, about, axis) for size in sizes)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The values with a grid line, up to `top`, where the axis ends."""

    scale: Sequence[float]
    top: float
    logarithmic: bool = False


def _drawn(picture: Picture, size: DrawingSize, about: str, axis: _Axis, filled: bool = False) -> str:
    import pygal  # slow to import, and needed only by the thread that renders pages

    kind = pygal.StackedLine if filled else pygal.Line
    if size.role == "small" and len(picture.times_s) > _FINE:
        picture = picture.coarse()
    style = pygal.style.Style(label_font_size=size.letters, major_label_font_size=size.letters)
    ticks = picture.ticks(size.ticks)
    chart: Any = kind(
        width=size.width, height=size.height, style=style, css=[], js=[], no_prefix=True, margin=4, margin_top=10,
        margin_right=_RIGHT,
        fill=filled, show_dots=False, show_legend=False, allow_interruptions=not filled, logarithmic=axis.logarithmic,
        show_minor_x_labels=False, truncate_label=-1, y_labels=[value for value in axis.scale if value <= axis.top],
        range=(axis.scale[0], axis.top),
        formatter=_figure,
    )  # fmt: skip
    # pygal identifies major labels by their text: the others have none
    chart.x_labels = [ticks.get(at, "") for at in range(len(picture.times_s))]
    chart.x_labels_major = [label for label in ticks.values() if label]
    for each in picture.series:
        chart.add(each.name, [each.values[at] for at in range(len(picture.times_s))])
    drawn = _PLOT.search(chart.render(is_unicode=True))
    if drawn is None:
        return ""
    left, top, plot = int(drawn[1]), int(drawn[2]), _DROPPED.sub("", drawn[3])
    for at, each in enumerate(picture.series):
        plot = plot.replace(f'class="series serie-{at} color-{at}"', f'class="{each.role}"', 1)
    plot = plot.replace(' class="line reactive nofill"', "").replace(' class="line reactive"', "")
    plot = plot.replace(' class=""', "").replace(' class="major"', "").replace(" always_show", "")
    plot = _NUMBER.sub(lambda found: f"{float(found[0]):.0f}", plot)
    inner = size.width - left - _RIGHT
    ends = f"{left + inner * _FREE:.0f},{left + inner * (1 - _FREE):.0f}"
    return (
        f'<svg class={size.role} viewBox="0 0 {size.width} {size.height}" role=img aria-label="{text(about)}" '
        f'data-ends="{ends}"><g class="{"areas" if filled else "lines"}" transform="translate({left},{top})">'
        f"{plot}</g></svg>"
    )


def _scale(most: float, steps: int = 5) -> list[float]:
    """Return about `steps` round values from 0 to at least `most`."""
    rough = max(most, 1e-9) / steps
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * nice for nice in (1, 2, 2.5, 5, 10) if base * nice >= rough)
    if most >= 1 and step < 1:
        step = 1.0  # there are no half nodes
    return [at * step for at in range(math.ceil(max(most, 1e-9) / step - 1e-9) + 1)]


def _figure(value: float) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,.10g}"
