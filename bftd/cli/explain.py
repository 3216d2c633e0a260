"""`bft explain`."""

from __future__ import annotations

import time

import click

from bftd.cli import common, options
from bftd.http import client
from bftd.protocol.fields import printable


@click.command()
@click.argument("job")
@click.option("--limit", type=click.IntRange(min=1, max=10_000), default=50, show_default=True, help="Most sentences.")
@options.config
@options.as_json
def explain(job: str, limit: int, config_path: str | None, as_json: bool) -> None:
    """Tell why the trainer JOB grew, stayed or shrank."""
    told = client.find(config_path).explain(job, limit)
    if as_json:
        common.echo_json(told)
        return
    for decision in told["decisions"]:
        click.echo(f"{time.strftime('%F %T', time.localtime(decision['at_s']))}  {printable(decision['text'])}")
    trainer = told["trainer"] or {}
    for what in ("curve", "resize_costs"):
        text = (trainer.get(what) or {}).get("text")  # a daemon of before has none
        if text and trainer["state"] != "finished":
            click.echo(printable(f"{trainer['name']}: {text}"))
