"""torchrun on this node: it comes to each rendezvous of the driver's, and has a group's workers until they end.

torch's own agent would find a change of members by time-outs (join 14 s, leave 11 s), and gather ranks from all nodes,
also from one that was taken meanwhile. The driver knows the members exactly: it tells each node its ranks, and the
nodes exchange nothing. Workers are forks of this process: a restart of all of them costs no import. This process
survives any failure of a group of workers: it reports to the driver, and comes to the next rendezvous.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from elastic.backends.torchrun.tunnel import ADDRESS, Tunnel
from elastic.link.address import split_address
from elastic.link.wire import Message
from elastic.node.link import AgentLink
from elastic.node.workers import LOOK_S, NodeWorkers, WorkerProcess
from elastic.worker.driver_link import read_page

_LAST_WORDS_S = 0.25
"""The time for a worker that takes the group down before it reports its own error, and so ends after its peers."""


def preload() -> None:
    """Import what every worker needs."""
    import torch

    import elastic  # noqa: F401
    from elastic.checkpoint.distributed import ending

    # Its compiler, which torch.optim imports at the first optimizer otherwise: a second of stall.
    torch.compiler.disable(preload)  # type: ignore[no-untyped-call]
    ending.watch()


class TorchrunNode:
    """A pilot's part of a trainer: a group's workers from each rendezvous to their end."""

    def __init__(self, link: AgentLink, argv: Sequence[str]) -> None:
        self._link = link
        self._tunnel = Tunnel()
        self._workers = NodeWorkers(link, argv, self._tunnel.processes, self._tunnel.close_in_child)
        self._number = int(os.environ["BFT_WORKERS_PER_NODE"])
        self._group: list[WorkerProcess] = []
        self._generation = -1
        self._regroup = False

    def run(self) -> None:
        """Wait for the driver's `join`, then serve until the agent goes away."""
        self._tunnel.start()
        self._wait_for("join")
        while True:
            self._send({"op": "join", "generation": self._generation})
            message = self._wait_for("rendezvous")
            self._regroup = False
            try:
                self._start(message)
                well = self._watch()
            except OSError as error:  # a node may be short of processes or memory
                print(f"bft: workers could not be run: {error}", file=sys.stderr, flush=True)
                self._report({0: 1})
                well = False
            step, _ = self._last_step()
            self._workers.stop()
            self._group = []
            if well:
                self._send({"op": "done", "step": step})
                if not self._regroup:
                    # Another node's script may still fail: then all start over from the last state.
                    self._wait_for("join", "regroup")

    # -- the driver ---

    def _send(self, message: Message) -> None:
        try:
            self._link.send(message)
        except OSError:
            raise EOFError from None

    def _wait_for(self, *ops: str) -> Message:
        """Return the driver's next message with one of these `op`; raises EOFError if the agent is gone."""
        while True:
            message = self._link.poll(None)
            if message is not None and message["op"] in ops:
                return message

    def _listen(self) -> None:
        while (message := self._link.poll()) is not None:
            if message["op"] == "regroup":
                self._regroup = True
            elif message["op"] == "leaving":  # workers still live: the agent gives this 0.1 s
                self._workers.cleanup.sample(self._workers.pids)

    # -- a group ---

    def _start(self, message: Message) -> None:
        """Fork the workers of a generation; raises OSError."""
        self._generation = int(message["generation"])
        # The store is beside the driver, which this node reaches by its own address for it.
        host, _ = split_address(os.environ["BFT_DRIVER"])
        port = self._tunnel.open(self._generation, host, int(message["port"]))
        for local_rank in range(self._number):
            self._group.append(self._workers.start(environment(message, local_rank, self._number, port)))

    def _watch(self) -> bool:
        """Return whether all workers have ended with 0: at their end, a failure, or the driver's wish to stop them.

        A failure is reported after a moment, in which the others may end by themselves.
        """
        failed_s = 0.0
        while True:
            self._listen()
            ended = self._workers.cleanup.look(self._workers.pids)
            codes = {rank: ended[one.pid] for rank, one in enumerate(self._group) if one.pid in ended}
            is_over, has_failed = len(codes) == len(self._group), any(codes.values())
            if self._regroup or (is_over and not has_failed):
                return is_over and not has_failed
            if has_failed:
                failed_s = failed_s or time.monotonic()
                if is_over or time.monotonic() >= failed_s + _LAST_WORDS_S:
                    self._report(codes)
                    return False
            self._workers.wait(_LAST_WORDS_S if failed_s else LOOK_S)

    def _report(self, codes: Mapping[int, int]) -> None:
        """Report how workers ended, by local rank, the others being killed now."""
        rank = cause(codes)
        step, at_s = self._last_step()
        message: Message = {"op": "exit", "local_rank": rank, "rc": codes[rank], "step": step, "at_s": at_s}
        if 0 in codes.values():  # with 0, while the others trained
            message["ended"] = min(rank for rank, rc in codes.items() if rc == 0)
        self._send(message)

    def _last_step(self) -> tuple[int, float]:
        """Return the last step that a worker of the node is known to have ended, -1 for none, and its time."""
        return max((read_page(worker.page) for worker in self._group), default=(-1, 0.0))


def cause(codes: Mapping[int, int]) -> int:
    """Return the local rank of the worker that caused the others' ends: a killed one did not fail for lack of peers."""
    failed = (rank for rank, rc in codes.items() if rc)
    return min(failed, key=lambda rank: codes[rank] >= 0 or codes[rank] == -signal.SIGABRT)


def environment(message: Message, local_rank: int, workers: int, port: int) -> dict[str, str]:
    """Return the variables of a worker: those that torchrun sets, and bftd's own."""
    rank, world = int(message["first_rank"]) + local_rank, str(message["world"])
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": str(message["rank"]),
        "ROLE_NAME": "default",
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(workers),
        "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(message["nodes"]),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": os.environ.get("BFT_TRAINER", "bft"),
        # Workers are clients of the driver's store; none of them serves one, since any of them may vanish.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # It names the workers' prefix in the store.
        "TORCHELASTIC_RESTART_COUNT": str(message["generation"]),
        "TORCHELASTIC_MAX_RESTARTS": str(1 << 30),
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "BFT_LOCAL_RANK": str(local_rank),
        "BFT_GENERATION": str(message["generation"]),
    }
