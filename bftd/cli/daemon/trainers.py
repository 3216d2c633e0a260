"""`bft trainers`: the trainers in the style of squeue, with --all also those that ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from bftd import api_client
from bftd.base.errors import ApiError, BftError, UsageError
from bftd.cli import common, completion, options

STATES = ("waiting", "running", "suspended", "finished")
# The least widths of names and of sentences on a narrow terminal.
_NAME_WIDTH = 8
_WORDS_WIDTH = 16


def _states(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse states separated by commas; any prefix of a state will do, as squeue accepts PD and R."""
    found: list[str] = []
    for word in (value or "").lower().split(","):
        fits = STATES if word == "all" else tuple(state for state in STATES if word and state.startswith(word))
        if value is not None and not fits:
            raise click.BadParameter(f"{word!r} is no state: say {', '.join(STATES)} or all.")
        found += fits
    return tuple(dict.fromkeys(found))


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID|NAME...]", shell_complete=completion.trainers)
@click.option("-a", "--all", "every", is_flag=True, help="Also those that ended, as far as the ledger goes back.")
@click.option("-u", "--user", "users", metavar="U[,U...]", help="Those of these users.")
@click.option("--me", is_flag=True, help="Your own.")
@click.option(
    "-t",
    "--state",
    "states",
    callback=_states,
    metavar="S[,S...]",
    shell_complete=completion.among(*STATES, "all"),
    help="Those in these states, or all.",
)
@options.config
@options.as_json
def trainers(
    ids: tuple[str, ...],
    every: bool,
    users: str | None,
    me: bool,
    states: tuple[str, ...],
    config_path: str | None,
    as_json: bool,
) -> None:
    """Show the trainers: who trains what on how many nodes, how fast, until when, and why no more.

    A trainer that is named is shown also if it ended long ago; --all shows every one.
    """
    if me and users is not None:
        raise UsageError("--me and --user exclude each other: leave one out")
    wanted = None if users is None else {user.strip() for user in users.split(",")}
    daemon = api_client.find(config_path)
    every = every or bool(ids) or "finished" in states
    reply = listed(daemon, every)
    found = reply["trainers"]
    if not every:
        found = [trainer for trainer in found if trainer["state"] != "finished"]
    if me:
        wanted = {_own_name()}
    found = [
        trainer
        for trainer in found
        if (wanted is None or trainer["user"] in wanted)
        and (not states or trainer["state"] in states)
        and (not ids or trainer["id"] in ids or trainer["name"] in ids)
    ]
    missing = [id_ for id_ in dict.fromkeys(ids) if all(id_ not in (each["id"], each["name"]) for each in found)]
    if missing and not (wanted or states):
        raise _unknown(missing)
    if as_json:
        common.echo_json({"trainers": found, "more": reply["more"]})
        return
    click.echo("\n".join(common.table(*_table(found, time.time()))))
    if reply["more"] and not ids:
        click.echo("bft: the ledger has more trainers that ended: name those that you look for", err=True)


def find(daemon: api_client.ApiClient, word: str) -> dict[str, Any]:
    """Return the trainer with that id, else the one of that name that has not ended, else the last one that has.

    One's own come before others'. Raises BftError if it is not known, UsageError if several of that name are live.
    """
    known = listed(daemon, every=True)["trainers"]
    trainer = next((trainer for trainer in known if trainer["id"] == word), None) or _called(known, word)
    if trainer is None:
        raise _unknown([word])
    return trainer


def id_of(daemon: api_client.ApiClient, name: str) -> str | None:
    """Return the id of the trainer of that name, as `find` does; None if it is not known."""
    trainer = _called(listed(daemon, every=True)["trainers"], name)
    return None if trainer is None else str(trainer["id"])


def _unknown(words: Sequence[str]) -> BftError:
    job = next((word for word in words if word.isdecimal()), "")
    # Slurm runs the driver, which may not have begun, or may have been killed before it could say anything
    hint = f", `scontrol show job {job}` whether its driver has begun" if job else ""
    return BftError(f"no trainer {', '.join(words)} is known: `bft trainers --all` shows those that are{hint}")


def _called(known: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    found = [trainer for trainer in known if trainer["name"] == name]
    found = [trainer for trainer in found if trainer["user"] == _own_name()] or found
    live = [trainer for trainer in found if trainer["state"] != "finished"]
    if len(live) > 1:
        raise UsageError(
            f"{len(live)} trainers are called {name}: name one by its id: {', '.join(t['id'] for t in live)}"
        )
    return max(live or found, key=lambda trainer: trainer.get("arrived_s") or 0.0, default=None)


def listed(daemon: api_client.ApiClient, every: bool) -> dict[str, Any]:
    """Return the trainers; from an older daemon without this endpoint those of its status, without reasons."""
    try:
        reply = daemon.trainers(every)
    except ApiError as error:
        if error.status not in (404, 405):
            raise
        reply = {"trainers": daemon.status(folded=True)["trainers"], "more": False}
        if every:
            click.echo("bft: this daemon is older than bft and does not list trainers that ended", err=True)
    return reply


def _own_name() -> str:
    import os
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _table(found: Sequence[Mapping[str, Any]], now_s: float) -> tuple[Sequence[Any], Sequence[Sequence[str]]]:
    from bftd.base.tables import Column
    from bftd.base.view import shown, trainer_line

    columns = {
        "id": Column("ID"),
        "name": Column("NAME", least=_NAME_WIDTH),
        "user": Column("USER", rank=1, least=_NAME_WIDTH),
        "account": Column("ACCOUNT", rank=6, least=_NAME_WIDTH),
        "state": Column("STATE"),
        "nodes": Column("NODES", right=True),
        "range": Column("RANGE", rank=5, right=True),
        "step": Column("STEP", rank=4, right=True),
        "rate": Column("SAMPLES/S", rank=3, right=True),
        "loss": Column("LOSS", rank=8, right=True),
        "elapsed": Column("TIME", rank=7, right=True),
        "ends": Column("ENDS", rank=2, right=True),
        "reason": Column("REASON", rank=9, least=_WORDS_WIDTH, folds=True),
    }
    lines = [trainer_line(trainer, now_s) for trainer in found]
    names = shown(columns, lines)
    return [columns[name] for name in names], [[getattr(line, name) for name in names] for line in lines]
