"""The sections of the page, each a function from the API's answers to HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bftd.base.format import UNKNOWN, clock, counted, minute, node_hours, percent, period
from bftd.base.view import TrainerLine, alarms, shown, state_rank, trainer_line, warnings
from bftd.web.html import cut, link, table, text

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
# The class of the colour of a state, unless that is its own name.
_COLOURS = {"leased": "held"}
_TRAINER_FIELDS = ("name", "user", "account", "state", "nodes", "range", "rate", "step", "ends", "on")
_USES = {
    "held": "held: pilots had the nodes, also while trainers started, were resized or left",
    "training": "training: workers made steps",
    "recovered": "recovered: U, the worth of training in nodes of one's own",
}
_TITLES = {"name": "trainer", "rate": "samples/s"}


# Characters of a tile's figure that fit beside each other in large letters.
_LONG = 7
_TAG = re.compile(r"<[^>]*>")
# Nodes with a link each; of more, the set is shown.
LINKS_MOST = 24


def joined(parts: Iterable[tuple[str, str, str]]) -> str:
    """Return sections with an id, a title and HTML each."""
    return "".join(
        f"<section id={id_} aria-labelledby=h-{id_}><h2 id=h-{id_}>{title}</h2>{part}</section>"
        for id_, title, part in parts
    )


def tiled(told: Iterable[tuple[str, str, str]]) -> str:
    """Return tiles, each a name, a figure as HTML, and what it is of."""
    made = "".join(
        f"<div><dt>{name}<dd{' class=long' if len(_TAG.sub('', figure)) > _LONG else ''}>{figure}"
        f"<dd class=of>{text(of)}</div>"
        for name, figure, of in told
    )
    return f"<dl class=tiles>{made}</dl>"


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
            f"of idle node time, 24 hours; {percent(day['held_share'], 1)} held"
            if day and day["held_share"] is not None
            else "no node was idle so far",
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
    return tiled(told)


def nothing_recorded(status: Mapping[str, Any]) -> str:
    """Say since when anything is recorded, and what to do."""
    oldest_s = status["ledger"].get("oldest_event_s")
    since = f" The ledger has events since {minute(oldest_s)}." if oldest_s is not None else ""
    return (
        f"<p class=quiet>Nothing was recorded in this time.{since} A daemon records a point about once a minute, from "
        "its first look at Slurm on: look again in a minute, or choose a longer time."
    )


def trainers(status: Mapping[str, Any], roles: Mapping[str, str]) -> str:
    """Return all trainers: those that run first, then those that wait; those that ended are folded."""
    ordered = sorted(status["trainers"], key=lambda item: (state_rank(item["state"]), -item["working"], item["name"]))
    listed = ordered[:ROWS_MOST]
    lines = [trainer_line(item, status["time_s"]) for item in listed]
    names = shown(_TRAINER_FIELDS, lines, ("account", "ends"))
    live = [_row(line, names, roles) for item, line in zip(listed, lines, strict=True) if item["state"] != "finished"]
    ended = [_row(line, names, roles) for line in lines[len(live) :]]
    head = [_TITLES.get(name, name) for name in names]
    numbers = [at for at, name in enumerate(names) if name in ("nodes", "range", "rate", "step")]
    made = table("Trainers now", head, live[:ROWS_OPEN], numbers)
    if not made:
        what = "No trainer wants nodes now." if ended else "No trainer is registered."
        made = (
            f"<p class=quiet>{what} A script becomes one with <code>bft sbatch --elastic=1-4 train.py</code>; "
            "<code>bft sbatch --help</code> tells more."
        )
    for id_, what, rows in (("more-trainers", "more trainers", live[ROWS_OPEN:]), ("ended", "ended trainers", ended)):
        if rows:
            rest = table(what.capitalize(), head, rows, numbers)
            number = f"{len(rows)} {what if len(rows) > 1 else what[:-1]}"
            made += f"<details id={id_}><summary>{number}</summary>{rest}</details>"
    return made + _more(ordered)


def _row(line: TrainerLine, names: Sequence[str], roles: Mapping[str, str]) -> list[str]:
    cells = {name: text(getattr(line, name)) for name in names}
    name = cells["name"] if line.id == UNKNOWN else link("trainers", line.id, line.name)
    cells["name"] = f"<span class=who><i class={roles.get(line.id, 'none')}></i><span>{name}</span></span>"
    cells["on"] = f"<span class=on>{text(cut(line.on))}</span>"
    return list(cells.values())


def efficiency(picture: str, windows: Sequence[Mapping[str, Any]]) -> str:
    """Return the use of the idle time: a picture over the hours, and a table by window."""
    rows = []
    for window in windows:
        shares = (window["held_share"], window["training_share"], window["u"])
        cells = [f"{percent(share, 1)}{_bar(role, share)}" for role, share in zip(_USES, shares, strict=True)]
        cells += [node_hours(window[f"{what}_node_seconds"]) for what in ("held", "training", "pool")]
        rows.append([f"last {period(window['window_s'])}", *cells])
    head = ["window", *_USES, "held h", "training h", "pool h"]
    told = table("Efficiency by window, and node-hours", head, rows, range(1, 7))
    if not told:
        return picture or "<p class=quiet>Nothing was recorded yet: a daemon records from its first look at Slurm on."
    legend = "".join(f"<li><i class={role}></i>{says}" for role, says in _USES.items())
    legend = f"<ul class=legend>{legend}</ul>"
    told += (
        "<p class=quiet>Held and training are shares of all node time that Slurm left idle and bftd could use. "
        "Recovered is U: what trainers made of it, of what they would make of as many nodes of their own."
    )
    return legend + picture + told


def _bar(role: str, share: float | None) -> str:
    width = f"{100 * min(1.0, share or 0):.0f}%"
    return f'<svg class=bar aria-hidden=true><rect class={role} width="{width}" height="100%"/></svg>'


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
        bar = _bar("held", part)
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


def decisions(told: Sequence[Mapping[str, Any]], dated: bool = False) -> str:
    """Return decisions in words, the newest first; `dated` if they may be of several days."""
    at = minute if dated else clock
    lines = [f"<li><time>{at(item['at_s'])}</time> {text(item['text'])}" for item in reversed(told)]
    if not lines:
        return "<p class=quiet>No decisions to show."
    return f"<ol class='said{' dated' if dated else ''}'>{''.join(lines)}</ol>"


def nodes(status: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], place: str) -> str:
    """Return all nodes now by state, folded, with the reasons.

    `groups` have `state`, `why`, `nodes` (folded), `count` and, if they are few, their `names`.
    """
    made = []
    for state, says in _STATES.items():
        if status["mode"] == "shadow" and state == "leased":
            says = "would be lent to trainers"
        own = sorted((group for group in groups if group["state"] == state), key=lambda group: -group["count"])
        if not own:
            continue
        number = sum(group["count"] for group in own)
        rows = [[f"{group['count']:,}", text(group["why"]), _which(group)] for group in own[:REASONS_MOST]]
        if left := own[REASONS_MOST:]:
            rows.append([f"{sum(group['count'] for group in left):,}", "for other reasons: see bft nodes", ""])
        verb = says if number > 1 else says.replace("are ", "is ", 1).replace("run ", "runs ", 1)
        made.append(
            f"<details id=nodes-{state}><summary><i class={_COLOURS.get(state, state)}></i>{number:,} {verb}</summary>"
            f"{table(f'Nodes that {says}', ['nodes', 'why', 'which'], rows, (0,))}</details>"
        )
    if made:
        return "".join(made)
    if status["snapshot_age_s"] is None:
        return "<p class=quiet>Slurm was not read yet: the log of bftd tells why, if that lasts."
    return (
        f"<p class=quiet>No node is harvested: Slurm shows none in the partition {text(place)}, which "
        "<code>[slurm] partition</code> in the configuration of bftd names. <code>bft site check</code> tells more."
    )


def _which(group: Mapping[str, Any]) -> str:
    names = group.get("names") or ()
    which = ", ".join(link("nodes", name) for name in names) if names else text(group["nodes"])
    return f"<span class=on>{which}</span>"


def _more(listed: Sequence[object]) -> str:
    left = len(listed) - ROWS_MOST
    return f"<p class=quiet>{left:,} more are not shown here." if left > 0 else ""
