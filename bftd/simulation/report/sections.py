"""The sections of one site: a heading, a plot, its description in words, and its figures in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from xml.etree.ElementTree import Element

import numpy as np

from bftd.base.format import counted, decimal, duration, listed, percent
from bftd.simulation.report import canvas, plots, price, style
from bftd.simulation.report.html import Content, add, shown, table, tag
from bftd.simulation.report.model import EQUAL_SHARE, OURS, RIGID, Case, Replayed, TriedSettings

Section = list[Element]

# The lengths in the table of idle periods.
_LENGTHS_S = (60.0, 300.0, 600.0, 1800.0, 3600.0, 6 * 3600.0, 86400.0)
_SHORT_S = 600.0
_ZOOMED = "The vertical axis does not start at 0."
# Longer tables are folded.
_FOLDED_ROWS = 8


def sections(case: Case, prefix: str) -> list[tuple[str, str, Section]]:
    """Return (id, heading, content) of all sections that a case has data for; ids begin with `prefix`."""
    makers: Sequence[tuple[str, str, Callable[[Case, str], Section]]] = (
        ("price", "What regular jobs pay", price.section),
        ("pool", "Idle nodes", _pool),
        ("fragments", "How long a node stays idle", _fragments),
        ("efficiency", "What is made of them", _efficiency),
        ("costs", "Where the rest goes", _costs),
        ("t-fwd", "How far to look ahead", _t_fwd),
        ("pareto", "Throughput or run time", _pareto),
    )
    made = [(prefix + key, heading, make(case, prefix + key)) for key, heading, make in makers]
    return [(key, heading, content) for key, heading, content in made if content]


def policy_name(replayed: Replayed) -> str:
    """Return the reader's name of a policy."""
    return {OURS: "bftd", EQUAL_SHARE: "equal share", RIGID: "rigid jobs"}[replayed.policy]


def compared(case: Case) -> list[Replayed]:
    """Return the main replay, and those of the other policies with the same settings."""
    if case.main is None:
        return []
    others = (case.compared(policy) for policy in (EQUAL_SHARE, RIGID))
    return [case.main, *(each for each in others if each is not None)]


def _pool(case: Case, name: str) -> Section:
    pool, main = case.pool, case.main
    if pool is None:
        return []
    mean = float(pool.idle_nodes @ np.diff(pool.edges_s)) / pool.duration_s
    words = (
        f"{pool.least:,} to {pool.most:,} of {pool.nodes:,} nodes were idle at once, {decimal(mean)} on average "
        f"({percent(mean / pool.nodes, 1)}): {decimal(mean * pool.duration_s / 3600)} node-hours in "
        f"{duration(pool.duration_s)}. The set of idle nodes changed {decimal(pool.events_per_h)} times an hour."
    )
    use = main.use if main is not None else None
    key = [_swatch("idle nodes", style.IDLE, area=True)]
    if main is not None and use is not None:
        key = [_swatch("training", plots.TRAINING, area=True), _swatch("held, not training", plots.HELD, area=True)]
        key.append(_swatch("idle, not held", style.IDLE, area=True))
        training, held = (percent(main.of_idle(word)) for word in ("training", "held"))
        words += (
            f" On {training} of these node-hours trainers trained, and they held {held}: the difference is nodes that "
            "start, or stand still to be resized."
        )
    since = (
        [tag("p", f"The trace starts on {shown(pool.start).replace('T', ' ')}.", class_="subtle")] if pool.start else []
    )
    notes = [tag("ul", *(tag("li", shown(note)) for note in pool.notes), class_="notes")] if pool.notes else []
    return [*since, _figure(name, words, plots.pool(pool, use), key), *notes]


def _fragments(case: Case, name: str) -> Section:
    pool = case.pool
    if pool is None:
        return []
    lengths_s = np.sort(pool.lengths_s)
    half_s, tenth_s = np.percentile(lengths_s, (50, 90))
    rows = []
    for limit_s in _LENGTHS_S:
        below = lengths_s < limit_s
        time = float(lengths_s[below].sum() / lengths_s.sum())
        rows.append((duration(limit_s), percent(float(below.mean()), 1), percent(time, 1)))
    short = lengths_s < _SHORT_S
    words = (
        f"There were {len(lengths_s):,} idle periods. Half of them are shorter than {duration(float(half_s))}, a tenth "
        f"is longer than {duration(float(tenth_s))}. Periods below ten minutes are {percent(float(short.mean()), 1)} "
        f"of all and hold {percent(float(lengths_s[short].sum() / lengths_s.sum()), 1)} of the idle time."
    )
    if pool.cut:
        words += f" The start or end of the trace cuts {pool.cut:,} of them; what was seen of these counts."
    key = [_swatch("of the idle periods", style.OURS), _swatch("of the idle node time", style.EQUAL, "6 3")]
    figures = table(("Shorter than", "of the periods", "of the time"), rows)
    return [_figure(name, words, plots.fragments(lengths_s), key), figures]


def _efficiency(case: Case, name: str) -> Section:
    all_of = compared(case)
    if not all_of:
        return []
    main, others = all_of[0], all_of[1:]
    intro = tag(
        "p",
        "Efficiency U is the samples trained, as a share of those that the same trainers would make on as many "
        "dedicated nodes, without a single interruption: 100% is that ideal.",
    )
    words = f"Over the whole trace U is {percent(main.efficiency, 1)}"
    if others:
        words += ", against " + listed([f"{percent(each.efficiency, 1)} with {policy_name(each)}" for each in others])
    sizes = [each.arguments.get("scavenger_nodes") for each in others if each.policy == RIGID]
    drawn = [each for each in all_of if each.series]
    content: Section = [intro]
    whole = table(
        ("Policy", "U", "training", "held", "preemptions"),
        [
            (policy_name(each), percent(each.efficiency, 1), percent(each.of_idle("training"), 1),
             percent(each.of_idle("held"), 1), f"{each.data['preemptions']:,}")
            for each in all_of
        ],
    )  # fmt: skip
    if not drawn:
        add(intro, f" {words}. No figures for every six hours were stored (bft replay --series stores them).")
        return [*content, whole]
    values = [row["efficiency"] for row in main.series if row["node_hours"] > 0] if main.series else []
    if values:
        words += f". In windows of six hours that of bftd is {percent(min(values))} to {percent(max(values))}"
    content.append(
        _figure(
            name,
            f"{words}. {_sized(sizes)}".strip(),
            plots.efficiency(drawn, main.duration_s),
            [_swatch(policy_name(each), *plots.LINES[each.policy]) for each in drawn],
        )
    )
    windows = [
        (f"{row['start_s'] / 3600:g} h", f"{row['node_hours']:,.0f}",
         *(percent(each.series[place]["efficiency"], 1) for each in drawn))
        for place, row in enumerate(drawn[0].series)
    ]  # fmt: skip
    return [*content, whole, _folded(table(("From", "idle node-hours", *map(policy_name, drawn)), windows))]


def _sized(sizes: Sequence[int | None]) -> str:
    known = [size for size in sizes if size]
    return f"Rigid jobs have {counted(known[0], 'node')} each." if known else ""


def _costs(case: Case, name: str) -> Section:
    all_of = compared(case)
    if not all_of:
        return []
    rows = [(policy_name(each), _parts(each)) for each in all_of]
    _, (earned, resizing, preempted, rest) = rows[0]
    words = (
        f"Of what dedicated nodes would earn, bftd earns {percent(earned, 1)}. It loses {percent(resizing, 1)} while "
        f"trainers stand still to be resized, and {percent(preempted, 1)} when nodes are taken back. The rest, "
        f"{percent(rest, 1)}, is never earned: nodes that come and go leave trainers at sizes that are not the best."
    )
    key = [_swatch(part, color, area=True) for part, color in plots.PARTS]
    figures = table(
        ("Policy", *(part for part, _ in plots.PARTS)),
        [(policy, *(percent(share, 1) for share in shares)) for policy, shares in rows],
    )
    return [_figure(name, words, plots.costs(rows), key, height=80 + 44 * len(rows)), figures]


def _parts(replayed: Replayed) -> tuple[float, ...]:
    """Split the outcome of dedicated nodes in the order of PARTS."""
    spent = [replayed.share(kind) for kind in ("rescale_cost_samples", "preempt_cost_samples")]
    earned = max(replayed.efficiency, 0.0)
    return (earned, *spent, max(0.0, 1.0 - earned - sum(spent)))


def _t_fwd(case: Case, name: str) -> Section:
    at = case.setting
    if at is None:
        return []
    used_s, pj_max = at
    points = [point for point in case.tried() if point.pj_max == pj_max]
    if len(points) < 2:
        return []
    recovered = [point.efficiency for point in points if point.efficiency is not None]
    whole = len(recovered) == len(points)
    values = recovered if whole else [point.u or 0.0 for point in points]
    what, title = (
        ("the recovered share of the idle node-hours", "idle node-hours recovered") if whole else ("U", "efficiency U")
    )
    (best, best_at), (least, least_at) = (
        pick(zip(values, points, strict=True), key=itemgetter(0)) for pick in (max, min)
    )
    intro = tag(
        "p",
        "t_fwd is how many seconds ahead bftd plans, as if no node left meanwhile. With little of it a resize never "
        "pays for itself, with much of it bftd resizes for nodes that are soon gone.",
    )
    words = (
        f"With {pj_max} trainers at once {what} is highest, {percent(best, 1)}, at t_fwd {best_at.t_fwd_s:g} s and "
        f"lowest, {percent(least, 1)}, at {least_at.t_fwd_s:g} s. The ring marks {used_s:g} s, "
        f"{_whose(case)}. {_ZOOMED}"
    )
    rows = [
        (f"{point.t_fwd_s:g} s", percent(value, 1), _runtime(point))
        for value, point in zip(values, points, strict=True)
    ]
    figures = table(("t_fwd", "recovered" if whole else "U", "mean run time"), rows)
    _mark(figures, [point.t_fwd_s == used_s for point in points])
    return [
        intro,
        _figure(name, words, plots.t_fwd([point.t_fwd_s for point in points], values, title, used_s), []),
        figures,
    ]


def _pareto(case: Case, name: str) -> Section:
    at = case.setting
    points = [point for point in case.points if point.mean_runtime_s is not None and point.efficiency is not None]
    if at is None or len(points) < 2:
        return []
    intro = tag(
        "p",
        "pj_max is how many trainers share the nodes at once. With more of them idle nodes find a better use, but each "
        "trainer gets fewer and takes longer. U cannot tell this, since it compares with as few trainers on dedicated "
        "nodes; so the vertical axis is the share of the idle node-hours that is recovered.",
    )
    front = pareto_front(points)
    used = [point for point in points if (point.t_fwd_s, point.pj_max) == at]
    words = f"One setting beats all others in both: {_both(front[0])}."
    if len(front) > 1:
        words = (
            "The line joins the settings that no other beats in both, each with its pj_max: from "
            f"{_both(front[0])} to {_both(front[-1])}. Grey points are beaten."
        )
    words += f" The ring marks pj_max {at[1]} with t_fwd {at[0]:g} s, {_whose(case)}." if used else ""
    rows = [
        (f"{point.pj_max}", f"{point.t_fwd_s:g} s", percent(point.efficiency, 1), _weekly(point), _runtime(point))
        for point in front
    ]  # fmt: skip
    figures = table(("pj_max", "t_fwd", "recovered", "node-hours a week", "mean run time"), rows)
    _mark(figures, [point in used for point in front])
    picture = _figure(name, f"{words} {_ZOOMED}", plots.pareto(points, front, used), [])
    return [intro, picture, figures if len(front) <= _FOLDED_ROWS else _folded(figures)]


def pareto_front(points: Sequence[TriedSettings]) -> list[TriedSettings]:
    """Return the points that no other beats in both, in order of run time; the first of equal ones."""
    front: list[TriedSettings] = []
    for point in sorted(points, key=lambda point: (point.mean_runtime_s or 0.0, -(point.efficiency or 0.0))):
        if not front or (point.efficiency or 0.0) > (front[-1].efficiency or 0.0):
            front.append(point)
    return front


def _whose(case: Case) -> str:
    return "which all of this page is about" if case.main is not None else "which bft advise recommends"


def _both(point: TriedSettings) -> str:
    return f"{percent(point.efficiency, 1)} at {_runtime(point)} (pj_max {point.pj_max})"


def _runtime(point: TriedSettings) -> str:
    return "-" if point.mean_runtime_s is None else f"{point.mean_runtime_s / 3600:,.2f} h"


def _weekly(point: TriedSettings) -> str:
    return "-" if point.node_hours_per_week is None else f"{point.node_hours_per_week:,.0f}"


def _figure(name: str, words: str, draw: canvas.Draw, key: Sequence[Element], *, height: int | None = None) -> Element:
    figure = tag("figure")
    if key:
        add(figure, tag("ul", *key, class_="key"))
    return add(figure, *canvas.plot(name, words, draw, height=height), tag("figcaption", words))


def _swatch(text: str, color: style.Color, dashes: str = "", *, area: bool = False) -> Element:
    fill = f"var(--{color.role})"
    if area:
        mark = tag("rect", x="6", width="16", height="12", rx="2", style=f"fill:{fill}")
    else:
        mark = tag("path", d="M1 6H27", style=f"stroke:{fill};stroke-width:2.5;stroke-dasharray:{dashes or 'none'}")
    return tag("li", tag("svg", mark, viewBox="0 0 28 12", aria_hidden="true"), text)


def _folded(content: Content) -> Element:
    return tag("details", tag("summary", "All figures"), content)


def _mark(made: Element, here: Sequence[bool]) -> None:
    """Set the rows that the page is about in bold."""
    for row, marked in zip(made.iterfind(".//tbody/tr"), here, strict=True):
        if marked:
            row.set("class", "here")
