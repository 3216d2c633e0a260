"""`bft nodes`: the nodes as Slurm reports them and, if a daemon answers, the jobs that it earmarks nodes for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from bftd import config_file
from bftd.base.errors import BftError
from bftd.base.format import clock
from bftd.cli import common, options

if TYPE_CHECKING:
    from bftd.config.keys import Config
    from slurm_plugin.read.types import Node


@click.command()
@options.config
@options.as_json
def nodes(config_path: str | None, as_json: bool) -> None:
    """Show what is read from Slurm: nodes, and with --json also jobs and reservations.

    Where the daemon answers, also for which job it has earmarked a node, and since when.
    """
    from slurm_plugin.nodeset import fold

    settings = config_file.load_found(config_path)
    snapshot = common.slurm_client(settings).snapshot()
    class_of = _class_of(snapshot.nodes, settings)
    earmarked = _earmarked(config_path)
    if as_json:
        seen = asdict(snapshot)
        seen["nodes"] = [
            {**item, "class": class_of.get(name, ""), "earmarked_for": earmarked.get(name)}
            | {"kept_for": earmarked.get(name)}  # the old name, until 1.1
            for name, item in seen["nodes"].items()
        ]
        common.echo_json(_plain(seen))
        return
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in snapshot.nodes.values():
        state = "+".join((node.state, *sorted(node.flags)))
        whom = _whom(earmarked[node.name]) if node.name in earmarked else "-"
        key = (state, ",".join(node.partitions), node.gres or "-", class_of.get(node.name, "-"), whom)
        groups[key].append(node.name)
    from bftd.base.tables import Column

    columns = [
        Column("NODES", least=16, folds=True),
        Column("STATE"),
        Column("PARTITIONS", rank=1, least=12, folds=True),
        Column("GRES", rank=2, least=8, folds=True),
        Column("CLASS", rank=3, least=8),
        Column("EARMARKED FOR", least=12, folds=True),
    ]
    rows = [(fold(names), *key) for key, names in groups.items()]
    if not earmarked:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    click.echo("\n".join(common.table(columns, rows)))


def _earmarked(config_path: str | None) -> dict[str, dict[str, Any]]:
    """Return the nodes that the daemon has earmarked, each with its job and the time; {} if no daemon answers."""
    from bftd import api_client
    from slurm_plugin.nodeset import expand

    try:
        earmarks = api_client.find(config_path).status(folded=True).get("earmarks", ())
    except BftError:
        return {}
    kept = ((earmark["nodes"], {"job": earmark["job"], "since_s": earmark["since_s"]}) for earmark in earmarks)
    return {node: whom for nodes, whom in kept for node in expand(nodes)}


def _whom(earmark: Mapping[str, Any]) -> str:
    """Format the job and the time; other users' jobs have no name if Slurm keeps jobs private."""
    job = f"job {earmark['job']}" if earmark["job"] else "a job"
    return f"{job} since {clock(earmark['since_s'])}"


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
