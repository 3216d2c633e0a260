"""The section on the cost to regular jobs: whether the simulation reproduces their waits, the cost, who pays most."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from bftd.base.format import counted, duration, percent
from bftd.simulation.price.model import WITHIN, signed
from bftd.simulation.report import canvas, plots
from bftd.simulation.report.html import add, shown, table, tag

if TYPE_CHECKING:
    from bftd.simulation.price import Price, Wait
    from bftd.simulation.report.model import Case

_WHY = {
    "preempted": "pilots had to leave",
    "chance": "chance: it varies as much without bftd",
    "order": "other jobs were first, or lay on other nodes",
}
_MODEL = (
    "The simulation lends every idle node. t_fwd decides how much of that time is training (How far to look ahead), "
    "not what the queue pays; [promise] delay_s_per_hour, which stops lending, is not simulated."
)
_ALL = "all jobs"


def section(case: Case, name: str) -> list[Element]:
    """Return the section; nothing without a log of jobs."""
    price = case.price
    if price is None:
        return []
    intro = (
        f"{counted(price.jobs, 'job')} of {duration(price.period_s)} on {price.nodes:,} nodes, run again by a "
        f"simulated slurmctld with {price.slurm}."
        if price.checks
        else ""
    )
    made = [tag("p", shown(intro))] if intro else []
    if price.why_not:
        made += [tag("p", tag("strong", shown(price.sentence()))), *([_checks(price)] if price.checks else [])]
    else:
        made += [_checked(price), tag("p", price.sentence()), _picture(case, price, name)]
        made += [_folded("All settings", _settings(case, price)), _classes(price), *_delays(price)]
    if price.notes:
        made.append(tag("ul", *(tag("li", shown(note)) for note in price.notes), class_="notes"))
    return made


def relative(seconds: float, wait: Wait) -> str:
    """Format a difference in percent of the wait without bftd; as a time if that is 0."""
    return f"{100.0 * seconds / wait.of_s:+.1f}%" if wait.of_s > 0.0 else signed(seconds)


def _training(case: Case) -> float | None:
    """Return the part of the harvested time on which trainers train, None if nothing was replayed."""
    main = case.main
    return main.of_idle("training") / main.of_idle("held") if main is not None and main.of_idle("held") else None


def _picture(case: Case, price: Price, name: str) -> Element:
    training = _training(case)
    words = "Node-hours harvested in a week by setting, and what jobs pay for them on average"
    words += f"; on {percent(training)} of that time trainers train" if training is not None else ""
    words += f". The grey band is by how much two courses without bftd differ. {_MODEL}"
    height = 110 + 46 * len(price.settings)
    drawn = plots.price([_named(one.name) for one in price.settings], price.settings, training)
    return tag("figure", *canvas.plot(name, words, drawn, height=height), tag("figcaption", words))


def _named(setting: str) -> str:
    return setting or "default"


def _settings(case: Case, price: Price) -> Element:
    training = _training(case)
    return table(
        ("Setting", "node-hours a week", "training", "jobs wait longer by"),
        [
            (
                _named(one.name) + ("" if one.courses == price.courses else f" ({counted(one.courses, 'course')})"),
                f"{one.node_hours_per_week:,.0f}",
                "-" if training is None else f"{training * one.node_hours_per_week:,.0f}",
                f"{relative(one.wait.mean_s, one.wait)} "
                f"({relative(one.wait.low_s, one.wait)} to {relative(one.wait.high_s, one.wait)})",
            )
            for one in price.settings
        ],
    )


def _classes(price: Price) -> Element:
    return table(
        ("Jobs", "number", "wait", "longer with bftd by", "by chance"),
        [
            (
                shown(wait.name) or _ALL,
                f"{wait.jobs:,}",
                duration(wait.of_s),
                f"{signed(wait.mean_s)} ({signed(wait.low_s)} to {signed(wait.high_s)})",
                f"\N{PLUS-MINUS SIGN}{duration(wait.null_s)}",
            )
            for wait in price.waits
        ],
    )


def _delays(price: Price) -> list[Element]:
    direct = tag(
        "p",
        f"Slurm preempted pilots for {percent(price.delayed_share, 1)} of the jobs. From then to their start took "
        f"{duration(price.direct_s)} a job on average, over all jobs: the delay that pilots cause directly.",
    )
    rows = [
        (
            shown(job.id),
            f"{job.nodes:,}",
            duration(job.wait_s),
            signed(job.lost_s),
            f"{_WHY[job.why]}; {duration(job.direct_s)} from the preemption of pilots to the start",
        )
        for job in price.worst
    ]
    if not rows:
        return [direct]
    head = ("Job", "nodes", "wait", "longer by", "why")
    return [direct, _folded("The jobs that lose most", table(head, rows))]


def _checked(price: Price) -> Element:
    everyone = price.checks[0]
    words = (
        f"The simulation reproduces the waits of the log: {duration(everyone.logged_s)} on average, "
        f"{duration(everyone.simulated_s)} simulated; and those of each class within {WITHIN:.0%}"
    )
    return _folded(words, _checks(price))


def _checks(price: Price) -> Element:
    return table(
        ("Jobs", "number", "logged", "simulated", "agree"),
        [
            (
                shown(one.name) or _ALL,
                f"{one.jobs:,}",
                duration(one.logged_s),
                duration(one.simulated_s),
                "yes" if one.within else "no",
            )
            for one in price.checks
        ],
    )


def _folded(summary: str, content: Element) -> Element:
    return add(tag("details", tag("summary", summary)), content)
