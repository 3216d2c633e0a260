"""`bft top`: the live screen of the daemon."""

from __future__ import annotations

import io
import os
import sys

import click

from bftd.base.errors import UsageError
from bftd.cli import options


@click.command()
@click.option("--ascii", "plain", is_flag=True, help="Draw with ASCII characters alone.")
@options.config
def top(plain: bool, config_path: str | None) -> None:
    """Show nodes, trainers and decisions live; keys pause, tune and explain.

    It needs a terminal, 80 x 24 or larger; over ssh and without a mouse too. $NO_COLOR takes the colours away.
    """
    term = os.environ.get("TERM", "")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)) or term in ("", "dumb"):
        raise UsageError("top needs a terminal: `bft status` prints what is there, `bft status --json` for programs")
    from bftd.client import Client
    from bftd.ui.live import app, glyphs

    client = Client(config=config_path)
    client.status()  # report errors that exist from the start on a line, not on the screen
    suited = glyphs.ASCII if plain else glyphs.suited(sys.stdout.encoding, term)
    if suited.plain and isinstance(sys.__stderr__, io.TextIOWrapper):
        # the screen is written to stderr: replace letters that the terminal lacks instead of escaping them
        sys.__stderr__.reconfigure(errors="replace")
    ended = app.screen(client, suited)
    ended.run()
    sys.exit(ended.return_code)
