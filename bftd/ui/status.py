"""The live view: a status of the daemon in styles. Pure: the same dictionary always gives the same picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bftd.base.format import clock, counted, node_hours, percent
from bftd.base.tables import Column, Fitted
from bftd.base.text import Drawn, Stack, Words
from bftd.base.view import alarms, shown, snapshot_age, state_rank, trainer_line, warnings
from bftd.protocol.fields import printable

_STATE_STYLES = {"running": "green", "waiting": "yellow", "suspended": "magenta", "finished": "dim", "cancelled": "dim"}
_DECISIONS_SHOWN = 8
# A share that would be shown as 0 % says nothing.
_LEAST_SHARE = 0.005
# Characters of a long value that remain on a narrow screen.
_NAME_WIDTH = 8
_NODES_WIDTH = 16
_WORDS_WIDTH = 16
_TRAINER_COLUMNS = {
    "name": Column("trainer", least=_NAME_WIDTH),
    "id": Column("id"),
    "user": Column("user", rank=3, least=_NAME_WIDTH),
    "account": Column("account", rank=7, least=_NAME_WIDTH),
    "backend": Column("back-end", rank=6),
    "state": Column("state"),
    "nodes": Column("nodes", right=True),
    "range": Column("range", rank=1, right=True),
    "step": Column("step", rank=4, right=True),
    "rate": Column("samples/s", rank=2, right=True),
    "loss": Column("loss", rank=5, right=True),
    "resizes": Column("resizes", rank=9, right=True),
    "suspends": Column("suspends", rank=10, right=True),
    "on": Column("on", rank=8, least=_NODES_WIDTH, folds=True),
}


def render(status: Mapping[str, Any], every: bool = False) -> Stack:
    """Render one `GET /v1/status` answer as the whole view; names that users choose cannot control the terminal.

    Trainers that ended are one line, or with `every` a row each.
    """
    status = _printable(status)
    if "node_groups" not in status:
        from bftd.base.folding import Folds, folded  # loading it takes time, and a current daemon folds

        status = folded(status, Folds())
    parts: list[Drawn] = _shadow_head(status) if status["mode"] == "shadow" else [_headline(status)]
    parts += [_nodes(status), *_trainers(status, every)]
    parts += [Words(text, "red") for text in alarms(status)] + [Words(text, "yellow") for text in warnings(status)]
    parts += [*_earmarks(status), _decisions(status["decisions"])]
    return Stack(parts)


def _headline(status: Mapping[str, Any]) -> Words:
    line = Words("bftd ", "bold")
    line.append(f"{status['version']} {status['mode']}", "dim")
    line.append(f"  {snapshot_age(status['snapshot_age_s'])}")
    if status["pool_node_seconds"] > 0:
        line.append(f"  {_shares(status)}")
    backs = status["give_back_s"]
    if backs["count"]:
        line.append(f"  gave back {counted(backs['count'], 'node')}, {backs['p50']:.2f} s each")
        if backs["count"] > 1:
            line.append(f", at most {backs['max']:.2f} s")
    return line


def _shares(status: Mapping[str, Any]) -> str:
    """Describe the shares of the pool's node-seconds that were held and trained, and the overheads of held nodes."""
    pool_s = status["pool_node_seconds"]
    training, held = (status[f"{kind}_node_seconds"] / pool_s for kind in ("training", "used"))
    parts = {kind: status.get(f"{kind}_node_seconds", 0.0) / pool_s for kind in ("starting", "resizing")}
    rest = ", ".join(f"{kind} {part:.0%}" for kind, part in parts.items() if part >= _LEAST_SHARE)
    return f"{held:.0%} of idle time used (training {training:.0%}{f', {rest}' if rest else ''})"


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


def _nodes(status: Mapping[str, Any]) -> Fitted:
    """Return a table of nodes, grouped by what they do and why."""
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for node in status["node_groups"]:
        kind = node.get("class", "")
        if node["trainer"]:
            style = "green" if node["lease_state"] == "working" else "cyan"
            key = (kind, f"{node['trainer']}", node["lease_state"], style)
        elif node["in_pool"]:
            key = (kind, "in the pool", node["why"], "yellow")
        else:
            key = (kind, "", node["why"], "dim")
        groups[key].append(node["nodes"])
    columns = [
        Column("nodes", least=_NODES_WIDTH, folds=True),
        Column("trainer"),
        Column("state", least=_WORDS_WIDTH, folds=True),
    ]
    rows: list[tuple[tuple[str, ...], str]] = [
        ((",".join(names), trainer, why), style) for (_, trainer, why, style), names in groups.items()
    ]
    if len({kind for kind, *_ in groups}) > 1:
        columns.insert(1, Column("class", rank=1, least=_NAME_WIDTH))
        kinds = [kind for kind, *_ in groups]
        rows = [((row[0], kind, *row[1:]), style) for kind, (row, style) in zip(kinds, rows, strict=True)]
    return Fitted("Nodes", columns, rows)


def _trainers(status: Mapping[str, Any], every: bool) -> Iterator[Drawn]:
    """Yield a table with a row per trainer, those that run first, and a line on those that ended unless `every`.

    On a narrow screen columns that repeat others or matter least go first.
    """
    ordered = sorted(status["trainers"], key=lambda trainer: state_rank(trainer["state"]))
    ended = [] if every else [trainer for trainer in ordered if trainer["state"] == "finished"]
    lines = [trainer_line(trainer, status["time_s"]) for trainer in ordered[: len(ordered) - len(ended)]]
    names = shown(_TRAINER_COLUMNS, lines)
    rows = [(tuple(getattr(line, name) for name in names), "") for line in lines]
    table = Fitted("Trainers", [_TRAINER_COLUMNS[name] for name in names], rows)
    yield table.style("state", lambda state: _STATE_STYLES.get(state.partition(" ")[0], ""))
    if ended:
        last = trainer_line(ended[-1], status["time_s"])  # they are in the order in which they came
        yield Words(
            f"{counted(len(ended), 'trainer')} ended, lately {last.name}, {last.state}: --all shows them", "dim"
        )


def _earmarks(status: Mapping[str, Any]) -> list[Words]:
    """Return a line on the nodes that are kept for jobs, and on the results of all earmarks so far."""
    earmarks, usage = status.get("earmarks", ()), status.get("earmark_usage", {})
    if not earmarks and not usage.get("made"):
        return []
    text = f"earmarks: {usage['made']:,} made, {usage['started']:,} used"
    kept_s, wasted_s = usage["kept_node_seconds"], usage["wasted_node_seconds"]
    if usage["wasted"]:
        share = f" ({percent(wasted_s / kept_s)} of {node_hours(kept_s)} node-hours)" if kept_s > 0 else ""
        text += f", {usage['wasted']:,} wasted{share}"
    return [Words(f"{text}; nodes are kept for {counted(len(earmarks), 'job')}" if earmarks else text, "dim")]


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Fitted:
    rows = [((clock(decision["at_s"]), decision["text"]), "") for decision in list(decisions)[-_DECISIONS_SHOWN:]]
    columns = [Column("time"), Column("decision", least=_WORDS_WIDTH, folds=True)]
    return Fitted("Last decisions", columns, rows, header=False).style("time", lambda _: "dim")
