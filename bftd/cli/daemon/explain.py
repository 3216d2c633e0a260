"""`bft explain`: why a trainer has its nodes, or why a node is or is not lent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from bftd import api_client
from bftd.base.errors import ApiError, BftError, UsageError
from bftd.base.format import moment
from bftd.base.view import node_lines
from bftd.cli import common, completion, options
from bftd.cli.daemon.trainers import id_of

_NOT_THERE = 404
_WORDS_WIDTH = 16


@click.command()
@click.argument("name", metavar="JOB|NODE", shell_complete=completion.trainers_and_nodes)
@click.option("--limit", type=click.IntRange(min=1, max=10_000), default=50, show_default=True, help="Most sentences.")
@click.option("--node", "as_node", is_flag=True, help="It is a node, also if a trainer has that name.")
@click.option("--trainer", "as_trainer", is_flag=True, help="It is a trainer, and no node.")
@options.config
@options.as_json
def explain(name: str, limit: int, as_node: bool, as_trainer: bool, config_path: str | None, as_json: bool) -> None:
    """Tell why the trainer JOB grew, stayed or shrank, or why NODE is or is not lent, and who had it lately."""
    if as_node and as_trainer:
        raise UsageError("--node and --trainer exclude each other: leave one out")
    if not name.strip():
        raise UsageError("name a trainer or a node: `bft trainers` and `bft status` list them")
    reply = _explanation(api_client.find(config_path), name, limit, as_node, as_trainer)
    if as_json:
        common.echo_json(reply)
    elif "node" in reply:
        common.echo(_node(name, reply))
    else:
        common.echo(_trainer(reply))
        if reply.get("is_node") and not as_trainer:
            click.echo(f"bft: {name} is a node too: bft explain --node {name} explains it", err=True)


def _explanation(
    daemon: api_client.ApiClient, name: str, limit: int, as_node: bool, as_trainer: bool
) -> dict[str, Any]:
    """Return the daemon's explanation of the trainer with that id, else of the node, else of the trainer so called."""
    if not as_node:
        try:
            return daemon.explain(name, limit)
        except ApiError as error:
            if error.status != _NOT_THERE:
                raise
            if as_trainer:
                if (id_ := id_of(daemon, name)) is None:
                    raise
                return daemon.explain(id_, limit)
    try:
        return daemon.explain_node(name, limit)
    except ApiError as error:
        if error.status != _NOT_THERE:
            raise
        if not str(error).startswith("no node "):  # this daemon has no such endpoint
            older = "this daemon is older than bft and does not explain nodes"
            raise BftError(older if as_node else f"no trainer {name} is known, and {older}") from None
        if as_node:
            raise
        if (id_ := id_of(daemon, name)) is not None:
            return {**daemon.explain(id_, limit), "is_node": False}
        raise BftError(
            f"no trainer and no harvested node is called {name}: `bft trainers --all` and `bft status` list them"
        ) from None


def _trainer(reply: Mapping[str, Any]) -> Iterator[str]:
    yield from _decisions(reply["decisions"])
    trainer = reply["trainer"] or {}
    for field in ("curve", "resize_costs"):
        text = (trainer.get(field) or {}).get("text")  # an older daemon sends none
        if text and trainer["state"] != "finished":
            yield f"{trainer['name']}: {text}"


def _decisions(decisions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (f"{moment(decision['at_s'])}  {decision['text']}" for decision in decisions)


def _node(name: str, reply: Mapping[str, Any]) -> Iterator[str]:
    """Yield a node's present state, its past leases, and the decisions about it."""
    node, leases = reply["node"], reply["leases"]
    if node is None:
        yield f"{name} is not harvested now"
    else:
        yield from node_lines(name, node, leases)
    if leases:
        yield ""
        yield from common.table(*_leases(leases))
    if reply["decisions"]:
        yield ""
        yield from _decisions(reply["decisions"])


def _leases(leases: Iterable[Mapping[str, Any]]) -> tuple[list[Any], list[tuple[str, ...]]]:
    from bftd.base.tables import Column

    columns = [
        Column("FROM"),
        Column("TO"),
        Column("TRAINER", least=8),
        Column("NAME", rank=1, least=8),
        Column("USER", rank=2, least=8),
        Column("GAVE BACK IN", rank=3, right=True),
        Column("WHY IT ENDED", least=_WORDS_WIDTH, folds=True),
    ]
    return columns, [
        (
            moment(lease["granted_s"]),
            moment(lease["ended_s"]) if lease["ended_s"] is not None else "now",
            lease["trainer"] or "-",
            lease["name"] or "-",
            lease["user"] or "-",
            "-" if lease["give_back_s"] is None else f"{lease['give_back_s']:.2f} s",
            lease["why_revoked"] or "-",
        )
        for lease in leases
    ]
