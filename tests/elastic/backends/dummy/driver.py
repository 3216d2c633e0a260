"""The driver's half: tells the node processes who is in the group, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.backends.base import Backend, TrainerServices
from elastic.driver.pilots.launcher import Pilot
from elastic.link.wire import Message


class DummyBackend(Backend):
    """A node's one worker starts with `group` and ends with `leave`."""

    def __init__(self, services: TrainerServices) -> None:
        super().__init__(services)
        self._group: list[Pilot] = []
        self._done: set[str] = set()
        self._clean = True

    @property
    def running(self) -> bool:
        return bool(self._group)

    def uses(self, pilot: Pilot) -> bool:
        return pilot in self._group

    async def start(self) -> None:
        pass

    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        if list(pilots) == self._group and self._clean:
            return
        if not set(self._group) & set(pilots):
            await self.suspend()
        for pilot in set(self._group) - set(pilots):
            pilot.send({"op": "leave"})
        self._group, self._done, self._clean = list(pilots), set(), True
        for rank, pilot in enumerate(pilots):
            pilot.send({"op": "group", "rank": rank, "size": len(pilots)})

    async def suspend(self) -> None:
        group, self._group = self._group, []
        if not group:
            return
        workers = [worker for pilot in group for worker in pilot.workers.values()]
        await self._services.save_checkpoint(workers, graceful=self._clean)
        self._clean = True
        for pilot in group:
            pilot.send({"op": "leave"})

    def lost(self, pilot: Pilot) -> None:
        if pilot in self._group:
            self._group = [member for member in self._group if member is not pilot]
            self._clean = False
        self._services.wake()

    def received(self, pilot: Pilot, message: Message) -> None:
        if message["op"] == "done" and pilot in self._group:
            self._services.log(f"{pilot.node}: {message.get('text')}")
            self._done.add(pilot.lease)
            if len(self._done) == len(self._group):
                self._services.finish(0, "training is complete")
        elif message["op"] == "exit":
            self._clean = False
            self._services.broke(int(message["step"]), float(message["at_s"]))
            self._services.crashed(pilot, int(message["rc"]))
            self._services.wake()

    async def close(self) -> None:
        pass
