"""The sections of the page, each a function from the API's answers to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bftd.base.format import clock, counted, minute, node_hours, percent, period
from bftd.base.view import alarms, shown, trainer_line, warnings
from bftd.web.html import cut, table, text

# Most rows of a table; the table says how many more there are.
ROWS_MOST = 120
# Rows that are visible at once: this is a page, not a listing.
ROWS_OPEN = 24
# Reasons shown for one state of nodes; the rest are summed up.
REASONS_MOST = 40
_STATES = {
    "regular": "run regular jobs",
    "planned": "are kept for regular jobs",
    "leased": "are lent to trainers",
    "idle": "are idle in the pool",
    "away": "are away",
}
_TRAINER_FIELDS = ("name", "user", "account", "state", "nodes", "range", "rate", "step", "ends", "on")
_TITLES = {"name": "trainer", "rate": "samples/s"}


def notices(status: Mapping[str, Any], missing: str = "") -> str:
    """Return alarms and notices, the worst first."""
    bad = [*([f"there is no history: {missing}"] if missing else []), *alarms(status)]
    notes = list(warnings(status))
    if not bad and not notes:
        return "<p class=quiet>No alarms, nothing paused."
    lines = [f"<li class=bad><b>Alarm:</b> {text(line)}" for line in bad[:ROWS_MOST]]
    lines += [f"<li>{text(line)}" for line in notes[:ROWS_MOST]]
    return f"<ul class=notices>{''.join(lines)}</ul>"


def tiles(status: Mapping[str, Any], states: Mapping[str, int], windows: Sequence[Mapping[str, Any]]) -> str:
    """Return the few figures that readers look at first."""
    trainers = [item for item in status["trainers"] if item["state"] != "finished"]
    running = sum(item["working"] > 0 for item in trainers)
    day = next((window for window in windows if window["window_s"] == 86400), None)
    backs = status["give_back_s"]
    total = sum(states.values())
    lent = "Would be lent" if status["mode"] == "shadow" else "Lent now"
    told = [
        ("Nodes", f"{total:,}", f"{states.get('regular', 0):,} run regular jobs"),
        (lent, f"{states.get('leased', 0):,}", f"{states.get('idle', 0):,} idle in the pool"),
        ("Trainers", f"{running:,}", f"{len(trainers) - running:,} waiting or starting"),
        (
            "Training",
            percent(day["training_share"] if day else None, 1),
            f"of idle node time, 24 hours; {percent(day['held_share'] if day else None, 1)} held",
        ),
        ("U", percent(day["u"] if day else None, 1), "of dedicated nodes' work"),
        (
            "Give-back",
            f"{backs['p50']:.2f} s" if backs["count"] else "-",
            f"median of {backs['count']:,}, {backs['max']:.2f} s at most" if backs["count"] else "none so far",
        ),
    ]
    if (delays := status.get("delays")) is not None:  # an older daemon does not send them
        budget_s = delays["budget_s"]
        promised = f", {budget_s:,.0f} s are promised" if budget_s else ""
        told.append(("Delay", f"{delays['counted_s']:.0f} s", f"of regular jobs in the last hour{promised}"))
    made = "".join(f"<div><dt>{name}<dd>{figure}<dd class=of>{text(of)}</div>" for name, figure, of in told)
    return f"<dl class=tiles>{made}</dl>"


def trainers(status: Mapping[str, Any], roles: Mapping[str, str]) -> str:
    """Return all trainers, those at work first."""
    listed = sorted(status["trainers"], key=lambda item: (item["state"] == "finished", -item["working"], item["name"]))
    lines = [trainer_line(item, status["time_s"]) for item in listed[:ROWS_MOST]]
    names = shown(_TRAINER_FIELDS, lines, ("account", "ends"))
    rows = []
    for item, line in zip(listed, lines, strict=False):
        cells = {name: text(getattr(line, name)) for name in names}
        cells["name"] = f"<span class=who><i class={roles.get(item['id'], 'none')}></i>{cells['name']}</span>"
        cells["on"] = f"<span class=on>{text(cut(line.on))}</span>"
        rows.append(list(cells.values()))
    head = [_TITLES.get(name, name) for name in names]
    numbers = [at for at, name in enumerate(names) if name in ("nodes", "range", "rate", "step")]
    made = table("Trainers now", head, rows[:ROWS_OPEN], numbers) or "<p class=quiet>No trainer is registered."
    if folded := rows[ROWS_OPEN:]:
        rest = table("More trainers now", head, folded, numbers)
        made += f"<details id=more-trainers><summary>{len(folded)} more trainers</summary>{rest}</details>"
    return made + _more(listed)


def efficiency(picture: str, windows: Sequence[Mapping[str, Any]]) -> str:
    """Return the use of the idle time: a picture over the hours, and a table by window."""
    rows = [
        [
            f"last {period(window['window_s'])}",
            *(percent(window[what], 1) for what in ("training_share", "held_share", "u")),
            *(node_hours(window[f"{what}_node_seconds"]) for what in ("training", "held", "pool")),
        ]
        for window in windows
    ]
    head = ["window", "training", "held", "U", "training h", "held h", "pool h"]
    told = table("Efficiency by window, and node-hours", head, rows, range(1, 7))
    if not told:
        return picture or "<p class=quiet>Nothing was recorded yet."
    told += (
        "<p class=quiet>Of all node time that Slurm left idle and bftd could use: training is that in which workers "
        "made steps, held is all that trainers had, also while they started, were resized or left. "
        "U: what trainers made of it, of what they would make of as many nodes of their own."
    )
    return f"<div class=two>{picture}<div>{told}</div></div>" if picture else told


def usage(told: Mapping[str, Any] | None, hours: int, all_: bool, missing: str = "") -> str:
    """Return node-hours by user."""
    if told is None and missing:
        return f"<p class=quiet>Not known: {text(missing)}"
    if told is None:
        return "<p class=quiet>Who used how much is for those with the token; on a shell <code>bft usage</code> tells."
    total = sum(item["held_node_seconds"] for item in told["usage"])
    rows = []
    for item in told["usage"][:ROWS_MOST]:
        part = item["held_node_seconds"] / total if total else 0
        bar = f'<svg class=bar aria-hidden=true><rect width="{100 * part:.0f}%" height="100%"/></svg>'
        shown = [node_hours(item["training_node_seconds"]), node_hours(item["held_node_seconds"])]
        rows.append([text(item["user"]), *shown, percent(part, 1), *([bar] if all_ else [])])
    head = ["user", "training", "held", "share", *(["of all that was held"] if all_ else [])]
    made = table(f"Node-hours of the last {period(hours * 3600)}, whole hours", head, rows, (1, 2, 3))
    return (made or "<p class=quiet>Nobody had nodes in this time.") + _more(told["usage"])


def shadowed(status: Mapping[str, Any]) -> str:
    """Say what trainers would have made of the idle nodes in shadow mode; "" in any other mode."""
    shadow = status.get("shadow")
    if not shadow:
        return ""
    training_s, idle_s = status["training_node_seconds"], shadow["idle_node_seconds"]
    part = f", {percent(training_s / idle_s, 1)} of the idle time" if idle_s > 0 else ""
    waits = len(shadow["waiting"])
    waiting = (
        f" {counted(waits, 'real trainer')} wait{'' if waits != 1 else 's'} and will get nothing." if waits else ""
    )
    return (
        f"<p>Since {minute(shadow['since_s'])} trainers would have had {node_hours(training_s)} node-hours{part}, and "
        f"{shadow['preemptions']:,} times a job would have taken nodes from one.{text(waiting)}"
    )


def decisions(status: Mapping[str, Any]) -> str:
    """Return the last decisions in words, the newest first."""
    told = [
        f"<li><time>{clock(item['at_s'])}</time> {text(item['text'])}" for item in reversed(list(status["decisions"]))
    ]
    return f"<ol class=said>{''.join(told)}</ol>" if told else "<p class=quiet>No decisions to show."


def nodes(groups: Sequence[Mapping[str, Any]], shadow: bool = False) -> str:
    """Return all nodes now by state, folded, with the reasons; `groups` have state, why, nodes and count."""
    made = []
    for state, says in _STATES.items():
        if shadow and state == "leased":
            says = "would be lent to trainers"
        own = sorted((group for group in groups if group["state"] == state), key=lambda group: -group["count"])
        if not own:
            continue
        number = sum(group["count"] for group in own)
        rows = [
            [f"{group['count']:,}", text(group["why"]), f"<span class=on>{text(group['nodes'])}</span>"]
            for group in own[:REASONS_MOST]
        ]
        if left := own[REASONS_MOST:]:
            rows.append([f"{sum(group['count'] for group in left):,}", "for other reasons: see bft nodes", ""])
        verb = says if number > 1 else says.replace("are ", "is ", 1).replace("run ", "runs ", 1)
        made.append(
            f"<details id=nodes-{state}><summary><i class={state}></i>{number:,} {verb}</summary>"
            f"{table(f'Nodes that {says}', ['nodes', 'why', 'which'], rows, (0,))}</details>"
        )
    return "".join(made) or "<p class=quiet>Slurm was not read yet."


def _more(listed: Sequence[object]) -> str:
    left = len(listed) - ROWS_MOST
    return f"<p class=quiet>{left:,} more are not shown here." if left > 0 else ""
