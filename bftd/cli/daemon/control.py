"""`bft pause` and `bft unpause`: stop lending nodes, and start again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from bftd import api_client
from bftd.base.errors import ApiError, UsageError
from bftd.cli import common, completion, options

F = TypeVar("F", bound=Callable[..., Any])


def _selectors(command: F) -> F:
    """Add the options that select what to pause or resume; without any it is everything."""
    for name, metavar, complete, text in (
        ("--account", "NAME", None, "The trainers of this account."),
        ("--user", "NAME", None, "The trainers of this user."),
        ("--nodes", "LIST", completion.nodes, "These nodes, as Slurm writes them: n[1-4,7]."),
    ):
        command = click.option(name, metavar=metavar, shell_complete=complete, help=text)(command)
    return command


@click.command()
@_selectors
@click.option("--release", is_flag=True, help="Also ask back what is lent, to be free within give_back_bound_s.")
@click.option("--why", required=True, metavar="TEXT", help="The reason: users read it in bft status and bft explain.")
@options.config
@options.as_json
def pause(
    nodes: str | None,
    user: str | None,
    account: str | None,
    release: bool,
    why: str,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Lend no more nodes: to anybody, on some nodes, or to the trainers of a user or an account.

    What is lent stays where it is, unless --release asks it back. It survives a restart of the daemon and acts at once,
    also while Slurm does not answer.
    """
    selection = _selection(nodes, user, account)
    if not why.strip():
        raise UsageError("--why is empty: say it to those who will wait")
    reply = _answer(lambda: api_client.find(config_path).pause(selection, why, release))
    if as_json:
        common.echo_json(reply)
        return
    back = reply["asked_back"]
    count = "no node is" if not back else f"{back} node{'s are' if back > 1 else ' is'}"
    rest = f"; {count} asked back" + (f", to be free within {reply['within_s']:g} s" if back else "")
    common.echo([reply["text"] + (rest if release else "")])


@click.command()
@_selectors
@click.option("--all", "every", is_flag=True, help="Every pause, whatever it is of.")
@options.config
@options.as_json
def unpause(
    nodes: str | None, user: str | None, account: str | None, every: bool, config_path: str | None, as_json: bool
) -> None:
    """Lend again what was paused.

    Without options it lifts the pause of everything; those of nodes, users and accounts stay, and --all lifts them too.
    """
    selection = _selection(nodes, user, account)
    if every and selection:
        raise UsageError("--all excludes --nodes, --user and --account: leave one out")
    reply = _answer(lambda: api_client.find(config_path).resume({"all": True} if every else selection))
    if as_json:
        common.echo_json(reply)
        return
    common.echo([reply["text"], *(f"still in force: {item['text']}" for item in reply["pauses"])])


def _selection(nodes: str | None, user: str | None, account: str | None) -> dict[str, Any]:
    """Return the selection in the form that the API expects, {} for everything; raises UsageError."""
    given = {
        name: value for name, value in (("nodes", nodes), ("user", user), ("account", account)) if value is not None
    }
    if len(given) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in given)} exclude each other: call it once for each")
    if any(not value.strip() for value in given.values()):
        raise UsageError(f"--{next(iter(given))} is empty: name what is meant, or leave it out for everything")
    return given if nodes is None else {"nodes": _expanded(nodes)}


def _expanded(nodes: str) -> list[str]:
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.nodeset import expand

    try:
        return expand(nodes.strip())
    except SlurmError as error:
        raise UsageError(f"--nodes: {error}; write n[1-4,7]") from None


def _answer(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the daemon's answer; raise UsageError if it refuses the request as malformed (400)."""
    try:
        return ask()
    except ApiError as error:
        if error.status == 400:
            raise UsageError(str(error)) from None
        raise
