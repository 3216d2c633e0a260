"""The start of Horovod workers on this node, when the driver's ElasticDriver asks for them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from elastic.link.address import split_address
from elastic.link.wire import Message
from elastic.node.link import AgentLink
from elastic.node.workers import NodeWorkers, WorkerProcess
from elastic.worker.driver_link import read_page


def preload() -> None:
    """Import what every worker needs."""
    import torch

    import elastic.horovod  # noqa: F401

    # Its compiler, which torch.optim imports at the first optimizer otherwise: a second of stall.
    torch.compiler.disable(preload)  # type: ignore[no-untyped-call]


class HorovodNode:
    """The Horovod side of a node: it forks a worker for each `start`, and reports each exit with its last step."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._link = link
        self._workers = NodeWorkers(link, argv)
        self._by_key: dict[tuple[str, int], WorkerProcess] = {}

    def run(self) -> None:
        """Serve until the agent goes away."""
        while True:
            self._workers.wait()
            for key in list(self._by_key):
                self._exited(key)
            self._receive()
            self._workers.cleanup.look(self._workers.pids)

    def _receive(self) -> None:
        while (message := self._link.poll()) is not None:
            if message["op"] == "start":
                self._start(message)
            elif message["op"] == "kill":
                self._kill(message["host"])
            elif message["op"] == "leaving":
                self._workers.cleanup.sample(self._workers.pids)

    def _start(self, message: Message) -> None:
        # A worker that was ended a moment ago may still hold the GPU.
        self._workers.cleanup.wait_for_killed()
        self._workers.cleanup.settle(self._workers.pids)
        host, local_rank = message["host"], int(message["local_rank"])
        incarnation = host.rpartition(".")[2]
        environ = {**worker_environment(message), "BFT_INCARNATION": incarnation, "BFT_LOCAL_RANK": str(local_rank)}
        self._by_key[host, local_rank] = self._workers.start(environ)

    def _kill(self, host: str) -> None:
        doomed = [worker.pid for (name, _), worker in self._by_key.items() if name == host]
        self._workers.cleanup.kill(doomed, self._workers.pids)

    def _exited(self, key: tuple[str, int]) -> None:
        worker = self._by_key[key]
        if (rc := self._workers.reap(worker)) is None:
            return
        del self._by_key[key]
        step, at_s = read_page(worker.page)
        self._link.send({"op": "exit", "host": key[0], "local_rank": key[1], "rc": rc, "step": step, "at_s": at_s})
        self._workers.cleanup.settle(self._workers.pids)


def worker_environment(start: Message) -> dict[str, str]:
    """Return the variables of a `start` message, without the key, which is kept in this process for its forked workers.

    The user's own settings for gloo and Horovod are kept.
    """
    from elastic.backends.horovod.notification_address import keep_key

    defaults = {name: value for name, value in start["defaults"].items() if name not in os.environ}
    # The rendezvous is beside the driver, which this node may reach by another address than other nodes do.
    where = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": split_address(os.environ["BFT_DRIVER"])[0]}
    environ = {**defaults, **start["env"], **where}
    keep_key(environ)
    return environ
