"""The plots, each a function that draws one thing into given axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bftd.base.format import duration
from bftd.simulation.report import style
from bftd.simulation.report.canvas import Draw
from bftd.simulation.report.model import EQUAL_SHARE, OURS, RIGID, Floats, IdleNodes, NodeUse, Replayed, TriedSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bftd.simulation.price import Tried

# Colour and dashes of each policy, so that a print in grey can be read too.
LINES = {OURS: (style.OURS, ""), EQUAL_SHARE: (style.EQUAL, "6 3"), RIGID: (style.RIGID, "2 2.5")}
# The use of the idle nodes, in the words of docs/howto/history.md.
TRAINING, HELD = style.OURS, style.START
# The parts of the outcome of dedicated nodes.
PARTS = (
    ("earned", style.OURS),
    ("resizing", style.RESIZE),
    ("preempted", style.PREEMPT),
    ("the rest", style.IDLE),
)

_DAY_S, _HOUR_S = 86400.0, 3600.0
# Ticks of a logarithmic axis of times.
_SPANS_S = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21600: "6 h", 86400: "1 d", 604800: "7 d"}


def pool(seen: IdleNodes, use: NodeUse | None) -> Draw:
    """Draw idle nodes over time as an area, in front of it those that trainers held and those on which they trained."""
    areas = [(seen.idle_nodes, style.IDLE)]
    if use is not None:
        areas += [(use.held, HELD), (use.training, TRAINING)]

    def draw(axes: Axes, narrow: bool) -> None:
        unit_s = _time_axis(axes, seen.duration_s, narrow)
        edges = seen.edges_s / unit_s
        for means, color in areas:
            axes.stairs(means, edges, fill=True, color=color.light, linewidth=0)
        _counts(axes, f"nodes, means of {duration(float(seen.edges_s[1]))}", max(float(seen.idle_nodes.max()), 1.0))

    return draw


def fragments(lengths_s: Floats) -> Draw:
    """Draw the share of the idle periods, and of the idle node time, in periods shorter than x."""
    lengths_s = np.maximum(np.sort(lengths_s), 1.0)
    steps = np.geomspace(lengths_s[0], lengths_s[-1] * 1.0001, 240)
    below = np.searchsorted(lengths_s, steps, side="left")
    time = np.concatenate([[0.0], np.cumsum(lengths_s)])

    def draw(axes: Axes, narrow: bool) -> None:
        axes.set_xscale("log")
        axes.plot(steps, below / len(lengths_s), color=style.OURS.light)
        axes.plot(steps, time[below] / time[-1], color=style.EQUAL.light, dashes=(3, 1.5))
        inside = [at_s for at_s in _SPANS_S if steps[0] <= at_s <= steps[-1] * 1.3]
        axes.set_xticks(inside, [_SPANS_S[at_s] for at_s in inside])
        axes.minorticks_off()
        axes.set_xlabel("length of the idle period")
        _shares(axes, "shorter than this", 0.0, 1.0)

    return draw


def efficiency(replays: Sequence[Replayed], duration_s: float) -> Draw:
    """Draw U for every six hours, one line per policy."""

    def draw(axes: Axes, narrow: bool) -> None:
        unit_s = _time_axis(axes, duration_s, narrow)
        most = 1.0
        for replayed in reversed(replays):
            color, dashes = LINES[replayed.policy]
            starts = [row["start_s"] for row in replayed.series]
            values = [row["efficiency"] if row["node_hours"] > 0 else math.nan for row in replayed.series]
            edges = np.array([*starts, duration_s]) / unit_s
            axes.stairs(values, edges, baseline=None, color=color.light, linewidth=2, linestyle=_pattern(dashes))
            most = max([most, *(value for value in values if value == value)])
        _shares(axes, "efficiency U", 0.0, most)

    return draw


def t_fwd(times: Sequence[float], values: Sequence[float], title: str, used_s: float) -> Draw:
    """Draw U or the recovered share against t_fwd, with the value that the page uses marked."""

    def draw(axes: Axes, narrow: bool) -> None:
        axes.set_xscale("log")
        axes.plot(times, values, color=style.OURS.light, marker="o", markersize=5)
        here = [(time_s, value) for time_s, value in zip(times, values, strict=True) if time_s == used_s]
        _ring(axes, here)
        axes.set_xticks(times, [f"{time_s:g}" for time_s in times])
        axes.minorticks_off()
        axes.margins(x=0.08)
        axes.set_xlabel("t_fwd, s")
        _zoomed(axes, title, values)

    return draw


def costs(rows: Sequence[tuple[str, Sequence[float]]]) -> Draw:
    """Draw bars of 100 % each; rows are (name, shares in the order of PARTS)."""

    def draw(axes: Axes, narrow: bool) -> None:
        for place, (_, shares) in enumerate(rows):
            at = 0.0
            for (_, color), share in zip(PARTS, shares, strict=True):
                axes.barh(place, share, 0.62, left=at, color=color.light, edgecolor=style.PAPER.light, linewidth=1)
                at += share
            if shares[0] > 0.12:
                axes.text(0.015, place, f"{shares[0]:.0%}", color=style.PAPER.light, va="center", weight="bold")
        axes.set_yticks(range(len(rows)), [_broken(name) if narrow else name for name, _ in rows])
        axes.tick_params(axis="y", labelcolor=style.INK.light)
        axes.invert_yaxis()
        axes.grid(False)
        ticks = [0, 0.25, 0.5, 0.75, 1.0]
        axes.set_xticks(ticks, [f"{tick:.0%}" for tick in ticks])
        axes.set_xlim(0, max(1.0, *(sum(shares) for _, shares in rows)))
        axes.set_xlabel("of what dedicated nodes would earn")

    return draw


def pareto(points: Sequence[TriedSettings], front: Sequence[TriedSettings], used: Sequence[TriedSettings]) -> Draw:
    """Draw recovered share against mean run time: all points, and a line through the best ones with their pj_max."""

    def draw(axes: Axes, narrow: bool) -> None:
        hours, values = _placed(points)
        axes.plot(hours, values, "o", color=style.RIGID.light, markersize=5)
        best_hours, best_values = _placed(front)
        axes.plot(best_hours, best_values, color=style.OURS.light, marker="o", markersize=6)
        for point, x, y in _labelled(front, best_hours, best_values):
            axes.annotate(f"{point.pj_max}", (x, y), (-5, 5), textcoords="offset points", ha="right", va="bottom")
        _ring(axes, list(zip(*_placed(used), strict=True)))
        axes.set_xlabel("mean run time of a trainer, h")
        axes.margins(x=0.08)
        _zoomed(axes, "idle node-hours recovered", values, 0.15)

    return draw


def price(names: Sequence[str], tried: Sequence[Tried], training: float | None) -> Draw:
    """Draw for each setting the node-hours harvested a week, of which a part is `training`, and the price beside it."""

    def draw(axes: Axes, narrow: bool) -> None:
        figure = axes.figure
        axes.remove()
        harvested, paid = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=not narrow)
        rows = range(len(tried))
        hours = [one.node_hours_per_week for one in tried]
        harvested.barh(rows, hours, 0.6, color=HELD.light)
        if training is not None:
            harvested.barh(rows, [training * one for one in hours], 0.6, color=TRAINING.light)
        harvested.set_title("node-hours a week" + ("" if training is None else ", training in blue"), loc="left")
        of_s = max(tried[0].wait.of_s, 1e-9)
        null = 100.0 * tried[0].wait.null_s / of_s
        paid.axvspan(-null, null, color=style.IDLE.light, linewidth=0)
        for row, one in zip(rows, tried, strict=True):
            low, mean, high = (100.0 * value / of_s for value in (one.wait.low_s, one.wait.mean_s, one.wait.high_s))
            paid.plot([low, high], [row, row], color=style.EQUAL.light)
            paid.plot([mean], [row], "o", color=style.EQUAL.light, markersize=7)
        paid.set_title("jobs wait longer by, %", loc="left")
        for each in (harvested, paid):
            each.set_yticks(rows, names)
            each.tick_params(axis="y", labelcolor=style.INK.light)
            each.grid(False)
            each.locator_params(axis="x", nbins=4)
            each.set_ylim(len(tried) - 0.5, -0.5)
        if not narrow:
            paid.tick_params(axis="y", labelleft=False)

    return draw


def _labelled(
    front: Sequence[TriedSettings], hours: Sequence[float], values: Sequence[float]
) -> list[tuple[TriedSettings, float, float]]:
    """Return the highest point of each pj_max."""
    best: dict[int, tuple[TriedSettings, float, float]] = {}
    for point, x, y in zip(front, hours, values, strict=True):
        if point.pj_max not in best or y > best[point.pj_max][2]:
            best[point.pj_max] = (point, x, y)
    return list(best.values())


def _placed(points: Sequence[TriedSettings]) -> tuple[list[float], list[float]]:
    known = [
        (point.mean_runtime_s / _HOUR_S, point.efficiency)
        for point in points
        if point.mean_runtime_s is not None and point.efficiency is not None
    ]
    return [x for x, _ in known], [y for _, y in known]


def _ring(axes: Axes, at: Sequence[tuple[float, float]]) -> None:
    """Mark points without hiding them."""
    if at:
        axes.plot(*zip(*at, strict=True), "o", markersize=12, color="none", markeredgecolor=style.INK.light)


def _time_axis(axes: Axes, duration_s: float, narrow: bool) -> float:
    """Set up an axis of days or hours since the start; returns the seconds of the unit."""
    from matplotlib.ticker import MaxNLocator

    unit_s, name = (_DAY_S, "days") if duration_s >= 2 * _DAY_S else (_HOUR_S, "hours")
    axes.set_xlim(0, duration_s / unit_s)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5 if narrow else 8, steps=[1, 2, 5, 10]))
    axes.set_xlabel(f"{name} since the start")
    return unit_s


def _counts(axes: Axes, title: str, most: float) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_ylim(0, most * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(title, loc="left")


def _shares(axes: Axes, title: str, least: float, most: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    margin = 0.02 * (most - least)
    axes.set_ylim(least, most + margin)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))
    axes.set_title(title, loc="left")


def _zoomed(axes: Axes, title: str, values: Sequence[float], margin: float = 0.1) -> None:
    """Set up an axis of shares around the values, at least five points high, so that nearly flat curves look flat."""
    low, high = min(values), max(values)
    middle, half = (low + high) / 2, max((high - low) * (0.5 + margin), 0.025)
    _shares(axes, title, max(0.0, middle - half), middle + half)


def _pattern(dashes: str) -> str | tuple[float, tuple[float, ...]]:
    """Return matplotlib's dashes for an SVG line of twice the width."""
    return (0.0, tuple(float(part) / 2 for part in dashes.split())) if dashes else "solid"


def _broken(name: str) -> str:
    """Break a label into two lines, for little space beside the plot."""
    first, _, rest = name.partition(" ")
    return f"{first}\n{rest}" if rest else first
