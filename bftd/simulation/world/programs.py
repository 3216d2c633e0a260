"""The programs of the simulated world, put together as `bftd` and `bft-driver` are, on simulated hosts.

Real: the service with its ledger, the API's application, agents, workers' links, and all that a driver consists of but
its output. Of the daemon's process the shell is left out: signals, systemd, the claim of the partition and the check of
its settings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aiohttp import web

import milp
from bftd.base.errors import LedgerError
from bftd.config.keys import Config
from bftd.core.model.events import Tick
from bftd.core.planning.planning import Solve
from bftd.http import api
from bftd.http.auth.gate import Authenticator
from bftd.http.connections import IDLE_S
from bftd.ledger.file import Ledger
from bftd.service.canceller import Canceller
from bftd.service.metrics.counters import Counters
from bftd.service.service import Service
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.commands import SimulatedClient
from bftd.simulation.world.faults.wire import Mail, MailedTransport
from bftd.simulation.world.machine.disk import Disk
from bftd.simulation.world.machine.network import End
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.machine.sockets import NetworkLoop, Transport
from bftd.simulation.world.node import serve
from bftd.simulation.world.scripts import Training
from bftd.simulation.world.slurmctld import PilotJob
from bftd.simulation.world.training import Companion
from elastic.backends import KINDS
from elastic.backends.base import TrainerServices
from elastic.backends.torchrun.driver import TorchrunBackend
from elastic.base.errors import ElasticError
from elastic.driver.daemon_link import DaemonLink
from elastic.driver.main import registration_of, summary_of
from elastic.driver.pilots.launcher import Pilot, PilotStarter, _complaint
from elastic.driver.server import Hub
from elastic.driver.settings import DriverSettings
from elastic.driver.trainer import TrainerDriver
from elastic.options.elastic_option import ElasticSpec
from slurm_plugin.errors import SlurmError
from slurm_plugin.read.types import Snapshot

SOCKET = "/run/bftd/bftd.sock"
HOST = "10.0.0.1"
"""The host of the daemon and the drivers, the node `login1`."""


class SimulatedDaemon:
    """One start of bftd; `service` is its service, once it is up, and `refusal` why it did not come up."""

    def __init__(
        self,
        loop: NetworkLoop,
        cluster: SimulatedCluster,
        folder: Path,
        config: Config,
        disk: Disk | None = None,
        host: str = HOST,
        solve: Solve = milp.solve,
    ) -> None:
        self.process = Process("bftd", host)
        self.process.disk = disk
        self.service: Service | None = None
        self.seen: Snapshot | None = None
        """Its last look at Slurm."""

        self.refusal = ""
        self._loop = loop
        self._client = SimulatedClient(loop, cluster)
        self._path = folder / "ledger.sqlite"
        self._config = config
        self._solve = solve
        self.task = self.process.start(self._run)

    async def _run(self) -> None:
        try:
            await self._serve()
        except LedgerError as error:
            self.refusal = str(error)
            self.process.kill()

    async def _serve(self) -> None:
        ledger = Ledger(self._path)
        if self.process.disk is None:
            self.process.on_kill.append(ledger.close)
        canceller = Canceller(lambda job_ids: self._client.cancel(job_ids, "KILL"))
        self.service = service = Service(self._config, ledger, canceller.ask, time.time, time.monotonic)
        service.meters = Counters(time.monotonic)
        service.solve = self._solve
        gate = Authenticator(self._config.api, self._config.daemon)
        app = api.application(service, gate)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=IDLE_S, logger=api._QUIET)
        await runner.setup()
        assert runner.server is not None
        factory = gate.connections.factory(runner.server)

        def connected(end: End) -> None:
            Transport(self._loop, end, factory())

        self._loop.network.listen(SOCKET, connected)
        while True:
            await self._poll(service)
            await asyncio.sleep(service.poll_s)

    async def _poll(self, service: Service) -> None:
        loop = asyncio.get_running_loop()
        try:
            snapshot = await loop.run_in_executor(None, self._client.snapshot)
        except SlurmError:
            service.apply(Tick(service.now()))
            return
        self.seen = snapshot
        judge = service.observe_later(snapshot)
        take = await loop.run_in_executor(None, judge)
        take()


class _TorchrunWithoutStore(TorchrunBackend):
    """The torchrun back-end, with a simulated store beside the driver."""

    def __init__(self, services: TrainerServices) -> None:
        super().__init__(services)
        self._store = Companion(self._from_store)  # type: ignore[assignment]


_KIND = replace(KINDS["torchrun"], driver=f"{__name__}:_TorchrunWithoutStore")


class _Starter(PilotStarter):
    """Places pilots as ever, and runs agents in them in place of srun."""

    serve: Callable[[Pilot, Callable[[str], None], Process, PilotJob], Awaitable[None]]
    cluster: SimulatedCluster

    async def _agent_ran(self, pilot: Pilot, job_id: str) -> str | None:
        said: list[str] = []
        started = await self.cluster.step(job_id, partial(self.serve, pilot, said.append))
        if started:
            self._endings.empty(job_id)
        if pilot.leaving or pilot.revoked or pilot.over.is_set():
            return ""
        away = not started and job_id in self.cluster.pilots
        return None if away else _complaint("\n".join(said), pilot)


@dataclass(frozen=True)
class TrainerOrder:
    """A trainer as its user submits it: its job's id, its user, and the nodes that it may have."""

    job_id: str
    uid: int
    spec: str
    training: Training


class SimulatedDriver:
    """One start of a trainer's driver; `outcome` is the exit code and the reason, once it has ended."""

    def __init__(
        self,
        loop: NetworkLoop,
        cluster: SimulatedCluster,
        folder: Path,
        order: TrainerOrder,
        log: Callable[[str], None],
        disk: Disk | None = None,
        mail: Mail | None = None,
        *,
        older: bool = False,
        restarts: int = 0,
    ) -> None:
        self.order = order
        self.outcome: tuple[int, str] | None = None
        self.process = Process(f"driver {order.job_id}", HOST, order.uid)
        self.process.disk = disk
        self._mail = mail
        self._older, self._restarts = older, restarts
        self.trainer: TrainerDriver | None = None
        self._loop = loop
        self._cluster = cluster
        self._folder = folder
        self._tell = log
        self.task = self.process.start(self._run)

    @property
    def runs(self) -> bool:
        """Whether its process is alive."""
        return not self.process.dead and self.outcome is None

    def _log(self, text: str) -> None:
        if not self.process.dead:
            self._tell(text)

    async def _run(self) -> None:
        try:
            await self._serve()
        except ElasticError as error:
            self._log(str(error))
            self.outcome = error.exit_code, str(error)
            self.process.kill()

    async def _serve(self) -> None:
        order, user = self.order, str(self.order.uid)
        settings = DriverSettings(
            trainer_id=order.job_id,
            name=f"train-{order.job_id}",
            spec=ElasticSpec.parse(order.spec),
            backend="torchrun",
            interpreter="python3",
            argv=("train.py",),
            cwd=self._folder,
            script_dir=self._folder,
            state_dir=self._folder / f"state-{order.job_id}",
            socket_path=SOCKET,
            partition="elastic",
            user=user,
            restarts=self._restarts,
            given_address=HOST,
            log="",
        )
        listening = self._loop.listening_socket()
        trainer: TrainerDriver
        daemon = DaemonLink(
            settings.socket_path,
            lambda: registration_of(settings, trainer),
            lambda listed: trainer.on_leases(listed),
            lambda: trainer.run.fence(),
            self._log,
            on_classes=lambda kinds: trainer.estimating.heard(kinds),
            restarts=settings.restarts,
        )
        if self._mail is not None:
            daemon._transport = MailedTransport(SOCKET, self._mail, older=self._older)
        client = SimulatedClient(self._loop, self._cluster, user)
        starter = _Starter(settings, listening.getsockname()[1], settings.secret, self._log, client)
        starter.cluster = self._cluster
        scancel = self._cluster.cancel_from_node
        starter.serve = partial(serve, order.training, settings.secret, scancel)
        trainer = TrainerDriver(settings, self._log, _KIND, starter, daemon, show=self._log)
        self.trainer = trainer
        order.training.resumes(settings.state_dir, trainer.run.store.step)
        self.process.on_kill.append(trainer.run.store.close)
        hub = Hub(trainer.connections, settings.secret, listening, self._log, trainer.connections.transfers.accept)  # type: ignore[arg-type]
        code, reason = await trainer.serve()
        await trainer.stop()
        hub.close()
        await daemon.finish(code, reason, summary_of(trainer))
        self._log(f"{reason}; step {trainer.run.progress.step}, exit code {code}")
        self.outcome = code, reason
        self.process.kill()  # its files and connections are closed as it ends
