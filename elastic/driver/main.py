"""The driver's entry points: as the interpreter of an elastic job's script, and in the foreground for `bft run`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftd import own_packages
from bftd.protocol.registration import Registration
from bftd.protocol.reports import Summary
from elastic.backends import KINDS
from elastic.base.errors import ElasticError, UsageError
from elastic.driver.daemon_link import DaemonLink, read_token
from elastic.driver.output import JobOutput
from elastic.driver.pilots.addresses import given_address
from elastic.driver.pilots.launcher import PilotStarter
from elastic.driver.progress import cpu_profile
from elastic.driver.server import Hub, listen
from elastic.driver.settings import DriverSettings, foreground_id, own_log, own_user
from elastic.driver.trainer import TrainerDriver
from elastic.link import descriptors
from elastic.options.elastic_option import ElasticSpec, features_of
from elastic.options.job_script import Header, backend_of, interpreter_of, restore
from elastic.store import catalogue
from elastic.store import restore as beginning
from elastic.store.catalogue import Name
from elastic.store.error_latch import text_of
from elastic.store.restore import Beginning
from elastic.store.store import CheckpointStore
from elastic.store.writer_lock import FencedError


def main() -> None:
    """`bft-driver SCRIPT [ARG...]`, as Slurm runs it: the script's first line names this program."""
    job: _Job | None = None
    try:
        job = _job(sys.argv[1:])
        code = run(_settings_of_job(job))
    except (ElasticError, OSError) as error:
        # If sys.stderr could not be written to a full disk, Python would try again at exit and return 120.
        with contextlib.suppress(OSError):
            os.write(2, f"bft: {error}\n".encode(errors="backslashreplace"))
        code = error.exit_code if isinstance(error, ElasticError) else 1
        if job is not None:
            asyncio.run(_tell_failure(job, code, text_of(error)))
    raise SystemExit(code)


def run(settings: DriverSettings) -> int:
    """Runs one trainer to its end and returns its exit code; raises ElasticError when it cannot begin."""
    descriptors.raise_limit()
    output = JobOutput.standard()
    try:
        with output.logging():
            return asyncio.run(_run(settings, output))
    except OSError as error:
        raise ElasticError(f"the driver cannot go on: {error}") from error
    finally:
        output.close()


async def _run(settings: DriverSettings, output: JobOutput) -> int:
    def log(text: str) -> None:
        output.line(_line(text))

    listening = listen()
    trainer: TrainerDriver
    daemon = DaemonLink(
        settings.socket_path,
        lambda: registration_of(settings, trainer),
        lambda listed: trainer.on_leases(listed),
        lambda: trainer.run.fence(),
        log,
        **_credentials(),
        on_classes=lambda kinds: trainer.estimating.heard(kinds),
        tail=output.tail,
        restarts=settings.restarts,
    )
    starter = PilotStarter(settings, listening.getsockname()[1], settings.secret, log)
    trainer = TrainerDriver(settings, log, KINDS[settings.backend], starter, daemon, show=output.line)
    starter.shares.note = trainer.run.note
    starter.shares.state_bytes = lambda: _kept_bytes(trainer)
    hub = Hub(trainer.connections, settings.secret, listening, log, trainer.connections.transfers.accept)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, trainer.run.cancel)
    spec = settings.spec
    looking = asyncio.create_task(cpu_profile.look(settings, starter.shares))
    log(f"{settings.name}: {settings.backend}, {spec.nodes_min} to {spec.nodes_max} nodes; waiting for nodes")
    if trainer.run.saved_step >= 0:
        log(f"resumes at step {trainer.run.saved_step}")
    code, reason = await trainer.serve()
    looking.cancel()
    await trainer.stop()  # workers come to the hub once more, with their last checkpoint
    hub.close()
    await daemon.finish(code, reason, summary_of(trainer))
    log(f"{reason}; step {trainer.run.progress.step}, exit code {code}")
    node, words = trainer.run.last_words
    for line in (f"the script's last words on {node}:", *words) if words else ():
        log(line)
    await asyncio.to_thread(_put_away, settings, trainer.run.store, trainer.run.saved_step, code, log)
    return code


def _kept_bytes(trainer: TrainerDriver) -> int | None:
    """Returns the size of the checkpoint that workers keep copies of in memory, None while it is not known."""
    return 0 if trainer.run.settings.spec.state_path else trainer.run.progress.resize_times.state_bytes


def registration_of(settings: DriverSettings, trainer: TrainerDriver) -> Registration:
    """Returns what the daemon is told of a trainer."""
    spec = settings.spec
    return Registration(
        id=settings.trainer_id,
        name=settings.name,
        backend=settings.backend,
        sizes=spec.allowed,
        user=settings.user,
        partition=settings.partition,
        weight=spec.weight,
        workers_per_node=spec.workers_per_node,
        up_cost_s=spec.up_cost_s,
        down_cost_s=spec.down_cost_s,
        held=trainer.pilot_manager.held(),
        requirements=spec.requirements(settings.features),
        estimates=trainer.estimating.estimates,
        log=settings.log,
        resizable=True,
    )


def summary_of(trainer: TrainerDriver) -> Summary:
    """Returns a trainer's totals."""
    progress = trainer.run.progress
    return Summary(
        step=progress.step,
        samples=progress.samples,
        resizes=progress.resizes,
        suspends=progress.suspends,
        steps_lost=progress.steps_lost,
        first_loss=progress.first_loss,
        last_loss=progress.loss,
    )


@dataclass(frozen=True)
class _Job:
    """A batch job whose script runs this program; `arguments` begins with Slurm's copy of the script."""

    id: str
    name: str
    header: Header
    source: str
    arguments: list[str]


def _job(arguments: list[str]) -> _Job:
    """Returns the job that this process runs in; raises UsageError."""
    if not arguments:
        raise UsageError(
            "bft-driver runs an elastic job's script; submit one with: bft sbatch --elastic=MIN-MAX SCRIPT"
        )
    try:
        # Kept byte for byte, whatever its encoding: the nodes are told the script's digest.
        header, source = restore(Path(arguments[0]).read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"{arguments[0]}: {error.strerror}") from error
    name = os.environ.get("SLURM_JOB_NAME", Path(header.script).name)
    return _Job(os.environ.get("SLURM_JOB_ID") or foreground_id(), name, header, source, arguments)


def _credentials() -> dict[str, Any]:
    """Returns what the daemon knows this driver by, where it is reached by TCP."""
    return {
        "token": read_token(os.environ.get("BFTD_TOKEN_FILE")),
        "munge_socket": os.environ.get("BFTD_MUNGE_SOCKET", ""),
    }


async def _tell_failure(job: _Job, code: int, reason: str) -> None:
    """Tells the daemon of a trainer whose driver cannot begin, so that its user finds the cause in bft too."""
    header = job.header

    def registration() -> Registration:
        spec = ElasticSpec.parse(header.elastic)
        return Registration(
            job.id, job.name, spec.backend or "torchrun", spec.allowed, own_user(), header.partition, log=own_log()
        )

    try:
        registration()
        link = DaemonLink(
            header.socket,
            registration,
            lambda listed: None,
            lambda: None,
            lambda text: None,
            **_credentials(),
        )
        await link.finish_unbegun(code, reason)
    except (ElasticError, OSError):
        pass  # the log has the cause


def _settings_of_job(job: _Job) -> DriverSettings:
    """Returns the settings of a batch job; raises UsageError."""
    header, source, trainer_id = job.header, job.source, job.id
    folders = os.environ.get("PYTHONPATH")
    if folders and (path := own_packages.namesake(folders.split(os.pathsep))):  # an empty one is the present folder
        raise UsageError(f"{path} hides bftd's package of that name: take its folder out of $PYTHONPATH")
    given = given_address()
    cwd, environ = Path.cwd(), os.environ
    spec = ElasticSpec.parse(header.elastic)
    backend = backend_of(source, header.script, spec.backend)
    # The Lua file cannot look for it: slurmctld may not see the files that the user sees.
    interpreter = header.interpreter or interpreter_of(source, header.script, contained=bool(spec.container))
    keep_state_s, root = catalogue.keep_state_s(environ), catalogue.root_of(environ)
    catalogue.sweep(root, time.time())
    begins = Beginning.of_job(trainer_id, spec.resume or "", environ, spec.state_path)
    state_dir = beginning.begin(root, begins, cwd, _early)
    script, digest = beginning.keep_script(state_dir, Path(header.script).name, source)
    return DriverSettings(
        trainer_id=trainer_id,
        name=job.name,
        spec=spec,
        backend=backend,
        interpreter=interpreter,
        argv=(str(script), *job.arguments[1:]),
        script_sha256=digest,
        cwd=cwd,
        script_dir=Path(header.script).parent,
        state_dir=state_dir,
        keep_state_s=keep_state_s,
        socket_path=header.socket,
        partition=header.partition,
        user=own_user(),
        # Otherwise pilots would be charged to the user's default account, whatever the trainer's is.
        account=environ.get("SLURM_JOB_ACCOUNT", ""),
        pilot_mode=header.pilot_mode,
        pilot_options=header.pilot_options,
        features=features_of(header.constraint) if header.constraint else (),
        restarts=int(again) if (again := environ.get("SLURM_RESTART_COUNT", "")).isdecimal() else 0,
        given_address=given,
    )


def _put_away(
    settings: DriverSettings, store: CheckpointStore, step: int, code: int, log: Callable[[str], None]
) -> None:
    """Keeps the useful part of the trainer's folder; a failure here is no failure of the training.

    `step` is that of the newest checkpoint, -1 if there is none.
    """
    root, name = settings.state_dir.parent, Name.parse(settings.state_dir.name)
    try:
        if name is None:
            return
        store.release()  # or it is another driver's by now
        if code == 0:
            kept = catalogue.put_away(root, name, settings.keep_state_s)
            if kept is not None:
                log(f"the checkpoint of step {step} is kept in {root / str(kept)} until {_shown(kept.at_s)}")
        elif not catalogue.drop_if_empty(root, name) and step >= 0:
            log(f"the checkpoint of step {step} is kept in {settings.state_dir}")
    except FencedError:
        pass  # the folder is the next driver's
    except (OSError, ElasticError) as error:
        log(f"{settings.state_dir} is left as it is: {text_of(error)}")
    finally:
        store.close()


def _shown(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


def _early(text: str) -> None:
    """Writes one line of the log before there is an Output, which nothing can hold up."""
    with contextlib.suppress(OSError):
        os.write(1, f"{_line(text)}\n".encode(errors="backslashreplace"))


def _line(text: str) -> str:
    return f"bft: {time.strftime('%H:%M:%S')} {text}"
