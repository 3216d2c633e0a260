"""`bft status`: the state of nodes and trainers, once, live, or for a monitoring plug-in."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from bftd import api_client
from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options

# Interval of the live view: the daemon itself looks at Slurm once a second.
WATCH_EVERY_S = 1.0


@click.command()
@options.config
@options.as_json
@click.option("--watch", is_flag=True, help="Show it live until interrupted; in a pipe once a second.")
@click.option("-a", "--all", "every", is_flag=True, help="Also each trainer that ended.")
@click.option("--check", is_flag=True, help="Print one line on how it does and exit 0, 1 (warning) or 2 (critical).")
def status(config_path: str | None, as_json: bool, watch: bool, every: bool, check: bool) -> None:
    """Show nodes, trainers and the last decisions."""
    if watch and (as_json or check):
        raise UsageError(f"{'--json' if as_json else '--check'} and --watch exclude each other: leave one out")
    if as_json or check:
        options.refuse_idle(("every",), "is for the view: --json has every trainer")
    if check:
        _check(config_path, as_json)
        return
    daemon = api_client.find(config_path)
    seen = daemon.status(folded=not as_json)
    if as_json:
        common.echo_json(seen)
    elif watch:
        _watch(daemon, seen, every)
    else:
        from bftd.ui.status import render

        common.draw(render(seen, every))


def _check(config_path: str | None, as_json: bool) -> None:
    """Print the result for a monitoring plug-in on standard output, even if the daemon does not answer."""
    from bftd.base import health

    try:
        found = health.judged(api_client.find(config_path).status())
    except BftError as error:
        found = health.unreachable(str(error))
    if as_json:
        common.echo_json(found.to_json())
    else:
        common.echo([found.line])
    click.get_current_context().exit(found.code)


def _watch(daemon: api_client.ApiClient, seen: dict[str, Any], every: bool) -> None:
    """Draw the view each second, in a pipe or file one below the other."""
    from bftd.ui.status import render

    if not sys.stdout.isatty():
        while True:
            common.draw(render(seen, every))
            click.echo()
            time.sleep(WATCH_EVERY_S)
            seen = daemon.status(folded=True)
    from rich.live import Live

    with Live(render(seen, every), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(render(daemon.status(folded=True), every), refresh=True)
