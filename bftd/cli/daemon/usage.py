"""`bft usage`: node-hours of the pool by user and account."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from bftd import api_client
from bftd.base.errors import UsageError
from bftd.base.format import minute
from bftd.cli import common, options, times

_HOUR_S = 3600.0


@click.command()
@times.option("--since", "since_s", help="From then on, in whole hours [today].")
@times.option("--until", "until_s", help="Up to then [now].")
@click.option("--user", "by_user", is_flag=True, help="A row a user; the default.")
@click.option("--account", "by_account", is_flag=True, help="A row an account; with --user a row for each of both.")
@options.config
@options.as_json
def usage(
    since_s: float | None,
    until_s: float | None,
    by_user: bool,
    by_account: bool,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Tell how many node-hours of the pool users or accounts trained on, and how many they held.

    Administrators see everybody's, others their own. Hours are kept for 400 days.
    """
    now_s = time.time()
    since_s = times.moment("today", now_s) if since_s is None else since_s
    until_s = now_s if until_s is None else until_s
    if since_s >= until_s:
        raise UsageError("--since must be earlier than --until, which is now by default")
    by = [name for name, wanted in (("user", by_user), ("account", by_account)) if wanted] or ["user"]
    reply = api_client.find(config_path).usage(since_s, until_s, by)
    if as_json:
        common.echo_json(reply)
    else:
        click.echo("\n".join(_table(by, reply)))


def _table(by: Sequence[str], reply: Mapping[str, Any]) -> Iterable[str]:
    from bftd.base.tables import Column

    columns = [Column(name.upper(), least=8) for name in by]
    columns += [Column("TRAINING-H", right=True), Column("HELD-H", right=True), Column("LEAVING-H", rank=1, right=True)]
    # The name for held node-seconds that older daemons send too.
    names = ("training_node_seconds", "used_node_seconds", "leaving_node_seconds")
    rows = [
        (*(row[name] or "-" for name in by), *(f"{row[name] / _HOUR_S:,.1f}" for name in names))
        for row in reply["usage"]
    ]
    sums = (sum(row[name] for row in reply["usage"]) / _HOUR_S for name in names)
    total = (*("total" if place == 0 else "" for place in range(len(by))), *(f"{hours:,.1f}" for hours in sums))
    yield f"{minute(reply['since_s'])} to {minute(reply['until_s'])}"
    yield from common.table(columns, [*rows, total] if rows else [])
    if reply["first_s"] is not None and reply["first_s"] > reply["since_s"]:
        yield f"usage is known from {minute(reply['first_s'])} on"
