"""`bft status` of a daemon in shadow mode. Pure, as `bftd.ui.status` is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bftd.base.format import amount, duration, moment, node_hours
from bftd.base.tables import Column, Fitted
from bftd.base.text import Drawn, Words
from bftd.base.view import snapshot_age
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
    return line.append(f"\n{snapshot_age(status['snapshot_age_s'])}")


def _harvest(status: Mapping[str, Any]) -> Drawn:
    """Return what would have been harvested so far, and the load it would have put on Slurm."""
    shadow = status["shadow"]
    idle_s, training_s = shadow["idle_node_seconds"], status["training_node_seconds"]
    share = f"{training_s / idle_s:.1%} of the idle time" if idle_s > 0 else "no idle time yet"
    per_min, per_poll = shadow["submissions_per_min"], shadow["slurm_calls_per_poll"]
    since, pool_h = moment(shadow["since_s"]), node_hours(status["pool_node_seconds"])
    rows = [
        ("seen", f"{duration(shadow['observed_s'])} since {since}, {shadow['polls']:,} polls"),
        ("idle nodes", f"{node_hours(idle_s)} node-hours, {pool_h} of them in the pool"),
        ("would have trained", f"{node_hours(training_s)} node-hours: {share}"),
        ("worth", _worth(shadow)),
        ("preemptions", _preemptions(shadow)),
        ("submissions", f"{shadow['submissions']:,}, {amount(per_min['mean'])} a minute, at most {per_min['most']}"),
        ("calls of Slurm", f"{amount(per_poll)} a poll, all of them reading"),
    ]
    if shadow["trace"]:
        rows.append(("trace", f"{shadow['trace']} (bft report, bft advise, bft replay)"))
    columns = [Column("what"), Column("how much", least=24, folds=True)]
    return Fitted("So far", columns, [(row, "") for row in rows], header=False).style("what", lambda _: "dim")


def _waiting(status: Mapping[str, Any]) -> list[Words]:
    """Return a line for each real driver that has registered."""
    lines = [f"{job['name']} {job['id']} of {job['user']} waits: {job['text']}" for job in status["shadow"]["waiting"]]
    return [Words(line, "yellow") for line in lines]


def _worth(shadow: Mapping[str, Any]) -> str:
    if shadow["efficiency"] is None:
        return "not known yet"
    recovered = node_hours(shadow["recovered_node_seconds"])
    worth = f"{recovered} node-hours of dedicated nodes (U = {shadow['efficiency']:.1%})"
    return f"{worth}, {shadow['completed']} trainers done"


def _preemptions(shadow: Mapping[str, Any]) -> str:
    taken, vacated = shadow["nodes_taken"], shadow["nodes_vacated"]
    ahead = f"; {nodes(vacated)} left to a job before it started"
    return f"{shadow['preemptions']} times a job took nodes from a trainer, {nodes(taken)} in all{ahead}"
