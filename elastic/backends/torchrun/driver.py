"""torch.distributed.elastic as a back-end: the driver is its rendezvous, a store beside the driver its memory.

Every change of members restarts all workers (that is torchrun's way), so the state is saved at a step boundary first;
workers are forks of warm processes, so the restart costs no import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from elastic.backends.base import Backend, Host
from elastic.backends.companion import Companion
from elastic.driver.pilots import Pilot
from elastic.errors import ElasticError
from elastic.link.peer import Peer
from elastic.link.wire import Message

_JOIN_S = 30.0
"""Stopping workers and coming to the rendezvous takes a moment; a node that needs longer is given up."""

_BLAME_S = 0.25
"""Every node looks at its workers each 0.05 s, so all ends that belong to one crash are heard of within this."""

_STORE_S = 120.0
"""The store process imports torch once, at the trainer's start."""


class TorchrunBackend(Backend):
    """Counts generations; one has fixed members, ranks and a store of its own."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._store = Companion(self._from_store, self._store_exited, host.log)
        self._ports: dict[int, asyncio.Future[int]] = {}
        self._generation = 0
        self._group: list[Pilot] = []
        self._waiting: set[str] = set()
        self._invited: set[str] = set()
        self._done: set[str] = set()
        self._broken = False
        self._exits: list[tuple[Pilot, int]] = []
        self._news = asyncio.Event()

    @property
    def running(self) -> bool:
        return bool(self._group)

    def uses(self, pilot: Pilot) -> bool:
        return pilot in self._group

    async def start(self) -> None:
        await self._store.start(self._host.settings.interpreter, "elastic.backends.torchrun.store")

    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        if self._group == list(pilots) and not self._broken:
            return
        await self._stop_workers()
        members = await self._assemble(list(pilots))
        if members is not None:
            # A node tells its workers' ends before it comes: all that belong to the last group are known now. Who is to
            # blame may be given back, and must not be part of the next group.
            self._blame()
            await asyncio.sleep(0)
            self._release(members, await self._port())

    async def suspend(self) -> None:
        await self._stop_workers()

    def lost(self, pilot: Pilot) -> None:
        self._waiting.discard(pilot.lease)
        self._news.set()
        if pilot in self._group:
            self._break()

    def received(self, pilot: Pilot, message: Message) -> None:
        op = message["op"]
        if op == "join":
            self._waiting.add(pilot.lease)
            self._news.set()
        elif op == "exit" and pilot.wanted:
            if not self._exits:
                asyncio.get_running_loop().call_later(_BLAME_S, self._blame)
            self._exits.append((pilot, int(message["rc"])))
            self._host.broke(int(message["step"]), float(message["at_s"]))
            if pilot in self._group and not self._broken:
                self._break()
        elif op == "done" and pilot in self._group:
            self._done.add(pilot.lease)
            self._finish_if_done(len(self._group))

    async def close(self) -> None:
        await self._store.stop()

    # -- a generation ---

    async def _stop_workers(self) -> None:
        """Saves the state and has every member's workers stopped; the members then wait for a rendezvous."""
        group, self._group = self._group, []
        if not group:
            return
        workers: list[Peer] = [peer for pilot in group for peer in pilot.workers.values()]
        # Workers of a broken group hang in a collective: what was saved last has to do, and is here already.
        await self._host.save_state(workers, graceful=not self._broken)
        for pilot in group:
            pilot.working = False
            if pilot.lease not in self._waiting:
                pilot.tell({"op": "regroup"})
        self._broken = False

    async def _assemble(self, pilots: list[Pilot]) -> list[Pilot] | None:
        """Waits until every node is at the rendezvous; None when the members changed meanwhile."""
        for pilot in pilots:
            if pilot.lease not in self._invited:
                self._invited.add(pilot.lease)
                pilot.tell({"op": "join"})
        deadline = asyncio.get_running_loop().time() + _JOIN_S
        while missing := [pilot for pilot in pilots if pilot.lease not in self._waiting]:
            # Looked at before every wait: a node may have been lost while the state of the others was being saved.
            if not all(pilot.wanted for pilot in pilots):
                self._host.wake()
                return None
            self._news.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._news.wait(), max(left, 0.0))
            except asyncio.TimeoutError:
                for pilot in missing:
                    self._host.absent(pilot, f"{pilot.node} did not come to the rendezvous")
        return pilots

    def _release(self, members: list[Pilot], port: int) -> None:
        if not all(pilot.wanted and pilot.lease in self._waiting for pilot in members):
            self._host.wake()
            return
        self._group, self._done, self._broken = members, set(), False
        for rank, pilot in enumerate(members):
            self._waiting.discard(pilot.lease)
            pilot.tell(
                {
                    "op": "rendezvous",
                    "generation": self._generation,
                    "rank": rank,
                    "nodes": len(members),
                    "port": port,
                }
            )

    async def _port(self) -> int:
        self._generation += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports[self._generation] = future
        self._store.send({"op": "open", "generation": self._generation})
        try:
            return await asyncio.wait_for(future, _STORE_S)
        except asyncio.TimeoutError:
            python = self._host.settings.interpreter
            raise ElasticError(
                f"torchrun's store, which {python} runs beside the driver, did not come up within {_STORE_S:g} s; "
                "see how long `import torch` takes there"
            ) from None

    def _blame(self) -> None:
        """Counts the crash against who caused it: a killed worker's peers fail too, and may be heard of first."""
        exits, self._exits = self._exits, []
        killed = [(pilot, rc) for pilot, rc in exits if rc < 0]
        for pilot, rc in killed or exits:
            self._host.crashed(pilot, rc)

    def _finish_if_done(self, needed: int) -> None:
        if len(self._done) >= needed:
            self._host.finish(0, "training is complete")

    def _break(self) -> None:
        # Ranks of synchronous training end together: who is lost after another one has finished was at its end too.
        self._finish_if_done(1)
        self._broken = True
        self._news.set()
        self._host.wake()

    def _from_store(self, message: Message) -> None:
        if message["op"] == "opened":
            future = self._ports.pop(int(message["generation"]), None)
            if future is not None and not future.done():
                future.set_result(int(message["port"]))

    def _store_exited(self, rc: int) -> None:
        python = self._host.settings.interpreter
        self._host.finish(1, f"torchrun's store ended with code {rc}: is torch installed for {python}?")
