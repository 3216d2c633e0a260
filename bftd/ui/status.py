"""The live view: a status of the daemon in styles. Pure: the same dictionary always gives the same picture."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bftd.base.tables import Column, Fitted
from bftd.base.text import Drawn, Stack, Words
from bftd.protocol.fields import printable

_STATE_STYLES = {"running": "green", "waiting": "yellow", "suspended": "magenta", "finished": "dim"}
_DECISIONS_SHOWN = 8
# A share that would be shown as 0 % says nothing.
_LEAST_SHARE = 0.005
# Characters of a long value that remain on a narrow screen.
_NAME_WIDTH = 8
_NODES_WIDTH = 16
_WORDS_WIDTH = 16


def render(status: Mapping[str, Any]) -> Stack:
    """Render one `GET /v1/status` answer as the whole view; names that users choose cannot control the terminal."""
    status = _printable(status)
    parts: list[Drawn] = _shadow_head(status) if status["mode"] == "shadow" else [_headline(status)]
    parts += [_nodes(status), _trainers(status)]
    parts += _notices(status)
    parts.append(_decisions(status["decisions"]))
    return Stack(parts)


def _headline(status: Mapping[str, Any]) -> Words:
    line = Words("bftd ", "bold")
    line.append(f"{status['version']} {status['mode']}", "dim")
    age_s = status["snapshot_age_s"]
    line.append("  snapshot " + ("none yet" if age_s is None else f"{age_s:.1f} s old"))
    if status["pool_node_seconds"] > 0:
        line.append(f"  {_shares(status)}")
    backs = status["give_back_s"]
    if backs["count"]:
        line.append(f"  give-back {backs['p50']:.2f} s median, {backs['max']:.2f} s most, {backs['count']} times")
    if status["hold"]:
        line.append(f"\n{status['hold']}", "yellow")
    return line


def _shares(status: Mapping[str, Any]) -> str:
    """Describe the shares of the pool's node-seconds that trained and were held, and the overheads of held nodes."""
    pool_s = status["pool_node_seconds"]
    training, held = (status[f"{what}_node_seconds"] / pool_s for what in ("training", "used"))
    parts = {what: status.get(f"{what}_node_seconds", 0.0) / pool_s for what in ("starting", "resizing")}
    rest = ", ".join(f"{what} {part:.0%}" for what, part in parts.items() if part >= _LEAST_SHARE)
    return f"training {training:.0%}, held {held:.0%}{f' ({rest})' if rest else ''} of {pool_s:.0f} node-seconds"


def _printable(value: Any) -> Any:
    """Return JSON with every text in it made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {name: _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _shadow_head(status: Mapping[str, Any]) -> list[Drawn]:
    from bftd.ui import shadow  # loading its imports takes time, and most daemons are live

    return shadow.head(status)


def _fold(names: Sequence[str]) -> str:
    from slurm_plugin.nodeset import fold  # as above: a current daemon sends its nodes folded

    return fold(names)


def _nodes(status: Mapping[str, Any]) -> Fitted:
    """Return a table of nodes, grouped by what they do and why."""
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    folded = status.get("node_groups")
    for node in status["nodes"] if folded is None else folded:
        kind = node.get("class", "")
        if node["trainer"]:
            style = "green" if node["lease_state"] == "working" else "cyan"
            key = (kind, f"{node['trainer']}", node["lease_state"], style)
        elif node["in_pool"]:
            key = (kind, "in the pool", node["why"], "yellow")
        else:
            key = (kind, "", node["why"], "dim")
        groups[key].append(node["name"] if folded is None else node["nodes"])
    join: Callable[[Sequence[str]], str] = _fold if folded is None else ",".join
    columns = [
        Column("nodes", least=_NODES_WIDTH, folds=True),
        Column("trainer"),
        Column("state", least=_WORDS_WIDTH, folds=True),
    ]
    rows: list[tuple[tuple[str, ...], str]] = [
        ((join(names), trainer, why), style) for (_, trainer, why, style), names in groups.items()
    ]
    if len({kind for kind, *_ in groups}) > 1:
        columns.insert(1, Column("class", rank=1, least=_NAME_WIDTH))
        kinds = [kind for kind, *_ in groups]
        rows = [((row[0], kind, *row[1:]), style) for kind, (row, style) in zip(kinds, rows, strict=True)]
    return Fitted("Nodes", columns, rows)


def _trainers(status: Mapping[str, Any]) -> Fitted:
    """Return a table with a row per trainer; on a narrow screen columns that repeat others or matter least go first."""
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
    rows = [_trainer(trainer, on) for trainer, on in zip(status["trainers"], _places(status), strict=True)]
    if not any(trainer.get("account") for trainer in status["trainers"]):
        at = next(at for at, column in enumerate(columns) if column.title == "account")
        columns, rows = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    return Fitted("Trainers", columns, [(row, "") for row in rows]).style("state", _state_style)


def _places(status: Mapping[str, Any]) -> list[str]:
    """Return the nodes of each trainer, in the order of the trainers."""
    if "node_groups" in status:
        return [trainer["on"] for trainer in status["trainers"]]
    on = defaultdict(list)
    for node in status["nodes"]:
        if node["trainer"] and node["lease_state"] != "revoked":
            on[node["trainer"]].append(node["name"])
    return [_fold(on[trainer["id"]]) if on[trainer["id"]] else "" for trainer in status["trainers"]]


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
    """Return the user and, if known, the account."""
    return f"{item['user']} ({item['account']})" if item.get("account") else str(item["user"])


def _notices(status: Mapping[str, Any]) -> list[Words]:
    """Return a line per pause, alarm, bound, orphan job, cap and hidden setting, and lines on rooms and the ledger."""
    lines = [Words(alarm["text"], "red") for alarm in status.get("alarms", ())]
    for pause in status.get("pauses", ()):
        back = ", and what was lent is asked back" if pause["release"] else ""
        lines.append(Words(f"{pause['text']} (since {_moment(pause['since_s'])}{back})", "yellow"))
    for item in (status.get("hours"), status.get("bound")):
        lines += [Words(item["text"], "yellow")] if item and item["text"] else []
    lines += _rooms(status)
    for job in status.get("orphan_jobs") or status.get("strays", ()):  # daemons of 0.1 send strays
        done = ": bftd has asked Slurm to cancel it" if job["cancelled"] else ""
        what = f"job {job['job_id']} of {_whose(job)} on {_fold(job['nodes'])} since {_moment(job['since_s'])}"
        lines.append(Words(f"no lease stands behind {what}{done}", "red"))
    lines += [Words(cap["text"], "yellow") for cap in status.get("caps", ())]
    lines += [
        Words(f"bft tune has set {name} = {setting['value']}; the configuration has {setting['file']}", "yellow")
        for name, setting in status.get("tuned", {}).items()
        if setting["value"] != setting["file"]
    ]
    ledger = status.get("ledger", {})
    if ledger.get("full"):
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(ledger["oldest_event_s"]))
        lines.append(Words(f"the ledger has reached [ledger] max_bytes: it has events from {since} on", "yellow"))
    if ledger.get("failure"):
        lines.append(Words(ledger["failure"], "red"))
    return lines


def _rooms(status: Mapping[str, Any]) -> list[Words]:
    """Return a line on the nodes that are kept for jobs, and on the results of all rooms so far; none without rooms."""
    rooms, usage = status.get("rooms", ()), status.get("room_usage", {})
    if not rooms and not usage.get("made"):
        return []
    now = f"{_count(len(rooms), 'job')} can start on nodes that are kept for {'it' if len(rooms) == 1 else 'them'}"
    kept_s, vain_s = usage["kept_node_seconds"], usage["vain_node_seconds"]
    vain = f", {vain_s / kept_s:.0%} of {kept_s / 3600:,.1f} node-hours" if kept_s > 0 else ""
    ends = f"{usage['started']:,} led to a start, {usage['in_vain']:,} were in vain{vain}"
    return [Words(f"{now}; room was made {_count(usage['made'], 'time')} so far: {ends}", "dim")]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _moment(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _size(trainer: Mapping[str, Any]) -> str:
    """Return the number of working nodes, with that of requested nodes if it differs."""
    working, requested = trainer["working"], trainer["requested"]
    return str(working) if working == requested else f"{working} -> {requested}"


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Fitted:
    rows = [
        ((time.strftime("%H:%M:%S", time.localtime(decision["at_s"])), decision["text"]), "")
        for decision in list(decisions)[-_DECISIONS_SHOWN:]
    ]
    columns = [Column("time"), Column("decision", least=_WORDS_WIDTH, folds=True)]
    return Fitted("Last decisions", columns, rows, header=False).style("time", lambda _: "dim")
