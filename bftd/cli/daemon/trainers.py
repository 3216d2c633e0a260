"""`bft trainers`: the trainers in the style of squeue, with --all also those that ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from bftd.base.errors import ApiError, BftError, UsageError
from bftd.cli import common, options
from bftd.http import client

STATES = ("waiting", "running", "suspended", "finished")
_LAST_DAY_S = 86400.0
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
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("-a", "--all", "every", is_flag=True, help="Also those that ended, as far as the ledger goes back.")
@click.option("-u", "--user", "users", metavar="U[,U...]", help="Those of these users.")
@click.option("--me", is_flag=True, help="Your own.")
@click.option("-t", "--state", "states", callback=_states, metavar="S[,S...]", help="Those in these states, or all.")
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

    Named ones, and with --all every one, also where they ended long ago.
    """
    if me and users is not None:
        raise UsageError("--me and --user exclude each other: leave one out")
    wanted = None if users is None else {user.strip() for user in users.split(",")}
    daemon = client.find(config_path)
    every = every or bool(ids) or "finished" in states
    reply = asked(daemon, every)
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
        and (not ids or trainer["id"] in ids)
    ]
    missing = [id_ for id_ in dict.fromkeys(ids) if all(trainer["id"] != id_ for trainer in found)]
    if missing and not (wanted or states):
        raise BftError(f"no trainer {', '.join(missing)} is known: `bft trainers --all` shows those that are")
    if as_json:
        common.echo_json({"trainers": found, "more": reply["more"]})
        return
    click.echo("\n".join(common.table(*_table(found, time.time()))))
    if reply["more"] and not ids:
        click.echo("bft: the ledger has more that ended: name those you look for", err=True)


def asked(daemon: client.ApiClient, every: bool) -> dict[str, Any]:
    """Return the trainers; from an older daemon without this endpoint those of its status, without reasons."""
    try:
        reply = daemon.trainers(every)
    except ApiError as error:
        if error.status not in (404, 405):
            raise
        reply = {"trainers": daemon.status(folded=True)["trainers"], "more": False}
        if every:
            click.echo("bft: this daemon is older than bft and does not tell of trainers that ended", err=True)
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

    columns = [
        Column("ID"),
        Column("NAME", least=_NAME_WIDTH),
        Column("USER", rank=1, least=_NAME_WIDTH),
        Column("ACCOUNT", rank=6, least=_NAME_WIDTH),
        Column("STATE"),
        Column("NODES", right=True),
        Column("RANGE", rank=5, right=True),
        Column("STEP", rank=4, right=True),
        Column("SAMPLES/S", rank=3, right=True),
        Column("LOSS", rank=8, right=True),
        Column("TIME", rank=7, right=True),
        Column("ENDS", rank=2, right=True),
        Column("REASON", rank=9, least=_WORDS_WIDTH, folds=True),
    ]
    rows = [_row(trainer, now_s) for trainer in found]
    if not any(trainer.get("account") for trainer in found):  # a site without accounting
        at = next(at for at, column in enumerate(columns) if column.title == "ACCOUNT")
        columns, rows = columns[:at] + columns[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]
    return columns, rows


def _row(trainer: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    """Return the cells of one trainer; "-" for anything unknown, for example from an older daemon."""
    done = trainer["state"] == "finished"
    working, requested = trainer.get("working", 0), trainer.get("requested", 0)
    low, high, steps = (trainer.get(name) for name in ("nodes_min", "nodes_max", "total_steps"))
    step = trainer.get("step")
    rate, loss = trainer.get("samples_per_s") or 0.0, trainer.get("loss")
    return (
        trainer["id"] or "-",
        trainer["name"],
        trainer["user"] or "-",
        trainer.get("account") or "-",
        _state(trainer),
        "-" if done else str(working) if working == requested else f"{working}->{requested}",
        "-" if low is None else f"{low}-{high}",
        "-" if step is None else f"{step}/{steps}" if steps else str(step),
        f"{rate:.1f}" if rate else "-",
        "-" if loss is None else f"{loss:.4g}",
        lasting(trainer.get("arrived_s"), trainer.get("finished_s") if done else now_s),
        ending(trainer.get("finished_s") if done else trainer.get("expected_end_s"), now_s),
        trainer.get("reason") or "-",
    )


def _state(trainer: Mapping[str, Any]) -> str:
    """Format the state; a finished trainer's has its exit code, or is "lost" without one."""
    state, code = str(trainer["state"]), trainer.get("exit_code")
    return state if state != "finished" else "lost" if code is None else f"{state} ({code})"


def lasting(since_s: float | None, until_s: float | None) -> str:
    """Format a duration as Slurm does: [D-]H:MM:SS."""
    if since_s is None or until_s is None:
        return "-"
    minutes, seconds = divmod(max(0, int(until_s - since_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}" if days else f"{hours}:{minutes:02d}:{seconds:02d}"


def ending(at_s: float | None, now_s: float) -> str:
    """Format a time; as a date if it is not within a day from now."""
    if at_s is None:
        return "-"
    try:
        return time.strftime("%H:%M" if abs(at_s - now_s) < _LAST_DAY_S else "%Y-%m-%d", time.localtime(at_s))
    except (OverflowError, OSError, ValueError):  # at its present rate it never ends
        return "never"
