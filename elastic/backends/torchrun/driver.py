"""torchrun as a back-end: the driver is its rendezvous, a store beside the driver its memory.

Every change of members restarts all workers (that is torchrun's way), so a checkpoint is saved at a step boundary
first; workers are forks of warm processes, so the restart costs no import.

Training is complete when the script has ended with 0 on every member. A member that has ended so is not needed any more
and may leave. But if another member fails before it ends, all start over from the last checkpoint, including those
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bftd.protocol.container import failed
from elastic.backends.base import Backend, TrainerServices
from elastic.backends.helper_process import Companion
from elastic.backends.torchrun.blame import CrashEnds
from elastic.base.timing import PULL_S
from elastic.driver.pilots.launcher import Pilot
from elastic.link.peer import Peer
from elastic.link.wire import Message

_JOIN_S = 30.0
"""Stopping workers and coming to the rendezvous takes a moment; a node that needs longer is given up."""

_STORE_S = 120.0
"""The store process imports torch once, at the trainer's start."""


class TorchrunBackend(Backend):
    """The torchrun back-end. It counts generations, each with fixed members, fixed ranks and its own store."""

    def __init__(self, services: TrainerServices) -> None:
        super().__init__(services)
        self._store = Companion(self._from_store, self._store_exited, services.log)
        self._store_ready = False
        self._ports: dict[int, asyncio.Future[int]] = {}
        self._generation = 0
        self._group: list[Pilot] = []
        self._waiting: set[str] = set()
        self._invited: set[str] = set()
        self._unfinished: set[str] = set()
        self._first_ranks: dict[str, int] = {}
        self._ending = False
        self._broken = False
        self._blame = CrashEnds(services)
        self._news = asyncio.Event()

    @property
    def running(self) -> bool:
        return bool(self._group)

    def uses(self, pilot: Pilot) -> bool:
        return pilot in self._group

    @property
    def finishing(self) -> Sequence[Pilot]:
        if self._broken or not self._ending:
            return ()
        return [member for member in self._group if member.lease in self._unfinished]

    async def start(self) -> None:
        settings = self._services.settings
        module, image = "elastic.backends.torchrun.store", settings.container_message()
        await self._store.start(settings.interpreter, module, image=image)

    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        if self._goes_on_with(pilots):
            return
        # The worker that caused a crash may end last: once stopped, it would not report its own end.
        await self._blame.settled()
        await self._stop_workers()
        members = await self._assemble(list(pilots))
        if members is None:
            return
        # A node reports its workers' ends before it joins, so all of the last group are known now. The node to blame
        # may be given back, and must not be part of the next group.
        self._blame.end()
        await asyncio.sleep(0)
        port = await self._port()
        if port is not None:
            self._release(members, port)

    async def suspend(self) -> None:
        await self._stop_workers()

    def lost(self, pilot: Pilot) -> None:
        self._waiting.discard(pilot.lease)
        self._news.set()
        self._is_short_of(pilot)
        if pilot in self._group and self._is_done(pilot):
            self._group.remove(pilot)
            return
        self._blame.excuse(pilot)
        if pilot in self._group:
            self._break()

    def received(self, pilot: Pilot, message: Message) -> None:
        op = message["op"]
        if op == "join":
            self._waiting.add(pilot.lease)
            self._news.set()
            if pilot in self._group and not self._broken:
                # Its workers are gone, and it did not report how.
                self._break()
        elif op == "exit":
            self._exited(pilot, message)
        elif op == "done" and pilot.lease in self._unfinished and not pilot.leaving:
            # While Slurm takes its node, a script may end with 0 in its own SIGTERM handler, long before training ends.
            if pilot in self._group:
                self._blame.ended_well(self._first_ranks[pilot.lease], int(message.get("step", -1)))
            if self._broken:
                return  # others failed because of it, and their ends came first
            self._unfinished.discard(pilot.lease)
            if pilot in self._group:
                self._ending = True
                self._blame.finished(pilot)
            # A group that is being stopped may have ended by itself first: then no step has to be repeated.
            if not self._unfinished:
                self._services.finish(0, "training is complete")

    async def close(self) -> None:
        await self._store.stop()

    # -- a generation ---

    def _is_done(self, member: Pilot) -> bool:
        return not self._broken and member.lease not in self._unfinished

    def _goes_on_with(self, pilots: Sequence[Pilot]) -> bool:
        """Whether the group may stay as it is, except for members that are done and leave."""
        if self._broken or not self._group:
            return False
        if not self._ending:
            return self._group == list(pilots)
        # The end is near: to grow now would repeat the last steps, even if a member that was done has left.
        if not all(member in pilots for member in self.finishing):
            return False
        for member in list(self._group):
            if member not in pilots:
                self._group.remove(member)
                # If it is needed again, it waits at the rendezvous.
                member.working = False
                member.send({"op": "regroup"})
        return True

    async def _stop_workers(self) -> None:
        """Save a checkpoint and have every member's workers stopped; the members then wait for a rendezvous."""
        group, self._group = self._group, []
        if not group:
            return
        workers: list[Peer] = [peer for pilot in group for peer in pilot.workers.values()]
        # Workers of a broken group hang in a collective: the last checkpoint must do, and is already here.
        await self._services.save_checkpoint(workers, graceful=not self._broken)
        if self._broken:
            self._unfinished.clear()
        else:
            self._blame.end()  # the first stopped workers make the others end
        for pilot in group:
            pilot.working = False
            if pilot.lease not in self._waiting:
                pilot.send({"op": "regroup"})
        self._broken = False

    async def _assemble(self, pilots: list[Pilot]) -> list[Pilot] | None:
        """Wait until every node is at the rendezvous; returns None if the members changed meanwhile."""
        for pilot in pilots:
            if pilot.lease not in self._invited:
                self._invited.add(pilot.lease)
                pilot.send({"op": "join"})
        deadline = asyncio.get_running_loop().time() + _JOIN_S
        while missing := [pilot for pilot in pilots if pilot.lease not in self._waiting]:
            # Checked before every wait: a node may have been lost while the checkpoint of the others was being saved.
            if not all(pilot.wanted for pilot in pilots):
                self._services.wake()
                return None
            self._news.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._news.wait(), max(left, 0.0))
            except asyncio.TimeoutError:
                for pilot in missing:
                    self._services.absent(pilot, f"{pilot.node} did not come to the rendezvous")
        return pilots

    def _release(self, members: list[Pilot], port: int) -> None:
        if not all(pilot.wanted and pilot.lease in self._waiting for pilot in members):
            self._services.wake()
            return
        self._group, self._unfinished = members, {pilot.lease for pilot in members}
        self._ending = self._broken = False
        self._blame.begin(members)
        self._services.started(self._unfinished)
        world, first_rank = sum(pilot.workers_per_node for pilot in members), 0
        self._first_ranks = {}
        for number, pilot in enumerate(members):
            self._waiting.discard(pilot.lease)
            self._first_ranks[pilot.lease] = first_rank
            pilot.send(
                {
                    "op": "rendezvous",
                    "generation": self._generation,
                    "rank": number,
                    "nodes": len(members),
                    "first_rank": first_rank,
                    "world": world,
                    "port": port,
                }
            )
            first_rank += pilot.workers_per_node

    async def _port(self) -> int | None:
        """Return the port of a new generation's store; None if there is none, and the trainer ends."""
        self._generation += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports[self._generation] = future
        self._store.send({"op": "open", "generation": self._generation, "secret": self._services.settings.secret})
        # Nodes may already have an image that the driver's host is still fetching.
        fetches = self._services.settings.spec.container is not None and not self._store_ready
        limit_s = _STORE_S + (PULL_S if fetches else 0.0)
        try:
            return await asyncio.wait_for(future, limit_s)
        except asyncio.TimeoutError:
            del self._ports[self._generation]
            python = self._services.settings.python
            self._services.finish(
                1, f"torchrun's store did not start within {limit_s:g} s: how long does {python} import torch here?"
            )
            return None

    # -- what goes wrong ---

    def _is_short_of(self, pilot: Pilot) -> None:
        """Note that a group being stopped cannot have trained to the end if it lacks this member."""
        if pilot not in self._group and pilot.lease in self._unfinished:
            self._unfinished.clear()

    def _exited(self, pilot: Pilot, message: Message) -> None:
        """Handle the end of a member's worker, which ended by itself with an error."""
        self._is_short_of(pilot)
        if not pilot.wanted:
            # A failure on a node that is being taken has no one to blame.
            self._blame.excuse(pilot)
            if pilot in self._group and not self._broken:
                self._break()
        elif self._blame.heard(pilot, int(message["rc"])):
            self._services.broke(int(message["step"]), float(message["at_s"]))
            if (ended := message.get("ended")) is not None:
                self._blame.ended_well(self._first_ranks[pilot.lease] + int(ended), int(message["step"]))
            if pilot in self._group and not self._broken:
                self._break()

    def _break(self) -> None:
        self._broken = True
        self._news.set()
        self._services.wake()

    def _from_store(self, message: Message) -> None:
        op = message["op"]
        if op == "ready":
            self._store_ready = True
        elif op == "failed":
            self._services.finish(1, f"torchrun's store cannot be opened on the driver's host: {message['text']}")
        elif op == "opened":
            future = self._ports.pop(int(message["generation"]), None)
            if future is not None and not future.done():
                future.set_result(int(message["port"]))

    def _store_exited(self, rc: int) -> None:
        python = self._services.settings.python
        if self._store_ready:
            self._services.finish(1, f"torchrun's store, a process beside the driver, ended with code {rc}")
        elif (image := self._services.settings.spec.container) and self._store.last_line:
            self._services.finish(1, failed(image, [self._store.last_line]))
        else:
            self._services.finish(1, f"torchrun's store ended with code {rc}: is torch installed for {python}?")
