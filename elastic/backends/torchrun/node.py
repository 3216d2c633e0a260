"""torch.distributed.elastic's own agent on this node, with the driver as its rendezvous.

torchrun's stock rendezvous finds a change of members by time-outs (join 14 s, leave 11 s). The driver knows the
members exactly, so here a handler asks it; the store lives in the driver too, so losing any node loses no store.
Workers are forks of this process: a restart of all of them costs no import.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from elastic.node.link import AgentLink
from elastic.node.upkeep import Upkeep
from elastic.node.workers import run_worker
from elastic.session import new_page, read_page

_STORE_TIMEOUT = timedelta(seconds=30)

_RESTARTS = 1 << 30
"""Restarts are the driver's to count: it alone knows which of them were resizes."""


def preload() -> None:
    """Imports what every worker needs."""
    # Every restart of workers is a warning there; here it is a resize.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    import torch._dynamo  # noqa: F401  (torch.optim imports it at the first optimizer otherwise)

    import elastic  # noqa: F401


class DriverRendezvous(RendezvousHandler):
    """A rendezvous whose members, ranks and store the driver decides: `join` goes up, `rendezvous` comes down."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._regroup = False
        self.generation = -1

    def get_backend(self) -> str:
        return "bft"

    def get_run_id(self) -> str:
        return os.environ.get("BFT_TRAINER", "bft")

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of the driver's store; none of them serves one, since any of them may vanish."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Blocks until the driver has all members together."""
        self._regroup = False
        self._link.send({"op": "join", "generation": self.generation})
        while True:
            message = self._link.poll(None)
            assert message is not None
            if message["op"] == "rendezvous":
                break
        self.generation = int(message["generation"])
        host, port = str(message["address"]), int(message["port"])
        store = TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT)
        return RendezvousInfo(
            PrefixStore("bft-agents", store),
            int(message["rank"]),
            int(message["nodes"]),
            RendezvousStoreInfo(host, port),
        )

    def num_nodes_waiting(self) -> int:
        """1 when the driver wants the workers of this node stopped and regrouped."""
        while (message := self._link.poll()) is not None:
            self._regroup = self._regroup or message["op"] == "regroup"
        return int(self._regroup)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing: the driver ends a trainer by ending its pilots' processes."""

    def shutdown(self) -> bool:
        return True


class _NoLogFiles(LogsSpecs):
    """Workers write to this process's output, which travels to the trainer's log: no file on the node."""

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nothing = dict.fromkeys(envs, "")
        errors = dict.fromkeys(envs, os.devnull)
        return LogsDest(dict(nothing), dict(nothing), dict(nothing), dict(nothing), errors)


class _ElasticAgent(LocalElasticAgent):
    """torch's agent; it kills instead of asking (workers ignore SIGTERM) and tells the driver how workers ended."""

    def __init__(self, spec: WorkerSpec, link: AgentLink, pages: Sequence[Any]) -> None:
        super().__init__(spec, logs_specs=_NoLogFiles(), start_method="fork")
        self._link = link
        self._pages = pages
        self._upkeep = Upkeep()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 5) -> None:
        # torch kills the workers; what they started goes with them.
        workers = self._worker_pids()
        self._upkeep.kill(workers, workers)
        super()._shutdown(signal.SIGKILL, timeout)
        self._upkeep.settle(())

    def _worker_pids(self) -> list[int]:
        return list(self._pcontext.pids().values()) if self._pcontext else []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers = self._worker_pids()
        failed = [rc for rc in self._upkeep.look(workers) if rc]
        if failed:
            # torch would ask the others to end, which they do not hear, and wait 30 s for it.
            self._upkeep.kill(workers, workers)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            failures = failed or [failure.exitcode for failure in result.failures.values()]
            step, at_s = max((read_page(page) for page in self._pages), default=(-1, 0.0))
            self._link.send(
                {"op": "exit", "local_rank": 0, "rc": failures[0] if failures else 1, "step": step, "at_s": at_s}
            )
        return result

    def _exit_barrier(self) -> None:
        """The driver waits for the others: a barrier in the store would wait for a node that was just preempted."""


class TorchrunNode:
    """Runs torch's elastic agent for one pilot, from its first rendezvous to the end of training."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._link = link
        self._argv = tuple(argv)

    def run(self) -> None:
        """Waits for the driver's `join` and serves until training ends or the agent goes away."""
        # Slurm's SIGTERM is the pilot agent's business; torch would stop the workers at once.
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGUSR2"
        handler = DriverRendezvous(self._link)
        workers = int(os.environ["BFT_WORKERS_PER_NODE"])
        pages = [new_page() for _ in range(workers)]
        spec = WorkerSpec(
            role="default",
            local_world_size=workers,
            rdzv_handler=handler,
            entrypoint=_entry,
            args=(self._link, handler, self._argv, pages),
            max_restarts=_RESTARTS,
            monitor_interval=0.05,
        )
        while (message := self._link.poll(None)) is not None:
            if message["op"] == "join":
                break
        result = _ElasticAgent(spec, self._link, pages).run()
        self._link.send({"op": "done" if not result.is_failed() else "failed"})
        while True:
            self._link.poll(None)


def _entry(link: AgentLink, handler: DriverRendezvous, argv: Sequence[str], pages: Sequence[Any]) -> None:
    """The function that torch's agent forks for each local rank."""
    generation = handler.generation
    local_rank = int(os.environ["LOCAL_RANK"])
    link.close_in_child()
    environ = {
        "BFT_HOST": os.environ["BFT_LEASE"],
        "BFT_LOCAL_RANK": str(local_rank),
        "BFT_GENERATION": str(generation),
        # Names the workers' prefix in the store. Agents count their own restarts, so it would differ between nodes.
        "TORCHELASTIC_RESTART_COUNT": str(generation),
    }
    code = run_worker(argv, environ, pages[local_rank])
    if code:
        os._exit(code)
