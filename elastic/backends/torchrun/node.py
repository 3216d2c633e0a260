"""torch.distributed.elastic's own agent on this node, with the driver as its rendezvous.

Workers are forks of this process: a restart of all of them costs no import. This process survives any failure of a
group of workers: it reports to the driver, and comes to the next rendezvous.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from elastic.backends.torchrun.rendezvous import DriverRendezvous
from elastic.backends.torchrun.tunnel import Tunnel
from elastic.node.cleanup import NodeCleanup, exit_code
from elastic.node.link import AgentLink
from elastic.node.workers import run_worker
from elastic.worker.driver_link import new_page, read_page

_RESTARTS = 1 << 30
"""The driver counts restarts: it alone knows which of them were resizes."""

_LAST_WORDS_S = 0.25
"""The time for a worker that takes the group down before it reports its own error, and so ends after its peers."""


def preload() -> None:
    """Import what every worker needs."""
    # torch logs every restart of workers as a warning; here it is a resize.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    import torch._dynamo  # noqa: F401  (torch.optim imports it at the first optimizer otherwise)

    import elastic  # noqa: F401
    from elastic.checkpoint.distributed import ending

    ending.watch()


class _NoLogFiles(LogsSpecs):
    """No log files: workers write to this process's output, which goes to the trainer's log."""

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nothing = dict.fromkeys(envs, "")
        errors = dict.fromkeys(envs, os.devnull)
        return LogsDest(dict(nothing), dict(nothing), dict(nothing), dict(nothing), errors)


class _ElasticAgent(LocalElasticAgent):
    """torch's agent, except that it kills (workers ignore SIGTERM) and reports to the driver how workers ended."""

    def __init__(
        self, spec: WorkerSpec, rendezvous: DriverRendezvous, pages: Sequence[Any], upkeep: NodeCleanup
    ) -> None:
        super().__init__(spec, logs_specs=_NoLogFiles(), start_method="fork")
        rendezvous.on_leaving = lambda: upkeep.sample(self._worker_pids())
        self._rendezvous_of_driver = rendezvous
        self._pages = pages
        self._upkeep = upkeep
        self._failed: list[int] = []
        self._ended: int | None = None
        self._seen_s = 0.0
        self._killed = False

    def report_exit(self, local_rank: int, rc: int) -> None:
        """Report that a worker ended with an error, or could not be started."""
        step, at_s = last_step(self._pages)
        message = {"op": "exit", "local_rank": local_rank, "rc": rc, "step": step, "at_s": at_s}
        if self._ended is not None:
            message["ended"] = self._ended  # with 0, while the others trained
        self._rendezvous_of_driver.send(message)

    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Assign the driver's ranks: torch would gather them from all nodes, including one that is gone."""
        world, first = self._rendezvous_of_driver.world, self._rendezvous_of_driver.first_rank
        return [
            Worker(
                local_rank=local_rank,
                global_rank=first + local_rank,
                role_rank=first + local_rank,
                world_size=world,
                role_world_size=world,
            )
            for local_rank in range(spec.local_world_size)
        ]

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 5) -> None:
        # torch kills the workers; the processes that they started must go with them.
        workers = self._worker_pids()
        self._upkeep.kill(workers, workers)
        super()._shutdown(signal.SIGKILL, timeout)
        self._failed, self._ended, self._seen_s, self._killed = [], None, 0.0, False
        self._upkeep.settle(())

    def _worker_pids(self) -> list[int]:
        return list(self._pcontext.pids().values()) if self._pcontext else []

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers = self._worker_pids()
        ended = self._upkeep.look(workers)
        if any(ended) and not self._killed:
            self._failed = [rc for rc in ended if rc]
            well = [rank for rank, worker in enumerate(self._processes) if _ended_well(worker)]
            self._ended = min(well, default=self._ended)
            self._seen_s = self._seen_s or time.monotonic()
            if len(ended) < len(workers) and time.monotonic() < self._seen_s + _LAST_WORDS_S:
                return RunResult(WorkerState.HEALTHY)
            # Ends seen after this are of workers killed here.
            self._killed = True
            # torch would send the others a SIGTERM, which they ignore, and wait 30 s.
            self._upkeep.kill(workers, workers)
        result: RunResult = super()._monitor_workers(worker_group)
        # If workers are to be stopped, the first that are stopped make the others end: that is no crash.
        is_failure = result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)
        if is_failure and not self._rendezvous_of_driver.num_nodes_waiting():
            local_rank, failure = next(iter(result.failures.items()), (0, None))
            rc = failure.exitcode if failure is not None else 1
            self.report_exit(local_rank, _cause(self._failed) if self._failed else rc)
        if result.state == WorkerState.HEALTHY and not self._failed and self._all_ended_well():
            nothing = {worker.global_rank: None for worker in worker_group.workers}
            return RunResult(WorkerState.SUCCEEDED, return_values=nothing)
        return result

    def _all_ended_well(self) -> bool:
        """Whether all have exited with 0; torch waits for each function's result, but a script may call os._exit(0)."""
        return self._pcontext is not None and all(map(_ended_well, self._processes))

    @property
    def _processes(self) -> Sequence[multiprocessing.Process]:
        """The workers by local rank, as torch keeps them."""
        context: Any = self._pcontext
        return context._pc.processes if context is not None else ()

    def _exit_barrier(self) -> None:
        """Skip it, as the driver waits for the others: a barrier in the store would wait for a node just preempted."""


class TorchrunNode:
    """A run of torch's elastic agent for one pilot: from each rendezvous to the end of that group's workers."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._tunnel = Tunnel()
        self._upkeep = NodeCleanup(self._tunnel.processes)
        self._rendezvous = DriverRendezvous(link, self._tunnel)
        workers = int(os.environ["BFT_WORKERS_PER_NODE"])
        self._pages = [new_page() for _ in range(workers)]
        self._spec = WorkerSpec(
            role="default",
            local_world_size=workers,
            rdzv_handler=self._rendezvous,
            entrypoint=_entry,
            args=(link, self._rendezvous, self._tunnel, tuple(argv), self._pages),
            max_restarts=_RESTARTS,
            monitor_interval=0.05,
        )

    def run(self) -> None:
        """Wait for the driver's `join`, then serve until the agent goes away."""
        # The pilot's agent handles Slurm's SIGTERM; torch would stop the workers at once.
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGUSR2"
        self._tunnel.start()
        self._rendezvous.wait_for("join")
        while True:
            if self._train():
                self._rendezvous.send({"op": "done", "step": last_step(self._pages)[0]})
                # Another node's script may still fail: then all start over from the last state.
                self._rendezvous.wait_for("join", "regroup")

    def _train(self) -> bool:
        """Come to the rendezvous, and again after each resize and crash; True once all workers have ended with 0."""
        agent = _ElasticAgent(self._spec, self._rendezvous, self._pages, self._upkeep)
        try:
            return not agent.run().is_failed()
        except EOFError:
            raise
        except Exception as error:  # torch raises many kinds of errors, and so does a node short of memory
            reason = str(error).partition("\n")[0]
            print(f"bft: workers could not be run: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)
            agent.report_exit(0, 1)
            return False


def last_step(pages: Sequence[Any]) -> tuple[int, float]:
    """Return the last step that a worker of the node is known to have ended, -1 for none, and its time."""
    return max((read_page(page) for page in pages), default=(-1, 0.0))


def _cause(codes: Sequence[int]) -> int:
    """Return the exit code of the worker that caused the others' ends: a killed one did not fail for lack of peers."""
    return min(codes, key=lambda rc: rc >= 0 or rc == -signal.SIGABRT)


def _ended_well(worker: multiprocessing.Process) -> bool:
    assert worker.pid is not None
    rc = exit_code(worker.pid)
    # None while it lives, or if torch has already reaped it.
    return (worker.exitcode if rc is None else rc) == 0


def _entry(
    link: AgentLink, rendezvous: DriverRendezvous, tunnel: Tunnel, argv: Sequence[str], pages: Sequence[Any]
) -> None:
    """Run a worker: the function that torch's agent forks for each local rank."""
    generation = rendezvous.generation
    local_rank = int(os.environ["LOCAL_RANK"])
    link.close_in_child()
    tunnel.close_in_child()
    environ = {
        "BFT_LOCAL_RANK": str(local_rank),
        "BFT_GENERATION": str(generation),
        # It names the workers' prefix in the store. Agents count their own restarts, so it would differ between nodes.
        "TORCHELASTIC_RESTART_COUNT": str(generation),
    }
    # Not torch's way of ending, in which a worker waits for the others of its node.
    os._exit(run_worker(argv, environ, pages[local_rank]))
