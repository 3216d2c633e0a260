"""The live view: a status of the daemon as rich tables. Pure: the same dictionary always gives the same picture."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bftd.shadow import view as shadow
from slurm_plugin.nodeset import fold

_STATE_STYLES = {"running": "green", "waiting": "yellow", "suspended": "magenta", "finished": "dim"}
_DECISIONS_SHOWN = 8


def render(status: Mapping[str, Any]) -> RenderableType:
    """The whole view of one `GET /v1/status` answer."""
    parts: list[RenderableType] = shadow.head(status) if status["mode"] == "shadow" else [_headline(status)]
    parts += [_nodes(status["nodes"]), _trainers(status)]
    parts += _notices(status)
    parts.append(_decisions(status["decisions"]))
    return Group(*parts)


def _headline(status: Mapping[str, Any]) -> Text:
    line = Text("bftd ", style="bold")
    line.append(f"{status['version']} {status['mode']}", style="dim")
    age_s = status["snapshot_age_s"]
    line.append("  snapshot " + ("none yet" if age_s is None else f"{age_s:.1f} s old"))
    pool_s, used_s = status["pool_node_seconds"], status["used_node_seconds"]
    if pool_s > 0:
        line.append(f"  used {used_s / pool_s:.0%} of {pool_s:.0f} node-seconds")
    backs = status["give_back_s"]
    if backs["count"]:
        line.append(f"  give-back {backs['p50']:.2f} s median, {backs['max']:.2f} s most, {backs['count']} times")
    if status["hold"]:
        line.append(f"\n{status['hold']}", style="yellow")
    return line


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> Table:
    """Nodes folded by what they do and why."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node in nodes:
        if node["trainer"]:
            key = (f"{node['trainer']}", node["lease_state"], "green" if node["lease_state"] == "working" else "cyan")
        elif node["in_pool"]:
            key = ("in the pool", node["why"], "yellow")
        else:
            key = ("", node["why"], "dim")
        groups[key].append(node["name"])
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", title="Nodes", title_style="bold")
    for column in ("nodes", "trainer", "state"):
        table.add_column(column, no_wrap=column == "nodes")
    for (trainer, why, style), names in groups.items():
        table.add_row(escape(fold(names)), escape(trainer), escape(why), style=style)
    return table


def _trainers(status: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", title="Trainers", title_style="bold")
    table.add_column("trainer", no_wrap=True)
    for column in ("user", "back-end", "state"):
        table.add_column(column)
    for column in ("nodes", "range", "step", "samples/s", "loss", "resizes", "suspends"):
        table.add_column(column, justify="right")
    table.add_column("on")
    nodes = defaultdict(list)
    for node in status["nodes"]:
        if node["trainer"] and node["lease_state"] != "revoked":
            nodes[node["trainer"]].append(node["name"])
    for trainer in status["trainers"]:
        loss = "" if trainer["loss"] is None else f"{trainer['loss']:.4g}"
        ended = "" if trainer["exit_code"] is None else f" ({trainer['exit_code']})"
        on = fold(nodes[trainer["id"]]) if nodes[trainer["id"]] else ""
        table.add_row(
            escape(f"{trainer['name']} {trainer['id']}"),
            escape(_whose(trainer)),
            escape(trainer["backend"]),
            Text(trainer["state"] + ended, style=_STATE_STYLES.get(trainer["state"], "")),
            _size(trainer),
            f"{trainer['nodes_min']}-{trainer['nodes_max']}",
            str(trainer["step"]),
            f"{trainer['samples_per_s']:.1f}",
            loss,
            str(trainer["resizes"]),
            str(trainer["suspends"]),
            escape(on),
        )
    return table


def _whose(item: Mapping[str, Any]) -> str:
    """User and, where it is known, account."""
    return f"{item['user']} ({item['account']})" if item.get("account") else str(item["user"])


def _notices(status: Mapping[str, Any]) -> list[Text]:
    """A line for each job that no lease stands behind, and for each user or account that is at a cap."""
    lines = []
    for stray in status.get("strays", ()):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stray["since_s"]))
        done = ": bftd has asked Slurm to cancel it" if stray["cancelled"] else ""
        what = f"job {stray['job_id']} of {_whose(stray)} on {fold(stray['nodes'])} since {since}"
        lines.append(Text(f"no lease stands behind {what}{done}", style="red"))
    lines += [Text(cap["text"], style="yellow") for cap in status.get("caps", ())]
    return lines


def _size(trainer: Mapping[str, Any]) -> str:
    """How many nodes work, and how many are on their way where that is another number."""
    working, requested = trainer["working"], trainer["requested"]
    return str(working) if working == requested else f"{working} -> {requested}"


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", title="Last decisions", title_style="bold")
    table.add_column("", style="dim", no_wrap=True)
    table.add_column("")
    table.show_header = False
    for decision in list(decisions)[-_DECISIONS_SHOWN:]:
        table.add_row(time.strftime("%H:%M:%S", time.localtime(decision["at_s"])), escape(decision["text"]))
    return table
