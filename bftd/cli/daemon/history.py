"""`bft history`: the use of the nodes by the hour or day, and the events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from bftd import api_client
from bftd.base.errors import ApiError, BftError, UsageError
from bftd.base.format import minute, percent, period
from bftd.base.view import NODE_STATES
from bftd.cli import common, options, times

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
# For longer times, a row is a day unless --step is given.
_BY_DAY_S = 3 * _DAY_S
# The name for held node-seconds that older daemons send too.
_SUMS = ("pool_node_seconds", "training_node_seconds", "used_node_seconds")
# Older daemons do not send these.
_DELAYS = ("regular_starts", "regular_delay_seconds")
# Events per request.
_EVENTS = 5_000


@click.command()
@times.option("--since", "since_s", help="From then on [now-1day].")
@times.option("--until", "until_s", help="Up to then [now].")
@times.span("--step", "step_s", help="A row for each such time [1hour, of more than three days 1day].")
@click.option("--events", "as_events", is_flag=True, help="What happened, in sentences, in place of the table.")
@options.config
@options.as_json
def history(
    since_s: float | None,
    until_s: float | None,
    step_s: float | None,
    as_events: bool,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Show what the nodes did over time: how many ran jobs, were lent or idle, and what was made of the pool.

    TOUCHED are the starts of regular jobs where pilots were, DELAY-S the seconds that pilots delayed them by.

    A day is kept by the minute, a month by ten minutes. --events tells what happened instead: all of it to
    administrators, what concerns their own trainers to others.
    """
    now_s = time.time()
    until_s = now_s if until_s is None else until_s
    since_s = min(until_s, now_s) - _DAY_S if since_s is None else since_s
    if since_s >= until_s:
        raise UsageError("--since must be earlier than --until, which is now by default")
    if as_events and step_s is not None:
        raise UsageError("--events has no --step: leave one of them out")
    daemon = api_client.find(config_path)
    if as_events:
        events = _events(daemon, since_s, until_s)
        if as_json:
            common.echo_json({"events": list(events)})
        else:
            common.echo(_lines(daemon, events))
        return
    by_day = step_s is None and until_s - since_s > _BY_DAY_S
    if step_s is None:
        step_s = _HOUR_S
        since_s = times.moment("midnight", since_s) if by_day else since_s
    reply = _answer(daemon, since_s, until_s, step_s, with_trainers=as_json and not by_day)
    if as_json:
        common.echo_json(reply)
        return
    common.echo(_table(reply, by_day))


def _answer(
    daemon: api_client.ApiClient, since_s: float, until_s: float, step_s: float, *, with_trainers: bool
) -> dict[str, Any]:
    try:
        return daemon.history(since_s, until_s, step_s, trainers=with_trainers)
    except ApiError as error:
        if error.status == 404:
            raise BftError("the daemon is older than this bft and keeps no history: bring it up to date") from None
        raise


@dataclass
class _Row:
    """One row of the table: covered seconds, node-seconds by state, seconds of running trainers, and sums."""

    covered_s: float = 0.0
    nodes: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NODE_STATES, 0.0))
    running: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*_SUMS, *_DELAYS), 0.0))

    def add(self, point: Mapping[str, Any]) -> None:
        """Add one step of the history."""
        covered_s = point["covered_s"]
        self.covered_s += covered_s
        self.running += covered_s * point["running"]
        for state in NODE_STATES:
            self.nodes[state] += covered_s * point["nodes"].get(state, 0)
        for name in _SUMS:
            self.sums[name] += point[name]
        for name in _DELAYS:
            self.sums[name] += point.get(name, 0)

    def cells(self, title: str, delays: bool) -> tuple[str, ...]:
        """Return the cells of the row, with the delays if the daemon sends them."""
        pool_s, *parts_s = (self.sums[name] for name in _SUMS)
        return (
            title,
            *(f"{self.nodes[state] / self.covered_s:,.0f}" for state in NODE_STATES),
            *(f"{self.sums[name] / _HOUR_S:,.1f}" for name in _SUMS),
            *(percent(part_s / pool_s if pool_s > 0 else None, 1) for part_s in parts_s),
            f"{self.running / self.covered_s:.1f}",
            *(f"{self.sums[name]:,.0f}" for name in (_DELAYS if delays else ())),
        )


def _table(reply: Mapping[str, Any], by_day: bool) -> Iterable[str]:
    from bftd.base.tables import Column

    columns = [Column("TIME")]
    columns += [Column(name, rank=2, right=True) for name in ("REGULAR", "PLANNED", "LEASED", "IDLE", "AWAY")]
    columns += [Column("POOL-H", right=True), Column("TRAINING-H", right=True), Column("HELD-H", rank=1, right=True)]
    columns += [Column("TRAINING", right=True), Column("HELD", right=True), Column("TRAINERS", rank=3, right=True)]
    delays = any(name in point for point in reply["points"] for name in _DELAYS)
    if delays:
        columns += [Column("TOUCHED", rank=2, right=True), Column("DELAY-S", rank=1, right=True)]
    rows: dict[str, _Row] = {}
    total = _Row()
    for point in reply["points"]:
        rows.setdefault(minute(point["at_s"])[: 10 if by_day else None], _Row()).add(point)
        total.add(point)
    if not rows:
        yield "there is no history of that time: it is kept for 30 days, while the daemon runs"
        return
    cells = [row.cells(title, delays) for title, row in rows.items()]
    if len(rows) > 1:
        cells.append(total.cells("total", delays))
    yield from common.table(columns, cells)
    yield from _windows(reply["windows"])


def _windows(windows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one line with the efficiency U of each window, if known."""
    known = [
        f"{window['u']:.2f} in the last {period(window['window_s'])}" for window in windows if window["u"] is not None
    ]
    if known:
        yield f"U, the share of what as many dedicated nodes would make: {', '.join(known)}"


def _events(daemon: api_client.ApiClient, since_s: float, until_s: float) -> Iterator[dict[str, Any]]:
    """Yield all events of that time, oldest first."""
    after, more = 0, True
    while more:
        events = daemon.events(after, _EVENTS, since_s)
        more = bool(events)
        for event in events:
            after = event["rowid"]
            if event["at_s"] > until_s:
                return
            if event["at_s"] >= since_s:  # an older daemon ignores the start time
                yield event


def _lines(daemon: api_client.ApiClient, events: Iterable[dict[str, Any]]) -> Iterator[str]:
    from bftd.ui.events import sentences

    try:
        names = {trainer["id"]: trainer["name"] for trainer in daemon.trainers(every=True)["trainers"]}
    except ApiError:  # an older daemon does not list them
        names = {}
    return (f"{at}  {text}" for at, text in sentences(events, names))
