"""`bft status`, `bft explain` and `bft tune`: talking to the running daemon."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from bftd import client
from bftd.cli import options
from bftd.errors import UsageError

# How often the live view asks: the daemon itself looks at Slurm once a second.
WATCH_EVERY_S = 1.0


@click.command()
@options.config
@options.as_json
@click.option("--watch", is_flag=True, help="Show it live until interrupted.")
def status(config_path: str | None, as_json: bool, watch: bool) -> None:
    """Show nodes, trainers and the last decisions."""
    if as_json and watch:
        raise UsageError("--json and --watch exclude each other: leave one out")
    daemon = client.find(config_path)
    seen = daemon.status()
    if as_json:
        click.echo(json.dumps(seen, indent=2))
    elif watch:
        _watch(daemon, seen)
    else:
        from bftd.cli.common import console
        from bftd.view import render

        console().print(render(seen))


def _watch(daemon: client.Client, seen: dict[str, Any]) -> None:
    from rich.live import Live

    from bftd.view import render

    with Live(render(seen), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(render(daemon.status()), refresh=True)


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
        click.echo(f"{time.strftime('%F %T', time.localtime(decision['at_s']))}  {decision['text']}")


@click.command()
@click.option("--t-fwd", "t_fwd_s", type=float, metavar="SECONDS", help="Forward-looking time.")
@click.option("--objective", type=click.Choice(["throughput", "efficiency", "priority"]), help="What is maximised.")
@click.option("--pj-max", "pj_max", type=click.IntRange(min=1), metavar="N", help="Trainers considered at once.")
@options.config
@options.as_json
def tune(
    t_fwd_s: float | None, objective: str | None, pj_max: int | None, config_path: str | None, as_json: bool
) -> None:
    """Change the running daemon's settings; they act at once and survive its restart."""
    changes = {"t_fwd_s": t_fwd_s, "objective": objective, "pj_max": pj_max}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise UsageError("give at least one of --t-fwd, --objective and --pj-max")
    settings = client.find(config_path).tune(**given)
    if as_json:
        click.echo(json.dumps(settings))
    else:
        click.echo("  ".join(f"{name}={value}" for name, value in settings.items()))
