"""`bft nodes`: what is read from Slurm, without the daemon."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import click

from bftd import config
from bftd.cli import common, options


@click.command()
@options.config
@options.as_json
def nodes(config_path: str | None, as_json: bool) -> None:
    """Show what is read from Slurm: nodes, and with --json also jobs and reservations."""
    from slurm_plugin.nodeset import fold

    snapshot = common.slurm_client(config.load_found(config_path)).snapshot()
    if as_json:
        seen = asdict(snapshot)
        seen["nodes"] = list(seen["nodes"].values())
        click.echo(json.dumps(seen, indent=2, default=_plain))
        return
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node in snapshot.nodes.values():
        state = "+".join((node.state, *sorted(node.flags)))
        groups[state, ",".join(node.partitions), node.gres or "-"].append(node.name)
    from bftd.tables import Column

    columns = [
        Column("NODES", least=16, folds=True),
        Column("STATE"),
        Column("PARTITIONS", rank=1, least=12, folds=True),
        Column("GRES", rank=2, least=8, folds=True),
    ]
    click.echo("\n".join(common.table(columns, [(fold(names), *key) for key, names in groups.items()])))


def _plain(value: Any) -> Any:
    """Sets as sorted lists: JSON has none."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
