"""`bft nodes`: the nodes as Slurm reports them and, if a daemon answers, the jobs that it keeps nodes for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import BftError
from bftd.cli import common, options
from bftd.config import configuration

if TYPE_CHECKING:
    from bftd.config.keys import Config
    from slurm_plugin.read.types import Node


@click.command()
@options.config
@options.as_json
def nodes(config_path: str | None, as_json: bool) -> None:
    """Show what is read from Slurm: nodes, and with --json also jobs and reservations.

    Where the daemon answers, also for which job it keeps a node, and since when.
    """
    from slurm_plugin.nodeset import fold

    settings = configuration.load_found(config_path)
    snapshot = common.slurm_client(settings).snapshot()
    class_of = _class_of(snapshot.nodes, settings)
    kept = _kept(config_path)
    if as_json:
        seen = asdict(snapshot)
        seen["nodes"] = [
            {**item, "class": class_of.get(name, ""), "kept_for": kept.get(name)}
            for name, item in seen["nodes"].items()
        ]
        common.echo_json(_plain(seen))
        return
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in snapshot.nodes.values():
        state = "+".join((node.state, *sorted(node.flags)))
        whom = _whom(kept[node.name]) if node.name in kept else "-"
        key = (state, ",".join(node.partitions), node.gres or "-", class_of.get(node.name, "-"), whom)
        groups[key].append(node.name)
    from bftd.base.tables import Column

    columns = [
        Column("NODES", least=16, folds=True),
        Column("STATE"),
        Column("PARTITIONS", rank=1, least=12, folds=True),
        Column("GRES", rank=2, least=8, folds=True),
        Column("CLASS", rank=3, least=8),
        Column("KEPT FOR", least=12, folds=True),
    ]
    rows = [(fold(names), *key) for key, names in groups.items()]
    if not kept:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    click.echo("\n".join(common.table(columns, rows)))


def _kept(config_path: str | None) -> dict[str, dict[str, Any]]:
    """Return the nodes that the daemon keeps, each with its job and the time; {} if no daemon answers."""
    from bftd.http import client
    from slurm_plugin.nodeset import expand

    try:
        rooms = client.find(config_path).status(folded=True).get("rooms", ())
    except BftError:
        return {}
    kept = ((room["nodes"], {"job": room["job"], "since_s": room["since_s"]}) for room in rooms)
    return {node: whom for nodes, whom in kept for node in expand(nodes)}


def _whom(kept: Mapping[str, Any]) -> str:
    """Format the job and the time; other users' jobs have no name if Slurm keeps jobs private."""
    job = f"job {kept['job']}" if kept["job"] else "a job"
    return f"{job} since {time.strftime('%H:%M:%S', time.localtime(kept['since_s']))}"


def _class_of(nodes: Mapping[str, Node], settings: Config) -> Mapping[str, str]:
    """Return the class of each harvested node."""
    from bftd.pool.classes import classify

    partitions = settings.slurm.harvested
    harvested = {name: node for name, node in nodes.items() if not set(partitions).isdisjoint(node.partitions)}
    return classify(harvested, settings.pool.class_features, partitions).of_node


def _plain(value: Any) -> Any:
    """Convert sets to sorted lists at any depth: JSON has no sets."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
