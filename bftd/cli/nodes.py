"""`bft nodes`: what is read from Slurm, without the daemon."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bftd import config
from bftd.cli import options


@click.command()
@options.config
@options.as_json
def nodes(config_path: str | None, as_json: bool) -> None:
    """Show what is read from Slurm: nodes, and with --json also jobs and reservations."""
    from slurm_plugin.client import SlurmClient
    from slurm_plugin.nodeset import fold

    settings = config.load_found(config_path)
    conf = Path(settings.slurm.conf) if settings.slurm.conf else None
    snapshot = SlurmClient(conf, settings.slurm.timeout_s).snapshot()
    if as_json:
        seen = asdict(snapshot)
        seen["nodes"] = list(seen["nodes"].values())
        click.echo(json.dumps(seen, indent=2, default=_plain))
        return
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for node in snapshot.nodes.values():
        state = "+".join((node.state, *sorted(node.flags)))
        groups[state, ",".join(node.partitions), node.gres or "-"].append(node.name)
    rows = [("NODES", "STATE", "PARTITIONS", "GRES")] + [(fold(names), *key) for key, names in groups.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _plain(value: Any) -> Any:
    """Sets as sorted lists: JSON has none."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
