"""The trainer between fakes, for tests of what it decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bftd.protocol.lease import LeaseView
from elastic.driver.pilots.launcher import Pilot
from elastic.link.peer import Peer
from elastic.link.wire import Message
from tests.elastic.fakes import (
    FakeBackend,
    FakeDaemon,
    FakeStarter,
    SomeReport,
    lease,
    peer,
    settings_for,
    trainer_for,
    until,
)


class Stage:
    """A trainer between fakes; the test plays Slurm, the daemon, the agents and the workers."""

    def __init__(self, folder: Path, spec: str) -> None:
        self.lines: list[str] = []
        self.starter, self.daemon = FakeStarter(), FakeDaemon()
        self.trainer = trainer_for(settings_for(folder, spec), self.lines.append, self.starter, self.daemon)
        self.run, self.connections = self.trainer.run, self.trainer.connections
        self.backend: FakeBackend = self.trainer._backend  # type: ignore[assignment]
        self._leases: dict[str, LeaseView] = {}
        self._count = 0

    def grant(self, *nodes: str) -> None:
        self._count += 1
        for node in nodes:
            self._leases[node] = lease(node, self._count)
        self.publish()

    def revoke(self, *nodes: str, vacate: bool = False) -> None:
        for node in nodes:
            self._leases[node] = replace(self._leases[node], state="revoked", vacate=vacate)
        self.publish()
        for node in nodes:
            del self._leases[node]

    def publish(self) -> None:
        self.trainer.pilot_manager.on_leases(list(self._leases.values()))

    def pilot(self, node: str) -> Pilot:
        return next(pilot for pilot in self.trainer.pilot_manager.all if pilot.node == node)

    async def connect(self, node: str) -> Peer:
        """The node's agent comes."""
        pilot = await until("placed", lambda: self.pilot(node) if self.pilot(node).state == "placed" else None)
        agent = peer(role="agent", lease=pilot.lease)
        assert self.connections.connected(agent)
        return agent

    async def warm(self, *nodes: str) -> None:
        """The nodes' agents come and get ready, in this order."""
        for node in nodes:
            await self.says(await self.connect(node), {"op": "ready"})

    async def says(self, who: Peer, message: Message) -> None:
        await self.connections.received(who, message)

    async def worker(self, node: str) -> Peer:
        pilot = self.pilot(node)
        name = {"lease": pilot.lease, "incarnation": pilot.incarnation}
        worker = peer(role="worker", **name, local_rank=0, pid=hash(node) % 10_000)
        assert self.connections.connected(worker)
        return worker

    async def step(self, node: str, step: int, first: bool = False) -> None:
        pilot = self.pilot(node)
        worker = pilot.workers.get(0) or await self.worker(node)
        message = {"op": "step", "first": first, "step": step, "samples": step * 10, "rank": 0, "loss": None}
        message |= {"saved_step": step, "saved_samples": step * 10, "size": len(self.backend.members)}
        await self.says(worker, message | {"steps_lost": 0, "at_s": time.time()})

    def crash(self, node: str, rc: int, early: str = "") -> None:
        pilot = self.pilot(node)
        assert pilot.agent
        message = {"op": "exit", "host": pilot.horovod_host, "local_rank": 0, "rc": rc, "step": -1}
        self.connections._from_agent(pilot, message | {"at_s": 0.0, "early": early})

    async def trains_on(self, *nodes: str) -> None:
        await until(f"training on {nodes}", lambda: [pilot.node for pilot in self.backend.members] == list(nodes))

    @property
    def ended(self) -> tuple[int, str] | None:
        """How the trainer ended, None while it runs."""
        return self.run.result.result() if self.run.result.done() else None

    def reports(self, kind: type[SomeReport], /, **fields: Any) -> list[SomeReport]:
        return self.daemon.of(kind, **fields)


OpenStage = Callable[..., AbstractAsyncContextManager[Stage]]


@asynccontextmanager
async def staged(folder: Path, spec: str = "1-8") -> AsyncIterator[Stage]:
    """A trainer that serves; nothing of it is left in the end."""
    stage = Stage(folder, spec)
    running = asyncio.create_task(stage.trainer.serve())
    await asyncio.sleep(0)  # it begins
    yield stage
    stage.run.finish(1, "the test is over")
    for pilot in stage.trainer.pilot_manager.all:
        pilot.workers.clear()
    await running
    await stage.trainer.stop()
    assert stage.trainer.pilot_manager.all == []
