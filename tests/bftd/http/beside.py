"""A served API in a thread of its own, for tests of those that ask it and wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bftd.service.service import Service
from slurm_plugin.read.types import Job, Node, Snapshot
from tests.bftd.builders import node, pilot
from tests.bftd.http.test_api import TRAINER, Served, serving

T = TypeVar("T")


class Daemon:
    """A daemon without Slurm: `address` is its socket, and what is done to its service is done on its loop."""

    def __init__(self, served: Served, loop: asyncio.AbstractEventLoop, address: str, stop: Callable[[], None]) -> None:
        self._served = served
        self._loop = loop
        self.address = address
        # Ends it before its time; returns when it has.
        self.stop = stop

    def do(self, work: Callable[[Service], T]) -> T:
        """What `work` makes of the service, on its loop."""

        async def inside() -> T:
            return work(self._served.service)

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result(30)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request, which must be granted."""
        code, answer = asyncio.run_coroutine_threadsafe(self._served.ask(method, path, body), self._loop).result(30)
        assert code == 200, answer
        return answer

    def see(self, nodes: Mapping[str, Node] | None = None, *names: str, jobs: tuple[Job, ...] = ()) -> None:
        """Two polls of these nodes; named ones are idle."""
        seen = {**(nodes or {}), **{name: node(name) for name in names}}

        def observe(service: Service) -> None:
            leases = [lease for lease in service.state.leases.values() if lease.job_id]
            pilots = tuple(pilot(lease.job_id or "", lease.node) for lease in leases if lease.node in seen)
            busy = {lease.node: replace(seen[lease.node], state="ALLOCATED") for lease in leases if lease.node in seen}
            service.observe(Snapshot(time.time(), {**seen, **busy}, (*jobs, *pilots), ()))

        for _ in range(2):
            self.do(observe)

    def train(self, id_: str, **fields: Any) -> None:
        """A trainer registers."""
        self.ask("POST", "/v1/trainers", TRAINER | {"id": id_, "name": f"train-{id_}"} | fields)

    def work(self, id_: str, rate: float = 100.0, step: int = 10) -> None:
        """All leases of a trainer come to work, and it makes progress."""
        now_s = time.time()
        told = self.do(lambda service: [item for item in service.state.leases.values() if item.trainer == id_])
        events: list[dict[str, Any]] = [
            {"op": "lease", "at_s": now_s, "id": lease.id, "state": "ended"} for lease in told if not lease.live
        ]
        told = [lease for lease in told if lease.live]
        for at, lease in enumerate(told):
            job_id = f"9{lease.id.rpartition('.')[2]}{at}"
            events.append({"op": "lease", "at_s": now_s, "id": lease.id, "state": "placed", "job_id": job_id})
            events.append({"op": "lease", "at_s": now_s, "id": lease.id, "state": "working"})
        events.append(
            {"op": "progress", "at_s": now_s, "step": step, "samples": step * 32.0, "samples_per_s": rate,
             "nodes": len(told), "world_size": len(told), "loss": 0.25, "steps_lost": 0, "window_s": 2.0}
        )  # fmt: skip
        self.ask("POST", f"/v1/trainers/{id_}/report", {"epoch": 1, "events": events})

    def finish(self, id_: str, exit_code: int = 0) -> None:
        """A trainer ends."""
        body = {"epoch": 1, "exit_code": exit_code, "reason": "", "summary": {}}
        self.ask("POST", f"/v1/trainers/{id_}/finish", body)


@contextmanager
def daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon on the socket `folder`/socket; what was written there before is gone on with."""
    ready: list[Daemon] = []
    up, down = threading.Event(), threading.Event()

    async def inside() -> None:
        async with serving(folder) as served:
            ready.append(Daemon(served, asyncio.get_running_loop(), str(folder / "socket"), stop))
            up.set()
            await asyncio.get_running_loop().run_in_executor(None, down.wait)

    def stop() -> None:
        down.set()
        thread.join(30)

    thread = threading.Thread(target=lambda: asyncio.run(inside()))
    thread.start()
    try:
        assert up.wait(30)
        yield ready[0]
    finally:
        stop()
