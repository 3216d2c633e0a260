"""The live view: a status of the daemon as rich tables. Pure: the same dictionary always gives the same picture."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from bftd.shadow import view as shadow
from bftd.tables import Column, Fitted
from slurm_plugin.nodeset import fold

_STATE_STYLES = {"running": "green", "waiting": "yellow", "suspended": "magenta", "finished": "dim"}
_DECISIONS_SHOWN = 8
# What is left of a long value on a narrow screen, in characters.
_NAME_WIDTH = 8
_NODES_WIDTH = 16
_WORDS_WIDTH = 16


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


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> Fitted:
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
    return Fitted(
        "Nodes",
        [
            Column("nodes", least=_NODES_WIDTH, folds=True),
            Column("trainer"),
            Column("state", least=_WORDS_WIDTH, folds=True),
        ],
        [((fold(names), trainer, why), style) for (trainer, why, style), names in groups.items()],
    )


def _trainers(status: Mapping[str, Any]) -> Fitted:
    """A row a trainer; what also stands above, in the table of nodes, or is no news goes first on a narrow screen."""
    columns = [
        Column("trainer", least=_NAME_WIDTH),
        Column("id"),
        Column("user", rank=3, least=_NAME_WIDTH),
        Column("account", rank=7, least=_NAME_WIDTH),
        Column("back-end", rank=6),
        Column("state"),
        Column("nodes", right=True),
        Column("range", rank=1, right=True),
        Column("step", rank=4, right=True),
        Column("samples/s", rank=2, right=True),
        Column("loss", rank=5, right=True),
        Column("resizes", rank=9, right=True),
        Column("suspends", rank=10, right=True),
        Column("on", rank=8, least=_NODES_WIDTH, folds=True),
    ]
    on = defaultdict(list)
    for node in status["nodes"]:
        if node["trainer"] and node["lease_state"] != "revoked":
            on[node["trainer"]].append(node["name"])
    rows = [_trainer(trainer, fold(on[trainer["id"]]) if on[trainer["id"]] else "") for trainer in status["trainers"]]
    if not any(trainer.get("account") for trainer in status["trainers"]):
        at = next(at for at, column in enumerate(columns) if column.title == "account")
        columns, rows = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    return Fitted("Trainers", columns, [(row, "") for row in rows]).style("state", _state_style)


def _trainer(trainer: Mapping[str, Any], on: str) -> tuple[str, ...]:
    ended = "" if trainer["exit_code"] is None else f" ({trainer['exit_code']})"
    return (
        trainer["name"],
        trainer["id"],
        str(trainer["user"]),
        str(trainer.get("account") or ""),
        trainer["backend"],
        trainer["state"] + ended,
        _size(trainer),
        f"{trainer['nodes_min']}-{trainer['nodes_max']}",
        str(trainer["step"]),
        f"{trainer['samples_per_s']:.1f}",
        "" if trainer["loss"] is None else f"{trainer['loss']:.4g}",
        str(trainer["resizes"]),
        str(trainer["suspends"]),
        on,
    )


def _state_style(state: str) -> str:
    return _STATE_STYLES.get(state.partition(" ")[0], "")


def _whose(item: Mapping[str, Any]) -> str:
    """User and, where it is known, account."""
    return f"{item['user']} ({item['account']})" if item.get("account") else str(item["user"])


def _notices(status: Mapping[str, Any]) -> list[Text]:
    """A line for each job that no lease stands behind, each cap that is reached, each setting that hides the file's."""
    lines = []
    for stray in status.get("strays", ()):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stray["since_s"]))
        done = ": bftd has asked Slurm to cancel it" if stray["cancelled"] else ""
        what = f"job {stray['job_id']} of {_whose(stray)} on {fold(stray['nodes'])} since {since}"
        lines.append(Text(f"no lease stands behind {what}{done}", style="red"))
    lines += [Text(cap["text"], style="yellow") for cap in status.get("caps", ())]
    lines += [
        Text(f"bft tune has set {name} = {told['value']}; the configuration has {told['file']}", style="yellow")
        for name, told in status.get("tuned", {}).items()
        if told["value"] != told["file"]
    ]
    ledger = status.get("ledger", {})
    if ledger.get("full"):
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(ledger["oldest_event_s"]))
        lines.append(Text(f"the ledger has reached [ledger] max_bytes: it has events from {since} on", style="yellow"))
    if ledger.get("failure"):
        lines.append(Text(ledger["failure"], style="red"))
    return lines


def _size(trainer: Mapping[str, Any]) -> str:
    """How many nodes work, and how many are on their way where that is another number."""
    working, requested = trainer["working"], trainer["requested"]
    return str(working) if working == requested else f"{working} -> {requested}"


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Fitted:
    rows = [
        ((time.strftime("%H:%M:%S", time.localtime(decision["at_s"])), decision["text"]), "")
        for decision in list(decisions)[-_DECISIONS_SHOWN:]
    ]
    columns = [Column("time"), Column("decision", least=_WORDS_WIDTH, folds=True)]
    return Fitted("Last decisions", columns, rows, header=False).style("time", lambda _: "dim")
