"""The sections of the page, each a function from the API's answers to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bftd.web.words import amount, clock, count, cut, moment, node_hours, share, span, table, text

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


def notices(status: Mapping[str, Any], missing: str = "") -> str:
    """Return alarms and notices, the worst first."""
    bad = [alarm["text"] for alarm in status.get("alarms", ())]
    if missing:
        bad.append(f"there is no history: {missing}")
    if status.get("hold"):
        bad.append(f"nothing grows: {status['hold']}")
    bad += [
        f"no lease stands behind job {job['job_id']} of {job['user']} since {moment(job['since_s'])}"
        for job in status.get("orphan_jobs", ())
    ]
    ledger = status.get("ledger", {})
    if ledger.get("failure"):
        bad.append(ledger["failure"])
    notes = [f"{pause['text']} (since {moment(pause['since_s'])})" for pause in status.get("pauses", ())]
    notes += [item["text"] for item in (status.get("hours"), status.get("bound")) if item and item["text"]]
    notes += [cap["text"] for cap in status.get("caps", ())]
    silent = len(status.get("silent", ()))
    if silent:
        notes.append(f"{silent} driver{'s are' if silent > 1 else ' is'} silent: bft status names them")
    notes += [
        f"bft tune has set {name} = {setting['value']}; the configuration has {setting['file']}"
        for name, setting in status.get("tuned", {}).items()
        if setting["value"] != setting["file"]
    ]
    if ledger.get("full"):
        notes.append(f"the ledger has reached its bound: it has events from {moment(ledger['oldest_event_s'])} on")
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
    cells = [
        ("Nodes", count(total), f"{count(states.get('regular', 0))} run regular jobs"),
        (lent, count(states.get("leased", 0)), f"{count(states.get('idle', 0))} idle in the pool"),
        ("Trainers", count(running), f"{count(len(trainers) - running)} waiting or starting"),
        (
            "Training",
            share(day["training_share"] if day else None),
            f"of idle node time, 24 hours; {share(day['held_share'] if day else None)} held",
        ),
        ("U", share(day["u"] if day else None), "of what as many own nodes make"),
        (
            "Give-back",
            f"{backs['p50']:.2f} s" if backs["count"] else "–",
            f"median of {count(backs['count'])}, {backs['max']:.2f} s at most" if backs["count"] else "none so far",
        ),
    ]
    if (delays := status.get("delays")) is not None:  # an older daemon does not send them
        budget_s = delays["budget_s"]
        promised = f", {budget_s:,.0f} s are promised" if budget_s else ""
        cells.append(("Delay", f"{delays['counted_s']:.0f} s", f"of regular jobs in the last hour{promised}"))
    made = "".join(f"<div><dt>{name}<dd>{figure}<dd class=of>{text(of)}</div>" for name, figure, of in cells)
    return f"<dl class=tiles>{made}</dl>"


def trainers(status: Mapping[str, Any], roles: Mapping[str, str]) -> str:
    """Return all trainers, those at work first."""
    listed = sorted(status["trainers"], key=lambda item: (item["state"] == "finished", -item["working"], item["name"]))
    accounts = any(item.get("account") for item in listed)
    ends = any(item.get("expected_end_s") for item in listed)
    rows = []
    for item in listed[:ROWS_MOST]:
        size = str(item["working"])
        if item["requested"] != item["working"]:
            size += f" → {item['requested']}"
        ended = "" if item["exit_code"] is None else f" ({item['exit_code']})"
        row = [
            f"<span class=who><i class={roles.get(item['id'], 'none')}></i>{text(item['name'])}</span>",
            text(item["user"]),
            *([text(item.get("account") or "")] if accounts else []),
            text(item["state"] + ended),
            size,
            f"{item['nodes_min']}–{item['nodes_max']}",
            amount(item["samples_per_s"]),
            count(item["step"]),
            *([_end(item)] if ends else []),
            f"<span class=on>{text(cut(item.get('on') or ''))}</span>",
        ]
        rows.append(row)
    head = ["trainer", "user", *(["account"] if accounts else []), "state", "nodes", "range", "samples/s", "step"]
    head += [*(["ends"] if ends else []), "on"]
    numbers = [at for at, name in enumerate(head) if name in ("nodes", "range", "samples/s", "step")]
    made = table("Trainers now", head, rows[:ROWS_OPEN], numbers) or "<p class=quiet>No trainer is registered."
    if folded := rows[ROWS_OPEN:]:
        rest = table("More trainers now", head, folded, numbers)
        made += f"<details id=more-trainers><summary>{len(folded)} more trainers</summary>{rest}</details>"
    return made + _more(listed)


def efficiency(picture: str, windows: Sequence[Mapping[str, Any]]) -> str:
    """Return the use of the idle time: a picture over the hours, and a table by window."""
    rows = [
        [
            f"last {span(window['window_s'])}",
            *(share(window[what]) for what in ("training_share", "held_share", "u")),
            *(node_hours(window[f"{what}_node_seconds"]) for what in ("training", "held", "pool")),
        ]
        for window in windows
    ]
    head = ["window", "training", "held", "U", "training h", "held h", "pool h"]
    html = table("Efficiency by window, and node-hours", head, rows, range(1, 7))
    if not html:
        return picture or "<p class=quiet>Nothing was recorded yet."
    html += (
        "<p class=quiet>Of all node time that Slurm left idle and bftd could use: training is that in which workers "
        "made steps, held is all that trainers had, also while they started, were resized or left. "
        "U: what trainers made of it, of what they would make of as many nodes of their own."
    )
    return f"<div class=two>{picture}<div>{html}</div></div>" if picture else html


def usage(data: Mapping[str, Any] | None, hours: int, all_: bool, missing: str = "") -> str:
    """Return node-hours by user."""
    if data is None and missing:
        return f"<p class=quiet>Not known: {text(missing)}"
    if data is None:
        return "<p class=quiet>Who used how much is for those with the token; on a shell <code>bft usage</code> tells."
    total = sum(item["held_node_seconds"] for item in data["usage"])
    rows = []
    for item in data["usage"][:ROWS_MOST]:
        part = item["held_node_seconds"] / total if total else 0
        bar = f'<svg class=bar aria-hidden=true><rect width="{100 * part:.0f}%" height="100%"/></svg>'
        shown = [node_hours(item["training_node_seconds"]), node_hours(item["held_node_seconds"])]
        rows.append([text(item["user"]), *shown, share(part), *([bar] if all_ else [])])
    head = ["user", "training", "held", "share", *(["of all that was held"] if all_ else [])]
    made = table(f"Node-hours of the last {span(hours * 3600)}, whole hours", head, rows, (1, 2, 3))
    return (made or "<p class=quiet>Nobody had nodes in this time.") + _more(data["usage"])


def shadowed(status: Mapping[str, Any]) -> str:
    """Say what trainers would have made of the idle nodes in shadow mode; "" in any other mode."""
    shadow = status.get("shadow")
    if not shadow:
        return ""
    training_s, idle_s = status["training_node_seconds"], shadow["idle_node_seconds"]
    part = f", {share(training_s / idle_s)} of the idle time" if idle_s > 0 else ""
    waits = len(shadow["waiting"])
    waiting = (
        f" {count(waits)} real trainer{'s wait' if waits != 1 else ' waits'} and will get nothing." if waits else ""
    )
    return (
        f"<p>Since {moment(shadow['since_s'])} trainers would have had {node_hours(training_s)} node-hours{part}, and "
        f"{count(shadow['preemptions'])} times a job would have taken nodes from one.{text(waiting)}"
    )


def decisions(status: Mapping[str, Any]) -> str:
    """Return the last decisions in words, the newest first."""
    items = [
        f"<li><time>{clock(item['at_s'])}</time> {text(item['text'])}" for item in reversed(list(status["decisions"]))
    ]
    return f"<ol class=said>{''.join(items)}</ol>" if items else "<p class=quiet>No decisions to show."


def nodes(groups: Sequence[Mapping[str, Any]], shadow: bool = False) -> str:
    """Return all nodes now by state, folded, with the reasons; `groups` have state, why, nodes and count."""
    made = []
    for state, description in _STATES.items():
        if shadow and state == "leased":
            description = "would be lent to trainers"
        own = sorted((group for group in groups if group["state"] == state), key=lambda group: -group["count"])
        if not own:
            continue
        number = sum(group["count"] for group in own)
        rows = [
            [count(group["count"]), text(group["why"]), f"<span class=on>{text(group['nodes'])}</span>"]
            for group in own[:REASONS_MOST]
        ]
        if left := own[REASONS_MOST:]:
            rows.append([count(sum(group["count"] for group in left)), "for other reasons: see bft nodes", ""])
        verb = description if number > 1 else description.replace("are ", "is ", 1).replace("run ", "runs ", 1)
        made.append(
            f"<details id=nodes-{state}><summary><i class={state}></i>{count(number)} {verb}</summary>"
            f"{table(f'Nodes that {description}', ['nodes', 'why', 'which'], rows, (0,))}</details>"
        )
    return "".join(made) or "<p class=quiet>Slurm was not read yet."


def _end(item: Mapping[str, Any]) -> str:
    return moment(item["expected_end_s"]) if item.get("expected_end_s") else "–"


def _more(listed: Sequence[object]) -> str:
    left = len(listed) - ROWS_MOST
    return f"<p class=quiet>{count(left)} more are not shown here." if left > 0 else ""
