"""python -m benchmarks.drivers.clients: agents and Horovod workers that only speak, many in one process.

They prove themselves and seal as the real ones do, and answer beats and pings. They ask Horovod's rendezvous for their
rank in every group but their first, as Horovod's library does, and tell a first step of every group, rank 0 one a
second. They compute nothing. A rank that leaves its group breaks it for all others in a moment, as the end of a
connection between real ones does.

Commands come on standard input, a JSON object a line:

    begin    the driver's address and secret, leases to be agents of, workers a node; answered once all are connected
    ready    all agents are
    vanish   leases whose connections end without a word, as when nodes lose power
    crash    a lease on which one worker ends with code 1
    formed   a number of ranks; answered with how many workers here have a rank in a group of so many, and since when
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic.link.authentication import Seal
from elastic.link.channel import SealedReader, introduce
from elastic.link.wire import MAX_LINE_BYTES, Message, encode

_STEP_S = 1.0
_BREAKS_S = 0.1
_TRIES, _RETRY_S = 20, 0.3
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


class Link:
    """One sealed connection to the driver."""

    def __init__(self, reader: SealedReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self._reader = reader
        self._writer = writer
        self._seal = seal

    @classmethod
    async def open(cls, address: str, secret: str, about: Message) -> Link:
        """Raises OSError, also when the driver hangs up."""
        host, _, port = address.rpartition(":")
        for _ in range(_TRIES):
            try:
                reader, writer = await asyncio.open_connection(host, int(port), limit=MAX_LINE_BYTES)
                seals = await introduce(reader, writer, secret, about)
            except ConnectionError:
                seals = None
            if seals is not None:
                return cls(SealedReader(reader, seals.incoming), writer, seals.outgoing)
            # A thousand at once from one process are more than a driver looks at in a second.
            await asyncio.sleep(_RETRY_S)
        raise ConnectionError("the driver hung up")

    def send(self, **message: Any) -> None:
        """Sends one message, if the driver is there."""
        if not self._writer.is_closing():
            self._writer.write(self._seal.line(encode(message)))

    async def receive(self) -> Message | None:
        """The next message, None at the end."""
        with contextlib.suppress(ConnectionError):
            return await self._reader.receive()
        return None

    def cut(self) -> None:
        """Ends the connection without a word."""
        self._writer.transport.abort()


class Worker:
    """One rank; `ended` is told the code with which it leaves training."""

    def __init__(self, agent: Agent, host: str, local_rank: int, env: Mapping[str, str]) -> None:
        self.host, self.local_rank = host, local_rank
        self.size = self.nodes = 0
        self.since_s = 0.0
        self._agent = agent
        self._rendezvous = (agent.driver[0].rpartition(":")[0], int(env["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
        self._place: list[int] | None = [int(env[f"HOROVOD_{name}"]) for name in _PLACE]
        self._link: Link | None = None
        self._group: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run())

    def regroup(self) -> None:
        """Leaves its group for the next one; a worker that waits for its rank is in none."""
        if self.size and self._group is not None:
            self._agent.broken()
            self._group.cancel()
            self._group = asyncio.create_task(self._train())

    def cut(self) -> None:
        """Ends, and is heard no more."""
        if self.size:
            self._agent.broken()
        self.size = 0
        for task in (self._group, self._task):
            if task is not None:
                task.cancel()
        if self._link is not None:
            self._link.cut()

    async def _run(self) -> None:
        lease_id, _, incarnation = self.host.rpartition(".")
        about = {"role": "worker", "lease": lease_id, "incarnation": int(incarnation), "local_rank": self.local_rank}
        try:
            self._link = await Link.open(*self._agent.driver, {**about, "pid": os.getpid()})
        except OSError:
            self._agent.ended(self, 75)
            return
        self._group = asyncio.create_task(self._train())
        while (message := await self._link.receive()) is not None:
            if message["op"] == "ping":
                self._link.send(op="pong")
            elif message["op"] == "abort":
                self.regroup()
            elif message["op"] in ("ship", "pause"):
                self._link.send(op="nothing_saved")

    async def _train(self) -> None:
        """From the rendezvous on."""
        assert self._link is not None
        self.size = self.nodes = 0
        try:
            rank, size, local_rank, _, _, nodes = self._place or await self._ask_for_rank()
        except (OSError, ValueError):
            self._agent.ended(self, 1)
            return
        if rank < 0:
            self._agent.ended(self, -6)  # as Horovod's library ends a worker that was removed
            return
        self._place = None
        self.size, self.nodes, self.since_s = size, nodes, time.time()
        first = True
        while first or rank == 0:
            self._step(rank, size, nodes if local_rank == 0 else 0, first)
            first = False
            await asyncio.sleep(_STEP_S)

    def _step(self, rank: int, size: int, nodes: int, first: bool) -> None:
        assert self._link is not None
        now_s = time.time()
        # Of all processes the same at one time, and always higher.
        step = int((now_s - self._agent.began_s) * 1000) + 1
        self._link.send(
            op="step",
            first=first,
            step=step,
            samples=step,
            saved_step=step,
            saved_samples=step,
            rank=rank,
            size=size,
            nodes=nodes,
            loss=None,
            steps_lost=0,
            at_s=now_s,
        )

    async def _ask_for_rank(self) -> list[int]:
        reader, writer = await asyncio.open_connection(*self._rendezvous)
        try:
            path = f"/rank_and_size/{self.host}:{self.local_rank}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: rendezvous\r\n\r\n".encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
        return [int(word) for word in answer.rpartition(b"\r\n\r\n")[2].split(b",")]


class Agent:
    """One node."""

    def __init__(
        self, driver: tuple[str, str], lease: str, workers: int, began_s: float, broken: Callable[[], None]
    ) -> None:
        """`broken` is called when a worker here leaves its group."""
        self.driver, self.began_s, self.broken = driver, began_s, broken
        self.workers: dict[tuple[str, int], Worker] = {}
        self.connected = False
        self._lease = lease
        self._workers_per_node = workers
        self._link: Link | None = None
        self._task = asyncio.create_task(self._run())

    def ready(self) -> None:
        """The node has imported what its workers need."""
        assert self._link is not None
        self._link.send(op="ready")

    def vanish(self) -> None:
        """The node loses power."""
        self._task.cancel()
        for worker in self.workers.values():
            worker.cut()
        self.workers.clear()
        if self._link is not None:
            self._link.cut()

    def crash(self) -> None:
        """One worker ends by itself."""
        worker = next(iter(self.workers.values()))
        worker.cut()
        self.ended(worker, 1)

    def ended(self, worker: Worker, rc: int) -> None:
        """Tells the driver of a worker's end."""
        if self.workers.pop((worker.host, worker.local_rank), None) is worker and self._link is not None:
            told = {"host": worker.host, "local_rank": worker.local_rank, "rc": rc, "step": -1, "at_s": time.time()}
            self._link.send(op="exit", **told)

    async def _run(self) -> None:
        about = {"role": "agent", "lease": self._lease, "node": self._lease, "job_id": "", "pid": os.getpid()}
        self._link = await Link.open(*self.driver, about)
        while (message := await self._link.receive()) is not None:
            op = message["op"]
            if op == "configure":
                self._link.send(op="node", workers_per_node=self._workers_per_node)
                self.connected = True
            elif op == "beat":
                self._link.send(**message)
            elif op == "start":
                self._start(message)
            elif op == "kill":
                self._kill(str(message["host"]))
            elif op in ("end", "go"):
                break
        self.vanish()

    def _start(self, message: Message) -> None:
        host, local_rank = str(message["host"]), int(message["local_rank"])
        self.workers[host, local_rank] = Worker(self, host, local_rank, message["env"])

    def _kill(self, host: str) -> None:
        for worker in [worker for (name, _), worker in self.workers.items() if name == host]:
            worker.cut()
            self.ended(worker, -9)


class Clients:
    """All that this process plays."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self._breaking = False
        self._completing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serves until standard input ends."""
        lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while line := await lines.readline():
            command = json.loads(line)
            if command["do"] == "begin":
                driver = (command["address"], command["secret"])
                for lease in command["leases"]:
                    self._agents[lease] = Agent(driver, lease, command["workers"], command["began_s"], self._broken)
                while not all(agent.connected for agent in self._agents.values()):
                    await asyncio.sleep(0.01)
                print("{}", flush=True)
            elif command["do"] == "ready":
                for agent in self._agents.values():
                    agent.ready()
            elif command["do"] == "vanish":
                for lease in command["leases"]:
                    self._agents.pop(lease).vanish()
            elif command["do"] == "crash":
                self._completing = self._completing or asyncio.create_task(self._complete())
                self._agents[command["lease"]].crash()
            elif command["do"] == "formed":
                since_s = [
                    worker.since_s
                    for worker in self._workers()
                    if worker.size == command["size"] and worker.since_s >= command["after_s"]
                ]
                print(json.dumps({"count": len(since_s), "last_s": max(since_s, default=0.0)}), flush=True)
        transport.close()

    async def _complete(self) -> None:
        """Has each group that stays without one of the nodes form anew.

        Survivors of a crash may be a group before its node is listed again; Horovod notifies only real workers of that.
        """
        while True:
            await asyncio.sleep(_STEP_S)
            before_s = time.time() - _STEP_S
            for worker in self._workers():
                if 0 < worker.nodes < len(self._agents) and worker.since_s < before_s:
                    worker.regroup()

    def _workers(self) -> list[Worker]:
        return [worker for agent in self._agents.values() for worker in agent.workers.values()]

    def _broken(self) -> None:
        if not self._breaking:
            self._breaking = True
            asyncio.get_running_loop().call_later(_BREAKS_S, self._break, time.time())

    def _break(self, at_s: float) -> None:
        """Whoever is still in a group of before leaves it now."""
        for worker in self._workers():
            if worker.since_s < at_s:
                worker.regroup()
        self._breaking = False


if __name__ == "__main__":
    asyncio.run(Clients().run())
