"""`bft size tune`: the fastest split of each stage of a cell, of which few are measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.cli import common, options, size_inventory
from bftd.errors import UsageError

if TYPE_CHECKING:
    from sizing.cells.search_log import Replay

_ROWS = 12


@click.command()
@click.option("--search-log", "log", metavar="FILE.csv", help="Replay the tuner on a recorded search of every plan.")
@options.as_json
def tune(log: str | None, as_json: bool) -> None:
    """Find the fastest split of a stage's GPUs into data and tensor parallelism.

    With --search-log nothing is run: the log says how long each plan takes, and the tuner sees only those it asks for.
    """
    if log is None:
        raise UsageError("name a recorded search by --search-log FILE.csv")
    from sizing.cells import search_log

    name = "standard input" if log == "-" else Path(log).name
    replays = search_log.replay(search_log.parse(size_inventory.text_of(log), name))
    if as_json:
        click.echo(json.dumps(search_log.to_json(replays), indent=2))
    else:
        common.echo(_shown(replays))


def _shown(replays: tuple[Replay, ...]) -> Iterable[str]:
    """The cells that the tuner did worst at, and what holds of all."""
    from bftd.tables import Column
    from sizing.cells import search_log

    feasible = [each for each in replays if each.accuracy is not None]
    columns = [
        Column("LAYERS"),
        Column("GPUS", right=True),
        Column("BEST S", right=True),
        Column("TUNED S", right=True),
        Column("SPLIT"),
        Column("ACCURACY", right=True),
        Column("TRIED", right=True),
    ]
    worst = sorted(feasible, key=lambda each: (each.accuracy, -each.cell.gpus))[:_ROWS]
    if worst:
        yield from common.table(columns, [_row(each) for each in worst])
    if len(feasible) > len(worst):
        yield f"and {len(feasible) - len(worst)} cells that are no worse (--json has them)"
    scores = search_log.accuracies(replays)
    tried, there = (sum(getattr(each.tuned, name) for each in replays) for name in ("tried", "candidates"))
    if scores:
        mean = sum(scores) / len(scores)
        yield f"tuned plans: {mean:.1%} of the best on average, {min(scores):.1%} in the worst cell"
    yield (
        f"{len(replays)} cells, {len(feasible)} of them feasible, {search_log.missed(replays)} of these missed; "
        f"{tried} of {there} splits tried"
    )


def _row(each: Replay) -> tuple[str, ...]:
    tuned = each.tuned
    return (
        f"{each.cell.first_layer}-{each.cell.last_layer}",
        str(each.cell.gpus),
        f"{each.best_s:.4g}",
        "missed" if tuned.time_s is None else f"{tuned.time_s:.4g}",
        "" if tuned.best is None else f"dp{tuned.best.dp} tp{tuned.best.tp}",
        f"{each.accuracy:.1%}",
        f"{tuned.tried} of {tuned.candidates}",
    )
