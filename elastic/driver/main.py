"""The driver's entry points: as the interpreter of an elastic job's script, and in the foreground for `bft run`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from bftd.protocol.registration import Registration
from bftd.protocol.reports import Summary
from elastic.backends import KINDS
from elastic.driver.checkpoint import private_folder
from elastic.driver.daemon import DaemonLink, read_token
from elastic.driver.hub import Hub, listen
from elastic.driver.pilots import PilotStarter
from elastic.driver.settings import DriverSettings, foreground_id, own_user
from elastic.driver.trainer import Trainer
from elastic.errors import ElasticError, UsageError
from elastic.script import default_backend, interpreter_of, restore
from elastic.spec import ElasticSpec, features_of


def main() -> None:
    """`bft-driver SCRIPT [ARG...]`, as Slurm runs it: the script's first line names this program."""
    try:
        code = run(_settings_of_job(sys.argv[1:]))
    except ElasticError as error:
        print(f"bft: {error}", file=sys.stderr)
        code = error.exit_code
    raise SystemExit(code)


def run(settings: DriverSettings) -> int:
    """Runs one trainer to its end and returns its exit code."""
    return asyncio.run(_run(settings))


async def _run(settings: DriverSettings) -> int:
    listening = listen()
    trainer: Trainer
    daemon = DaemonLink(
        settings.socket_path,
        lambda: _registration(settings, trainer),
        lambda listed: trainer.on_leases(listed),
        lambda: trainer.run.finish(1, "another driver of this trainer has taken over"),
        _log,
        token=read_token(os.environ.get("BFTD_TOKEN_FILE")),
        munge_socket=os.environ.get("BFTD_MUNGE_SOCKET", ""),
    )
    starter = PilotStarter(settings, listening.getsockname()[1], settings.secret, _log)
    trainer = Trainer(settings, _log, KINDS[settings.backend], starter, daemon)
    hub = Hub(trainer.connections, settings.secret, listening)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, trainer.run.cancel)
    spec = settings.spec
    _log(f"{settings.name}: {settings.backend}, {spec.nodes_min} to {spec.nodes_max} nodes; waiting for nodes")
    if trainer.run.store.step >= 0:
        _log(f"resumes at step {trainer.run.store.step}")
    code, reason = await trainer.serve()
    hub.close()
    await trainer.stop()
    await daemon.finish(code, reason, _summary(trainer))
    _log(f"{reason}; step {trainer.run.progress.step}, exit code {code}")
    if code == 0:
        trainer.run.store.remove()
        _remove_folder(settings)
    elif trainer.run.store.step >= 0:
        _log(f"the state of step {trainer.run.store.step} is kept in {settings.state_dir}")
    return code


def _registration(settings: DriverSettings, trainer: Trainer) -> Registration:
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
        held=trainer.crew.held(),
        wish=spec.wish(settings.features),
    )


def _summary(trainer: Trainer) -> Summary:
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


def _settings_of_job(arguments: list[str]) -> DriverSettings:
    """The settings of a batch job whose script runs this program; raises UsageError."""
    if not arguments:
        raise UsageError(
            "bft-driver runs an elastic job's script; submit one with: bft sbatch --elastic=MIN-MAX SCRIPT"
        )
    try:
        header, source = restore(Path(arguments[0]).read_text())
    except OSError as error:
        raise UsageError(f"{arguments[0]}: {error.strerror}") from error
    trainer_id = os.environ.get("SLURM_JOB_ID") or foreground_id()
    cwd = Path.cwd()
    state_dir = cwd / ".bft" / trainer_id
    private_folder(state_dir)
    # The agents read it from here: Slurm's own copy of the script is on the service node alone.
    script = state_dir / Path(header.script).name
    script.write_text(source)
    spec = ElasticSpec.parse(header.elastic)
    return DriverSettings(
        trainer_id=trainer_id,
        name=os.environ.get("SLURM_JOB_NAME", script.name),
        spec=spec,
        backend=spec.backend or default_backend(source),
        # The Lua file cannot look for it: slurmctld may not see what the user sees.
        interpreter=header.interpreter or interpreter_of(source, header.script),
        argv=(str(script), *arguments[1:]),
        cwd=cwd,
        script_dir=Path(header.script).parent,
        state_dir=state_dir,
        socket_path=header.socket,
        partition=header.partition,
        user=own_user(),
        # Else pilots would be charged to the user's default account, whatever the trainer's is.
        account=os.environ.get("SLURM_JOB_ACCOUNT", ""),
        pilot_mode=header.pilot_mode,
        pilot_options=header.pilot_options,
        features=features_of(header.constraint) if header.constraint else (),
    )


def _remove_folder(settings: DriverSettings) -> None:
    script = Path(settings.argv[0])
    if script.parent == settings.state_dir:  # a batch job's copy; `bft run` runs the user's own file
        script.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        settings.state_dir.rmdir()
        settings.state_dir.parent.rmdir()


def _log(text: str) -> None:
    print(f"bft: {time.strftime('%H:%M:%S')} {text}", flush=True)
