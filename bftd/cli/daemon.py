"""`bft status` and `bft explain`: asking the running daemon."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from bftd.cli import options
from bftd.errors import BftError, UsageError
from bftd.http import client
from bftd.protocol.fields import printable

# How often the live view asks: the daemon itself looks at Slurm once a second.
WATCH_EVERY_S = 1.0


@click.command()
@options.config
@options.as_json
@click.option("--watch", is_flag=True, help="Show it live until interrupted.")
@click.option("--check", is_flag=True, help="Print one line on how it does and exit 0, 1 (warning) or 2 (critical).")
def status(config_path: str | None, as_json: bool, watch: bool, check: bool) -> None:
    """Show nodes, trainers and the last decisions."""
    if watch and (as_json or check):
        raise UsageError(f"{'--json' if as_json else '--check'} and --watch exclude each other: leave one out")
    if check:
        _check(config_path, as_json)
        return
    daemon = client.find(config_path)
    seen = daemon.status(folded=not as_json)
    if as_json:
        click.echo(json.dumps(seen, indent=2))
    elif watch:
        _watch(daemon, seen)
    else:
        from bftd.cli.common import console
        from bftd.view import render

        console().print(render(seen))


def _check(config_path: str | None, as_json: bool) -> None:
    """Speak as a monitoring plug-in does: on standard output, also of a daemon that cannot be asked."""
    from bftd import health

    try:
        found = health.judged(client.find(config_path).status())
    except BftError as error:
        found = health.unreachable(str(error))
    click.echo(json.dumps(found.to_json()) if as_json else found.line)
    click.get_current_context().exit(found.code)


def _watch(daemon: client.Client, seen: dict[str, Any]) -> None:
    from rich.live import Live

    from bftd.view import render

    with Live(render(seen), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(render(daemon.status(folded=True)), refresh=True)


@click.command()
@click.argument("job")
@click.option("--limit", type=click.IntRange(min=1, max=10_000), default=50, show_default=True, help="Most sentences.")
@options.config
@options.as_json
def explain(job: str, limit: int, config_path: str | None, as_json: bool) -> None:
    """Tell why the trainer JOB grew, stayed or shrank."""
    told = client.find(config_path).explain(job, limit)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    for decision in told["decisions"]:
        click.echo(f"{time.strftime('%F %T', time.localtime(decision['at_s']))}  {printable(decision['text'])}")
    trainer = told["trainer"] or {}
    for what in ("curve", "resize_costs"):
        text = (trainer.get(what) or {}).get("text")  # a daemon of before has none
        if text and trainer["state"] != "finished":
            click.echo(printable(f"{trainer['name']}: {text}"))
