"""`bft status` of a daemon in shadow mode. Pure, as `bftd.ui.status` is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bftd.base.tables import Column, Fitted
from bftd.base.text import Drawn, Words
from bftd.protocol.changes import nodes


def head(status: Mapping[str, Any]) -> list[Drawn]:
    """Return the part above nodes and trainers."""
    return [_headline(status), _harvest(status), *_waiting(status)]


def _headline(status: Mapping[str, Any]) -> Words:
    """Return the headline, which first says that nothing is touched."""
    line = Words("bftd ", "bold")
    line.append(f"{status['version']}", "dim")
    line.append(" SHADOW MODE", "bold yellow")
    line.append(": nothing is submitted, lent or cancelled; imaginary trainers show what would be")
    age_s = status["snapshot_age_s"]
    line.append("\nsnapshot " + ("none yet" if age_s is None else f"{age_s:.1f} s old"))
    if status["hold"]:
        line.append(f"\n{status['hold']}", "yellow")
    return line


def _harvest(status: Mapping[str, Any]) -> Drawn:
    """Return what would have been harvested so far, and the load it would have put on Slurm."""
    shadow = status["shadow"]
    idle_s, training_s = shadow["idle_node_seconds"], status["training_node_seconds"]
    share = f"{training_s / idle_s:.1%} of the idle time" if idle_s > 0 else "no idle time yet"
    per_min, per_poll = shadow["submissions_per_min"], shadow["slurm_calls_per_poll"]
    since = time.strftime("%F %T", time.localtime(shadow["since_s"]))
    rows = [
        ("seen", f"{_hours(shadow['observed_s'])} since {since}, {shadow['polls']:,} polls"),
        ("idle nodes", f"{_node_hours(idle_s)}, {_node_hours(status['pool_node_seconds'])} of it in the pool"),
        ("would have trained", f"{_node_hours(training_s)}: {share}"),
        ("worth", _worth(shadow)),
        ("preemptions", _preemptions(shadow)),
        ("submissions", f"{shadow['submissions']:,}, {_number(per_min['mean'])} a minute, at most {per_min['most']}"),
        ("calls of Slurm", f"{_number(per_poll)} a poll, all of them reading"),
    ]
    if shadow["trace"]:
        rows.append(("trace", f"{shadow['trace']} (bft report, bft advise, bft replay)"))
    columns = [Column("what"), Column("how much", least=24, folds=True)]
    return Fitted("So far", columns, [(row, "") for row in rows], header=False).style("what", lambda _: "dim")


def _waiting(status: Mapping[str, Any]) -> list[Words]:
    """Return a line for each real driver that has registered."""
    lines = [f"{who['name']} {who['id']} of {who['user']} waits: {who['text']}" for who in status["shadow"]["waiting"]]
    return [Words(line, "yellow") for line in lines]


def _worth(shadow: Mapping[str, Any]) -> str:
    if shadow["efficiency"] is None:
        return "not known yet"
    recovered = _node_hours(shadow["recovered_node_seconds"])
    return f"{recovered} of dedicated nodes (U = {shadow['efficiency']:.1%}), {shadow['completed']} trainers done"


def _preemptions(shadow: Mapping[str, Any]) -> str:
    taken, vacated = shadow["nodes_taken"], shadow["nodes_vacated"]
    ahead = f"; {nodes(vacated)} left to a job before it started"
    return f"{shadow['preemptions']} times a job took nodes from a trainer, {nodes(taken)} in all{ahead}"


def _node_hours(node_seconds: float) -> str:
    return (
        f"{node_seconds / 3600:,.2f} node-hours" if node_seconds < 360_000 else f"{node_seconds / 3600:,.0f} node-hours"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"
