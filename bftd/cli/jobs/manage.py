"""`bft logs`, `bft cancel`, `bft resize` and `bft weight`: what users do with a trainer of theirs."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from bftd import api_client, config_file
from bftd.base.errors import ApiError, BftError, UsageError
from bftd.base.format import between
from bftd.cli import common, completion, options
from bftd.cli.daemon import trainers

if TYPE_CHECKING:
    from slurm_plugin.clients.client import SlurmClient

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
# A driver of `bft run`: run-<host>-<pid>.u<uid>.<hex>
_FOREGROUND = re.compile(r"run-(.+)-(\d+)\.u\d+\.[0-9a-f]+")
_CHUNK_BYTES = 2**20
# Of control characters, a terminal gets those of lines and progress bars: the log may be another user's.
_HARMLESS = bytes(each if each >= 32 or each in b"\t\n\r" else 32 for each in range(256))
_LOOK_S = 0.5
_BEGUN_S = 2.0
# The time between two questions about a log's trainer: a status is not cheap for the daemon.
_ASK_S = 10.0


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completion.trainers)
@click.option("-f", "--follow", is_flag=True, help="Go on until the trainer ends.")
@options.config
def logs(job: str, follow: bool, config_path: str | None) -> None:
    """Print the log of the trainer JOB, an id or a name: its driver's lines, and its script's output."""
    daemon = api_client.find(config_path)
    trainer = _begun(daemon, job, config_path) if follow else trainers.find(daemon, job)
    who = _who(trainer)
    if "log" not in trainer:
        raise BftError("this daemon is older than bft and keeps no logs' places: look for slurm-JOB.out")
    if not trainer["log"]:
        raise BftError(f"no log of {who} is known: its driver told of none, or it is another user's")
    path = Path(trainer["log"])
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would be waited for
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BftError(f"{path}, the log of {who}, is no file: nothing is printed")
            _copy(file)
            if follow:
                _follow(file, path, daemon, trainer["id"])
    except FileNotFoundError:
        raise BftError(f"{path}, the log of {who}, is not on this host: look where its driver ran") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BftError(f"cannot read {path}, the log of {who}: {error.strerror}") from None


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completion.live_trainers)
@options.config
def cancel(jobs: tuple[str, ...], config_path: str | None) -> None:
    """End the trainers JOB, ids or names; their checkpoints stay."""
    settings = config_file.load_found(config_path)
    daemon, slurm = api_client.find(config_path), common.slurm_client(settings)
    found: list[Mapping[str, Any]] = []
    for job in dict.fromkeys(jobs):
        try:
            trainer: Mapping[str, Any] = trainers.find(daemon, job)
        except BftError:
            known = _driver_job(slurm, job, settings.slurm.driver_partition)
            if known is None:
                raise
            trainer = known
        if trainer["state"] == "finished":
            raise BftError(f"{_who(trainer)} has ended already")
        found.append(trainer)
    for trainer in found:
        if trainer["id"].startswith("run-"):
            _interrupt(trainer)
        else:
            slurm.cancel([trainer["id"]])
        rest = ""
        if trainer.get("step"):
            rest = f"; go on later with: bft sbatch --elastic=MIN-MAX,resume={trainer['id']} SCRIPT"
        common.echo([f"cancelled {_who(trainer)}{rest}"])


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completion.live_trainers)
@click.argument("nodes", metavar="MIN-MAX")
@options.config
@options.as_json
def resize(job: str, nodes: str, config_path: str | None, as_json: bool) -> None:
    """Change the number of nodes that the trainer JOB may have, as --elastic=MIN-MAX does at submission."""
    match = _RANGE.fullmatch(nodes)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise UsageError(f"{nodes}: give the nodes as MIN-MAX, for example 2-16; MIN is at least 1")
    reply = _changed(config_path, job, nodes_min=low, nodes_max=high)
    if as_json:
        common.echo_json(reply)
        return
    common.echo([f"trainer {reply['id']} may have {between(low, high, 'node')} from now on"])


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completion.live_trainers)
@click.argument("weight", type=float, callback=options.above_zero, metavar="W")
@options.config
@options.as_json
def weight(job: str, weight: float, config_path: str | None, as_json: bool) -> None:
    """Change the weight of the trainer JOB, which counts where the site's objective is priority."""
    reply = _changed(config_path, job, weight=weight)
    if as_json:
        common.echo_json(reply)
        return
    aims = reply["objective"]
    rest = "" if aims == "priority" else f", but weights do not count here: this site's objective is {aims}"
    common.echo([f"trainer {reply['id']} has weight {reply['weight']:g} from now on{rest}"])


def _changed(config_path: str | None, job: str, **asked: Any) -> dict[str, Any]:
    daemon = api_client.find(config_path)
    trainer = trainers.find(daemon, job)
    if trainer["state"] == "finished":
        raise BftError(f"{_who(trainer)} has ended already")
    try:
        return daemon.change(trainer["id"], **asked)
    except ApiError as error:
        if error.status == 400:
            raise UsageError(str(error)) from None
        if error.status in (404, 405):
            raise BftError("this daemon is older than bft and cannot change trainers: submit it anew") from None
        raise


def _who(trainer: Mapping[str, Any]) -> str:
    return f"trainer {trainer['id']} ({trainer['name']})"


def _copy(file: IO[bytes]) -> None:
    """Print the rest of a file."""
    while part := file.read(_CHUNK_BYTES):
        sys.stdout.buffer.write(part.translate(_HARMLESS) if sys.stdout.isatty() else part)
    sys.stdout.buffer.flush()


def _follow(file: IO[bytes], path: Path, daemon: api_client.ApiClient, id_: str) -> None:
    """Print what is added to a file until its trainer has ended."""
    asked_s = 0.0
    while True:
        ended = False
        if time.monotonic() - asked_s >= _ASK_S:
            asked_s = time.monotonic()
            ended = _has_ended(daemon, id_)
        if path.stat().st_size < file.tell():  # a job that was requeued begins its file anew
            file.seek(0)
        _copy(file)
        if ended:
            return
        time.sleep(_LOOK_S)


def _has_ended(daemon: api_client.ApiClient, id_: str) -> bool:
    """Whether a trainer has ended for sure: a daemon that is away says nothing."""
    try:
        trainer = daemon.explain(id_, limit=1)["trainer"]
    except ApiError as error:
        return error.status == 404
    except BftError:
        return False
    return trainer is None or trainer["state"] == "finished"


def _begun(daemon: api_client.ApiClient, job: str, config_path: str | None) -> dict[str, Any]:
    """Return the trainer, once its driver has begun."""
    settings = config_file.load_found(config_path)
    slurm, told = common.slurm_client(settings), False
    while True:
        try:
            return trainers.find(daemon, job)
        except BftError as error:
            if type(error) is not BftError or _driver_job(slurm, job, settings.slurm.driver_partition) is None:
                raise
        if not told:
            click.echo(f"bft: the driver of job {job} has not begun yet: waiting for it", err=True)
        told = True
        time.sleep(_BEGUN_S)
        while _is_pending(slurm, job):  # Slurm alone is asked meanwhile: a list of trainers is not cheap
            time.sleep(_BEGUN_S)


def _is_pending(slurm: SlurmClient, job: str) -> bool:
    """Whether a job still waits in Slurm, as far as that is known."""
    from slurm_plugin.errors import SlurmError

    try:
        known = slurm.job(job)
    except SlurmError:
        return True
    return known is not None and known.state == "PENDING"


def _driver_job(slurm: SlurmClient, job: str, partition: str) -> dict[str, Any] | None:
    """Return the trainer of a driver's job that has not begun yet; None if it is no such job, or Slurm is away."""
    from slurm_plugin.errors import SlurmError

    try:
        known = slurm.job(job) if job.isdecimal() else None
    except SlurmError:
        return None
    return {"id": job, "name": known.name, "state": "waiting"} if known and partition in known.partition else None


def _interrupt(trainer: Mapping[str, Any]) -> None:
    """End a driver that runs in a terminal on this host, as Ctrl-C would there."""
    match = _FOREGROUND.fullmatch(trainer["id"])
    host, pid = (match[1], int(match[2])) if match else ("another host", 0)
    try:
        if host == os.uname().nodename and b"bft" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGINT)
            return
    except OSError:
        pass
    raise BftError(f"{_who(trainer)} runs in a terminal on {host}: end it there with Ctrl-C")
