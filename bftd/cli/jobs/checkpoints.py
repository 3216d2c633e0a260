"""`bft checkpoints`: the checkpoints of the user's own trainers, read from their folder without asking a daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from bftd.base import format
from bftd.base.errors import UsageError
from bftd.cli import common, options, times

if TYPE_CHECKING:
    from pathlib import Path

    from elastic.store.catalogue import Entry


@click.group()
def checkpoints() -> None:
    """Show and remove the checkpoints of your trainers, in $BFT_STATE_DIR, $XDG_STATE_HOME/bft or ~/.local/state/bft.

    --elastic=...,resume=JOBID goes on from one of them in a new job.
    """


@checkpoints.command()
@options.as_json
def ls(as_json: bool) -> None:
    """List checkpoints, the newest last."""
    root = _swept()
    from elastic.store import catalogue

    found = sorted(catalogue.entries(root), key=lambda entry: entry.changed_s)
    if as_json:
        listed = [_facts(entry) for entry in found]
        # Until 1.1, `states` and `by_path` are the old names of `checkpoints` and `distributed_folder`.
        common.echo_json({"folder": str(root), "checkpoints": listed, "states": listed})
    else:
        common.echo(_table(found))


@checkpoints.command()
@click.argument("ids", nargs=-1, metavar="[ID|NAME...]")
@click.option("--ended", is_flag=True, help="Those of trainers that ended well.")
@times.option("--older-than", "before_s", help="Those last saved before then, of trainers that do not run.")
@click.option("--force", is_flag=True, help="Also where a driver on another host has not said that it ended.")
def rm(ids: tuple[str, ...], ended: bool, before_s: float | None, force: bool) -> None:
    """Remove checkpoints, by the ids or names that `bft checkpoints ls` shows; never one of a trainer that runs."""
    if not (ids or ended or before_s is not None):
        raise UsageError(
            "name the checkpoints to remove, or say --ended or --older-than; `bft checkpoints ls` shows them"
        )
    if ids and (ended or before_s is not None):
        raise UsageError("ids exclude --ended and --older-than: call it once for each")
    root = _swept()
    from elastic.base.errors import ElasticError
    from elastic.store import catalogue

    known = catalogue.entries(root)
    chosen = _named(known, ids) if ids else _matching(known, ended, before_s)
    failures = []
    for entry in chosen:
        try:
            left = catalogue.remove(root, entry, force=force)
            note = f"; its files in {left} are not seen from this host: remove them where they are" if left else ""
            click.echo(f"removed {entry.name}{note}")
        except ElasticError as error:
            failures.append(error)
    for failure in failures[:-1]:
        click.echo(f"bft: {failure}", err=True)
    if failures:
        raise failures[-1]


def _swept() -> Path:
    """Return the folder of all checkpoints, after deleting those that were kept long enough."""
    from elastic.store import catalogue

    root = catalogue.root_of(os.environ)
    catalogue.sweep(root, time.time())
    return root


def _named(known: Iterable[Entry], ids: tuple[str, ...]) -> list[Entry]:
    """Return the entries with these ids, full or short, or trainers' names, each of one alone; raises UsageError."""
    chosen = []
    for text in dict.fromkeys(ids):
        found = [entry for entry in known if text == str(entry.name)]
        found = found or [entry for entry in known if entry.name.means(text)]
        found = found or [entry for entry in known if text and text == entry.owner.title]
        if not found:
            raise UsageError(f"there is no checkpoint {text}; `bft checkpoints ls` shows yours")
        if len(found) > 1:
            names = ", ".join(str(entry.name) for entry in found)
            raise UsageError(f"{text} may be any of {names}: name the one that is meant")
        chosen += found
    return chosen


def _matching(known: Iterable[Entry], ended: bool, before_s: float | None) -> list[Entry]:
    return [
        entry
        for entry in known
        if not (entry.running or entry.problem)
        and (not ended or entry.state == "ended")
        and (before_s is None or entry.changed_s < before_s)
    ]


def _facts(entry: Entry) -> dict[str, Any]:
    newest = entry.newest
    return {
        "id": entry.name.id,
        "cluster": entry.name.cluster or None,
        "folder": str(entry.name),
        "name": entry.owner.title or None,
        "state": entry.state,
        "problem": entry.problem or None,
        "step": newest.step if newest else None,
        "samples": newest.samples if newest else None,
        "size_bytes": entry.size_bytes,
        "distributed_folder": entry.home or None,
        "by_path": entry.home or None,
        "set_aside": entry.aside,
        "saved_s": entry.changed_s or None,
        "kept_until_s": entry.name.at_s if entry.state == "ended" else None,
    }


def _table(found: Iterable[Entry]) -> Iterable[str]:
    from bftd.base.tables import Column

    columns = [
        Column("ID", least=12, folds=True),
        Column("NAME", rank=3, least=8),
        Column("STATE", least=10, folds=True),
        Column("STEP", right=True),
        Column("SIZE", rank=1, right=True),
        Column("WHERE", rank=4, least=8),
        Column("AGE", rank=2, right=True),
    ]
    now_s = time.time()
    return common.table(columns, [_row(entry, now_s) for entry in found])


def _row(entry: Entry, now_s: float) -> tuple[str, ...]:
    name = entry.name
    shown = str(name) if name.mark == "earlier" else name.shown
    state = entry.state
    if entry.problem:
        state = f"unreadable: {entry.problem}"
    elif state == "ended":
        state = f"ended, kept until {format.minute(name.at_s)}"
    step = str(entry.newest.step) if entry.newest else "-"
    age = format.span(now_s - entry.changed_s) if entry.changed_s else "-"
    where = entry.home or "-"
    return shown, entry.owner.title or "-", state, step, format.size(entry.size_bytes), where, age
