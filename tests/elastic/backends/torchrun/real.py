"""A real group of torchrun's: the driver's side in this process, its store a process, nodes forked from this one.

No Slurm and no agents: a node's messages come and go over the socket that its agent would hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil

from elastic.backends.torchrun.driver import TorchrunBackend
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.server import Hub, listen
from elastic.link.child_process import die_with_parent
from elastic.link.peer import Peer
from elastic.link.wire import Message, decode, encode
from elastic.node.link import AgentLink
from tests.elastic.backends.stage import FakeServices
from tests.elastic.fakes import settings_for
from tests.support.waiting import STILL_S


class RealNode:
    """A node process and its pilot; what it is told goes straight to it."""

    def __init__(self, name: str, folder: Path, environ: dict[str, str], workers: int, prepare: Callable[[], None]):
        ours, theirs = socket.socketpair()
        self.sock = ours
        self.pilot = Pilot(f"{name}.1", name, 3600.0, "", state="ready", workers_per_node=workers)
        self.pilot.agent = self  # type: ignore[assignment]
        self.said: list[Message] = []
        environ = {
            **environ,
            "BFT_LEASE": self.pilot.lease,
            "BFT_WORKERS_PER_NODE": str(workers),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        process = multiprocessing.get_context("fork").Process(
            target=_node, args=(theirs, ours, folder, environ, prepare)
        )
        process.start()
        self.process: ForkProcess = process
        theirs.close()
        ours.setblocking(False)
        self.buffer = b""

    def send(self, message: Message) -> None:
        """As an agent's connection: who is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.sock.sendall(encode(message))

    @property
    def tunnel(self) -> psutil.Process | None:
        """The way to the store, once it has become a process of its own."""
        children = psutil.Process(self.process.pid).children()
        return next((child for child in children if "elastic.backends.torchrun.tunnel" in child.cmdline()), None)

    def kill(self) -> None:
        """The node goes, with all its processes."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            child.kill()
        self.process.kill()


class Group:
    """A back-end, its nodes, and what workers wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services = FakeServices(replace(settings_for(folder, "1-8", "torchrun"), interpreter=sys.executable))
        self.backend = TorchrunBackend(self.services)
        self.nodes: dict[str, RealNode] = {}
        self.steps: list[Message] = []
        """What workers told of their steps."""
        self._listening = listen()
        self._hub = Hub(self, self.services.settings.secret, self._listening)

    def node(self, name: str, workers: int = 1, prepare: Callable[[], None] = lambda: None) -> Pilot:
        """Starts a node process; `prepare` runs in it first. The trainer's secret is in its environment alone."""
        environ = {
            "BFT_DRIVER": f"127.0.0.1:{self._listening.getsockname()[1]}",
            "BFT_SECRET": self.services.settings.secret,
            "BFT_TRAINER": "7",
            "PYTHONPATH": str(Path(__file__).parents[4]),
        }
        node = RealNode(name, self.folder, environ, workers, prepare)
        self.nodes[name] = node
        asyncio.get_running_loop().add_reader(node.sock, self._hear, node)
        return node.pilot

    def rows(self) -> list[dict[str, Any]]:
        """What the script wrote, a line a worker."""
        path = self.folder / "rows"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def until(self, what: str, condition: Callable[[], Any]) -> Any:
        deadline_s = asyncio.get_running_loop().time() + STILL_S
        while not (result := condition()):
            assert asyncio.get_running_loop().time() < deadline_s, f"never happened: {what}; {self.rows()}"
            await asyncio.sleep(0.01)
        return result

    async def close(self) -> None:
        self._hub.close()
        for node in self.nodes.values():
            asyncio.get_running_loop().remove_reader(node.sock)
            node.sock.close()
            if node.process.is_alive():
                node.kill()
            node.process.join()
        await self.backend.close()

    # -- what the trainer does ---

    def _hear(self, node: RealNode) -> None:
        try:
            data = node.sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(node.sock)
            node.pilot.leaving = True
            self.backend.lost(node.pilot)
            return
        *lines, node.buffer = (node.buffer + data).split(b"\n")
        for line in lines:
            message = decode(line)
            node.said.append(message)
            self.backend.received(node.pilot, message)

    def connected(self, peer: Peer) -> bool:
        node = next(node for node in self.nodes.values() if node.pilot.lease == peer.hello["lease"])
        node.pilot.workers[int(peer.hello["local_rank"])] = peer
        return True

    async def received(self, peer: Peer, message: Message) -> None:
        if message["op"] == "step":
            self.steps.append(message)

    def disconnected(self, peer: Peer) -> None:
        for node in self.nodes.values():
            for local_rank, worker in list(node.pilot.workers.items()):
                if worker is peer:
                    del node.pilot.workers[local_rank]


@asynccontextmanager
async def grouped(folder: Path, script: str) -> AsyncIterator[Group]:
    """A group whose nodes run `script`."""
    from elastic.backends.torchrun.node import preload

    (folder / "train.py").write_text(script)
    preload()  # once for all nodes: they are forks
    group = Group(folder)
    await group.backend.start()
    try:
        yield group
    finally:
        await group.close()


def _node(
    theirs: socket.socket, ours: socket.socket, folder: Path, environ: dict[str, str], prepare: Callable[[], None]
) -> None:
    die_with_parent()
    ours.close()
    os.environ.update(environ)
    os.chdir(folder)
    from elastic.backends.torchrun.node import TorchrunNode

    prepare()
    try:
        TorchrunNode(AgentLink(theirs.detach()), [str(folder / "train.py")]).run()
    except EOFError:
        os._exit(0)
