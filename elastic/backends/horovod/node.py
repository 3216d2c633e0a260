"""Starts Horovod workers on this node as the driver's ElasticDriver asks for them."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess

from elastic.backends.horovod.environment import worker_environment
from elastic.link.wire import Message
from elastic.node.link import AgentLink
from elastic.node.workers import run_worker
from elastic.session import new_page, read_page


def preload() -> None:
    """Imports what every worker needs."""
    import torch
    import torch._dynamo  # noqa: F401  (torch.optim imports it at the first optimizer otherwise: a second of stall)

    import elastic.horovod  # noqa: F401


class HorovodNode:
    """Forks a worker for each `start`, reports each exit with the last step that the worker reached."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._link = link
        self._argv = argv
        self._workers: dict[tuple[str, int], tuple[BaseProcess, mmap.mmap]] = {}

    def run(self) -> None:
        """Serves until the agent goes away."""
        while True:
            sentinels = {process.sentinel: key for key, (process, _) in self._workers.items()}
            ready = connection.wait([self._link.fileno(), *sentinels])
            for sentinel in sentinels.keys() & set(ready):
                self._exited(sentinels[sentinel])
            if self._link.fileno() in ready:
                self._receive()

    def _receive(self) -> None:
        while (message := self._link.poll()) is not None:
            if message["op"] == "start":
                self._start(message)
            elif message["op"] == "kill":
                self._kill(message["host"])

    def _start(self, message: Message) -> None:
        page = new_page()
        host, local_rank = message["host"], int(message["local_rank"])
        environ = {**worker_environment(message), "BFT_HOST": host, "BFT_LOCAL_RANK": str(local_rank)}
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_worker, args=(self._link, self._argv, environ, page))
        process.start()
        self._workers[host, local_rank] = (process, page)

    def _kill(self, host: str) -> None:
        for (name, _), (process, _page) in self._workers.items():
            if name == host:
                process.kill()

    def _exited(self, key: tuple[str, int]) -> None:
        process, page = self._workers.pop(key)
        process.join()
        step, at_s = read_page(page)
        self._link.send(
            {"op": "exit", "host": key[0], "local_rank": key[1], "rc": process.exitcode, "step": step, "at_s": at_s}
        )


def _worker(link: AgentLink, argv: Sequence[str], environ: dict[str, str], page: mmap.mmap) -> None:
    link.close_in_child()
    os._exit(run_worker(argv, environ, page))
