"""Elastic Horovod as a back-end: a child process is one run of Horovod's driver; agents start the workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from elastic.backends.base import Backend, TrainerServices
from elastic.backends.helper_process import Companion
from elastic.backends.horovod.workers import Alive
from elastic.base.errors import ElasticError
from elastic.driver.pilots.launcher import Pilot
from elastic.link.peer import Peer
from elastic.link.wire import Message

_WORKER_END_S = 3.0
"""The time that killed workers have to be reported before a new run begins without them."""

_BURST_S = 0.02
"""Workers that end this shortly after each other end for one reason: the survivors are told once."""


class HorovodBackend(Backend):
    """The Horovod back-end. One run lasts from the first workers to completion, suspension or the failure of all."""

    def __init__(self, services: TrainerServices) -> None:
        super().__init__(services)
        self._elastic_run: Companion | None = None
        self._next: Companion | None = None
        self._listed: dict[str, Pilot] = {}
        self._alive = Alive()
        self._addresses: dict[Pilot, str] = {}
        self._guests: list[str] = []
        self._burst: list[tuple[Pilot, Message]] = []
        self._burst_sent = asyncio.Event()
        self._burst_sent.set()
        self._news = asyncio.Event()
        self._clean = True
        self._early = ""
        self._ending: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return self._elastic_run is not None

    def uses(self, pilot: Pilot) -> bool:
        return bool(self._alive.on(pilot))

    async def start(self) -> None:
        """Start the process of the first run, which imports Horovod while the first nodes get warm."""
        await self._prepare()

    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        if not self._burst_sent.is_set():
            await self._burst_sent.wait()
            if not all(pilot.wanted for pilot in pilots):
                return  # some were lost at the same moment; that has woken the trainer
        if self._elastic_run is not None and set(pilots).isdisjoint(self._listed.values()):
            # Horovod cannot hand over the state if all old nodes go at once: the state goes by way of the disk.
            await self.suspend()
        wanted = {pilot.horovod_host: pilot for pilot in pilots}
        if self._elastic_run is None:
            await self._begin(wanted)
        elif list(wanted) != list(self._listed):
            self._list(wanted)

    async def suspend(self) -> None:
        if self._elastic_run is None:
            return
        self._send_burst()
        run, self._elastic_run = self._elastic_run, None
        await self._services.save_checkpoint(self._workers(), graceful=self._clean)
        await run.stop()
        await self._end_workers()
        await self._prepare()

    def lost(self, pilot: Pilot) -> None:
        for host, local_rank in self._alive.on(pilot):
            self._ended(pilot, host, local_rank, rc=137, planned=False)

    def received(self, pilot: Pilot, message: Message) -> None:
        if message["op"] != "exit":
            return
        host, local_rank, rc = str(message["host"]), int(message["local_rank"]), int(message["rc"])
        if (host, local_rank) not in self._alive:
            return
        if rc == 0 and pilot.leaving:
            return  # maybe in the script's own SIGTERM handler: it is lost in a moment, and has not trained to the end
        if rc == 0 and pilot.wanted and host in self._listed:
            self._early = self._early or f"a worker on {pilot.node} ended with 0 at step {message['step']}"
        # Removed workers end by an abort in Horovod's library: after a revocation any code is good.
        planned = self._elastic_run is None or rc == 0 or pilot.revoked or pilot.expiring or host not in self._listed
        # After the first crash on a node its other workers are killed: those are no crashes of their own.
        planned = planned or host != pilot.horovod_host
        if not planned and pilot.wanted:
            self._services.broke(int(message["step"]), float(message["at_s"]))
            self._services.crashed(pilot, rc)
        self._ended(pilot, host, local_rank, rc, planned)

    async def close(self) -> None:
        if self._elastic_run is not None:
            run, self._elastic_run = self._elastic_run, None
            await run.stop()
        if self._next is not None:
            await self._next.stop()

    # -- an elastic run ---

    async def _prepare(self) -> None:
        """Get the process of the next run ready before there are nodes; in a container it starts when there are."""
        if self._next is None and self._services.settings.container_message() is None:
            with contextlib.suppress(ElasticError):  # reported once a run is needed
                self._next = await self._process()

    async def _process(self) -> Companion:
        """Start the process of a run, which waits for its first command."""
        settings = self._services.settings

        def exited(rc: int) -> None:
            if run is self._next:
                self._next = None
            elif run is self._elastic_run:
                self._elastic_run_exited(rc)

        def log(line: str) -> None:
            if run is not self._next:  # a waiting run's lines are not shown: its nodes will say the same
                self._services.log(line)

        run = Companion(self._request, exited, log)
        await run.start(
            settings.interpreter, "elastic.backends.horovod.elastic_run", image=settings.container_message()
        )
        return run

    async def _begin(self, wanted: dict[str, Pilot]) -> None:
        per_node = max(pilot.workers_per_node for pilot in wanted.values())
        run, self._next = self._next, None
        self._elastic_run = run or await self._process()
        self._clean, self._guests, self._burst, self._early = True, [], [], ""
        self._elastic_run.send({"op": "begin", "ranks": self._services.settings.sizes.high * per_node})
        self._list(wanted)

    def _list(self, wanted: dict[str, Pilot]) -> None:
        assert self._elastic_run is not None
        self._listed = dict(wanted)
        self._admit()
        slots = {host: pilot.workers_per_node for host, pilot in wanted.items()}
        # The slots of the smallest pilots together: any allowed number of pilots has at least these.
        least = sum(sorted(slots.values())[: self._services.settings.sizes.low])
        self._elastic_run.send({"op": "hosts", "hosts": slots, "least": least})

    def _admit(self) -> None:
        """Admit only the trainer's current nodes to Horovod's rendezvous: a node given back may soon be another user's.

        Workers connect from the same addresses as their agents, and one that leaves in order asks once more before it
        ends.
        """
        pilots = {*self._listed.values(), *self._alive.pilots}
        # An agent may be gone before the last of its workers is known to be.
        self._addresses = {
            pilot: pilot.agent.address if pilot.agent else self._addresses[pilot]
            for pilot in pilots
            if pilot.agent or pilot in self._addresses
        }
        guests = sorted(set(self._addresses.values()))
        if self._elastic_run is not None and guests != self._guests:
            self._guests = guests
            self._elastic_run.send({"op": "guests", "addresses": guests})

    def _request(self, message: Message) -> None:
        """Handle a request of Horovod's driver."""
        if message["op"] == "formed":
            self._services.formed([str(host).rpartition(".")[0] for host in message["hosts"]])
        elif message["op"] == "start":
            host, local_rank = str(message["host"]), int(message["local_rank"])
            pilot = self._listed.get(host)
            if pilot is None or pilot.leaving or self._elastic_run is None:
                if self._elastic_run is not None:
                    self._elastic_run.send({"op": "exit", "host": host, "local_rank": local_rank, "rc": 137})
                return
            self._alive.add((host, local_rank), pilot)
            pilot.send(message)
        elif message["op"] == "kill":
            owner = self._alive.pilot_of(str(message["host"]))
            if owner is not None:
                owner.send(message)
        elif message["op"] == "done":
            self._ending = asyncio.ensure_future(self._done(message))

    async def _done(self, message: Message) -> None:
        if self._elastic_run is None:
            return
        run, self._elastic_run = self._elastic_run, None
        await run.stop()
        await self._end_workers()
        # Horovod calls it a success as soon as one rank ended well: here every rank has to.
        if message["ok"] and not any(message["codes"]):
            self._services.finish(0, "training is complete")
        else:
            early = f"{self._early} while others trained" if message["ok"] and self._early else ""
            self._services.workers_failed(message["error"] or early or "the workers ended without success")

    def _elastic_run_exited(self, rc: int) -> None:
        self._elastic_run = None
        self._services.workers_failed(f"Horovod's driver ended with code {rc}")
        self._ending = asyncio.ensure_future(self._end_workers())

    async def _end_workers(self) -> None:
        for host, pilot in self._alive.hosts().items():
            pilot.send({"op": "kill", "host": host})
        deadline = asyncio.get_running_loop().time() + _WORKER_END_S
        while self._alive and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except asyncio.TimeoutError:
                break
        for pilot in self._listed.values():
            pilot.incarnation += 1
            pilot.working = False
        self._alive.clear()
        self._listed = {}
        self._services.wake()

    def _ended(self, pilot: Pilot, host: str, local_rank: int, rc: int, planned: bool) -> None:
        self._alive.remove((host, local_rank))
        self._news.set()
        if self._elastic_run is not None:
            message: Message = {"op": "exit", "host": host, "local_rank": local_rank, "rc": rc}
            if planned:
                self._elastic_run.send(message)
            else:
                self._broke(pilot, message)
            if pilot.horovod_host not in self._listed and not self.uses(pilot):
                self._admit()
        self._services.wake()

    def _broke(self, pilot: Pilot, message: Message) -> None:
        """Collect ends for a moment: if half of the nodes go at once, each survivor gets one abort, not many."""
        self._clean = False
        self._burst.append((pilot, message))
        if self._burst_sent.is_set():
            self._burst_sent.clear()
            asyncio.get_running_loop().call_later(_BURST_S, self._send_burst)
        if pilot.wanted and pilot.horovod_host == message["host"]:
            pilot.incarnation += 1
            pilot.send({"op": "kill", "host": message["host"]})

    def _send_burst(self) -> None:
        """Tell the survivors first, then Horovod's driver: an abort must not hit sockets that are already new."""
        burst, self._burst = self._burst, []
        self._burst_sent.set()
        if self._elastic_run is None or not burst:
            return
        broken = {pilot for pilot, _ in burst}
        for pilot in self._alive.pilots:
            if pilot not in broken:
                pilot.send_to_workers({"op": "abort"})
        for _, message in burst:
            self._elastic_run.send(message)

    def _workers(self) -> list[Peer]:
        return [peer for pilot in self._alive.pilots for peer in pilot.workers.values()]
