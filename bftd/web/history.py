"""The page's history: charts with legends, and their numbers as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bftd.base.format import amount, clock, minute, period
from bftd.web import charts
from bftd.web.html import text
from bftd.web.series import Charted, Picture, charted

_NONE = {"working": 0, "leased": 0, "samples_per_s": 0}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A history as HTML, by section; `roles` are the style classes of the trainers that have a colour."""

    machine: str
    trainers: str
    efficiency: str
    roles: Mapping[str, str]


def drawn(history: Mapping[str, Any], hours: int) -> Drawn:
    """Draw an answer of `GET /v1/history` over the last `hours`."""
    if not history["points"]:
        return Drawn("", "", "", {})
    shown = charted(history)
    return Drawn(_machine(shown, hours), _trainers(shown, hours), _efficiency(shown, hours), shown.roles)


def of_trainer(history: Mapping[str, Any], id_: str, hours: int) -> str:
    """Draw nodes and rate of one trainer over the last `hours`."""
    points = [point | {"trainers": {id_: point["trainers"].get(id_, _NONE)}} for point in history["points"]]
    shown = charted({**history, "points": points}) if points else None
    return _trainers(shown, hours) if shown and shown.roles else "<p class=quiet>It had no nodes in this time."


def _machine(shown: Charted, hours: int) -> str:
    """Draw all nodes over the hours, and again those without a regular job."""
    over = f"over the last {period(hours * 3600)}, as areas upon each other"
    about = f"All nodes by use {over}. At the end: {_last(shown.machine)}."
    made = _figure(shown.machine, charts.areas(shown.machine, charts.FLAT, about), "All nodes")
    if shown.pool.series:
        about = f"Nodes without a regular job by who has them, {over}. At the end: {_last(shown.pool)}."
        made += _figure(shown.pool, charts.areas(shown.pool, charts.LARGE, about), "Nodes without a regular job")
    return made


def _last(picture: Picture) -> str:
    """Return the last values of a picture in words."""
    last = [(each.name, each.values[-1]) for each in picture.series if each.role != "gap"]
    return ", ".join(f"{name} {amount(round(value, 2))}" for name, value in last if value is not None) or "no record"


def _trainers(shown: Charted, hours: int) -> str:
    """Draw sizes and rates of the largest trainers over the hours."""
    if not shown.roles:
        return "<p class=quiet>No trainer had nodes in this time."
    over = f"over the last {period(hours * 3600)}"
    who = "the trainer that had most" if len(shown.roles) == 1 else f"the {len(shown.roles)} trainers that had most"
    sizes = charts.lines(shown.sizes, charts.SMALL, f"Nodes at work of {who}, {over}.", whole=True)
    rates = charts.lines(shown.rates, charts.SMALL, f"Samples per second of {who}, {over}.", decades=True)
    return (
        f"<div class=two>{_figure(shown.sizes, sizes, 'Nodes at work')}"
        f"{_figure(shown.rates, rates, 'Samples per second')}</div>"
    )


def _efficiency(shown: Charted, hours: int) -> str:
    """Draw the shares of the idle time that trained and that were held."""
    if all(value is None for value in shown.efficiency.series[0].values):
        return ""
    about = f"Share of idle node time that trained, and that trainers held, in percent, over {period(hours * 3600)}."
    return _figure(
        shown.efficiency, charts.shares(shown.efficiency, charts.FLAT, about), "Held and training, %", legend=False
    )


def _figure(picture: Picture, drawn: str, title: str, legend: bool = True) -> str:
    """Return a chart with a `legend`, and a table of its numbers for readers who cannot see or point."""
    names = "".join(
        f"<li><i class={each.role}></i>{text(each.name)}{_value(each.values[-1])}" for each in picture.series
    )
    apart = _apart(picture)
    rows = []
    for at in range(len(apart) - 1, -1, -1):
        values = [each.values[at] for each in picture.series]
        cells = "".join(f"<td>{amount(value and round(value, 2))}" for value in values)
        rows.append(f"<tr><th scope=row>{apart[at]}{cells}")
    heads = "".join(f"<th scope=col>{text(each.name)}" for each in picture.series)
    name = f"{title}: numbers"
    return (
        f"<figure><figcaption><b>{title}</b> <span class=quiet>averages of {period(picture.step_s)}</span></figcaption>"
        f"<div class=plot>{drawn}</div>{f'<ul class=legend>{names}</ul>' if legend else ''}"
        f"<details><summary>{title} as a table</summary>"
        f'<div class="wide tall" role=region tabindex=0 aria-label="{name}"><table class=data><caption>{name}</caption>'
        f"<thead><tr><th scope=col>from{heads}<tbody>{''.join(rows)}</table></div></details></figure>"
    )


def _value(value: float | None) -> str:
    return "" if value is None else f" <b>{amount(round(value, 2))}</b>"


def _apart(picture: Picture) -> list[str]:
    """Return the begin of each step, with the date if they span more than a day."""
    starts_s = picture.starts_s
    several = starts_s[-1] - starts_s[0] > 86400
    return [minute(at_s)[5:] if several else clock(at_s)[:5] for at_s in starts_s]
