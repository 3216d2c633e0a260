"""The start of Horovod workers on this node, when the driver's ElasticDriver asks for them."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection

from elastic.link.address import split_address
from elastic.link.wire import Message
from elastic.node.cleanup import NodeCleanup
from elastic.node.link import AgentLink
from elastic.node.workers import run_worker
from elastic.worker.driver_link import new_page, read_page

_LOOK_S = 1.0
_SOON_S = 0.02
"""A worker that has closed its files ends within microseconds, or goes on forever as a daemon of its own making."""


def preload() -> None:
    """Import what every worker needs."""
    import torch
    import torch._dynamo  # noqa: F401  (torch.optim imports it at the first optimizer otherwise: a second of stall)

    import elastic.horovod  # noqa: F401


@dataclass
class _Worker:
    pid: int
    page: mmap.mmap

    end: int | None
    """Readable once the worker has ended. Unlike with multiprocessing, no fork of the worker holds its other end."""

    def close(self) -> None:
        if self.end is not None:
            os.close(self.end)
            self.end = None


class HorovodNode:
    """The Horovod side of a node: it forks a worker for each `start`, and reports each exit with its last step."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._link = link
        self._argv = argv
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._upkeep = NodeCleanup()

    def run(self) -> None:
        """Serve until the agent goes away."""
        while True:
            workers = self._workers.values()
            ends = {worker.end: worker for worker in workers if worker.end is not None}
            ready = connection.wait([self._link.fileno(), *ends], _LOOK_S if len(ends) == len(workers) else _SOON_S)
            for end in ends.keys() & set(ready):
                ends[end].close()
            for key in list(self._workers):
                self._exited(key)
            if self._link.fileno() in ready:
                self._receive()
            self._upkeep.look(self._living())

    def _receive(self) -> None:
        while (message := self._link.poll()) is not None:
            if message["op"] == "start":
                self._start(message)
            elif message["op"] == "kill":
                self._kill(message["host"])
            elif message["op"] == "leaving":
                self._upkeep.sample(self._living())

    def _start(self, message: Message) -> None:
        # A worker that was ended a moment ago may still hold the GPU.
        self._upkeep.wait_for_killed()
        self._upkeep.settle(self._living())
        page = new_page()
        host, local_rank = message["host"], int(message["local_rank"])
        incarnation = host.rpartition(".")[2]
        environ = {**worker_environment(message), "BFT_INCARNATION": incarnation, "BFT_LOCAL_RANK": str(local_rank)}
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            self._become_worker(environ, page, theirs)
        os.close(theirs)
        self._workers[host, local_rank] = _Worker(pid, page, ours)

    def _become_worker(self, environ: dict[str, str], page: mmap.mmap, end: int) -> None:
        """Run the script in the fork; does not return."""
        code = 1
        try:
            self._link.close_in_child()
            for worker in self._workers.values():
                worker.close()
            ends = [end]
            os.register_at_fork(after_in_child=lambda: _close_once(ends))
            code = run_worker(self._argv, environ, page)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _kill(self, host: str) -> None:
        doomed = [worker.pid for (name, _), worker in self._workers.items() if name == host]
        self._upkeep.kill(doomed, self._living())

    def _exited(self, key: tuple[str, int]) -> None:
        worker = self._workers[key]
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if not pid:
            return
        del self._workers[key]
        worker.close()
        step, at_s = read_page(worker.page)
        rc = os.waitstatus_to_exitcode(status)
        self._link.send({"op": "exit", "host": key[0], "local_rank": key[1], "rc": rc, "step": step, "at_s": at_s})
        self._upkeep.settle(self._living())

    def _living(self) -> list[int]:
        return [worker.pid for worker in self._workers.values()]


def _close_once(ends: list[int]) -> None:
    # In a fork of a fork the descriptor's number may be another file's.
    while ends:
        with contextlib.suppress(OSError):
            os.close(ends.pop())


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
