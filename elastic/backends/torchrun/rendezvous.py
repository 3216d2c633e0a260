"""torch's rendezvous on a node, as the driver decides it: `join` goes up, `rendezvous` comes down.

torchrun's stock rendezvous finds a change of members by time-outs (join 14 s, leave 11 s). The driver knows the members
exactly, so it tells each node its ranks; the nodes exchange nothing, as that would wait for a node that was taken
meanwhile. Only workers use the store, which lives beside the driver: losing any node loses no store.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from elastic.backends.torchrun.tunnel import ADDRESS, Tunnel
from elastic.link.address import split_address
from elastic.link.wire import Message
from elastic.node.link import AgentLink


class DriverRendezvous(RendezvousHandler):
    """A rendezvous whose members, ranks and store the driver decides."""

    def __init__(self, link: AgentLink, tunnel: Tunnel) -> None:
        self._link = link
        self._tunnel = tunnel
        self._regroup = False
        self.generation = -1
        self.first_rank = 0
        """The rank of this node's first worker among all nodes' workers; nodes may have different numbers of them."""
        self.world = 0
        """The number of workers on all nodes."""
        self.on_leaving: Callable[[], None] = lambda: None
        """Called while workers still live when Slurm takes the node: it must be done within 0.1 s."""

    def get_backend(self) -> str:
        return "bft"

    def get_run_id(self) -> str:
        return os.environ.get("BFT_TRAINER", "bft")

    @property
    def use_agent_store(self) -> bool:
        """True: workers are clients of the driver's store; none of them serves one, since any of them may vanish."""
        return True

    def send(self, message: Message) -> None:
        """Send a message to the driver; raises EOFError if the agent is gone."""
        try:
            self._link.send(message)
        except OSError:
            raise EOFError from None

    def wait_for(self, *ops: str) -> Message:
        """Return the driver's next message with one of these `op`; raises EOFError if the agent is gone."""
        while True:
            message = self._link.poll(None)
            if message is not None and message["op"] in ops:
                return message

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the driver has all members together."""
        self._regroup = False
        self.send({"op": "join", "generation": self.generation})
        message = self.wait_for("rendezvous")
        self.generation = int(message["generation"])
        self.first_rank, self.world = int(message["first_rank"]), int(message["world"])
        nodes = int(message["nodes"])
        # The store is beside the driver, which this node reaches by its own address for it.
        host, _ = split_address(os.environ["BFT_DRIVER"])
        port = self._tunnel.open(self.generation, host, int(message["port"]))
        # torch's agent wants a store of its own; with the ranks known it has nothing to keep there.
        return RendezvousInfo(HashStore(), int(message["rank"]), nodes, RendezvousStoreInfo(ADDRESS, port))

    def num_nodes_waiting(self) -> int:
        """Return 1 if the driver wants the workers of this node stopped and regrouped."""
        while (message := self._link.poll()) is not None:
            if message["op"] == "regroup":
                self._regroup = True
            elif message["op"] == "leaving":
                self.on_leaving()
        return int(self._regroup)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: the driver ends a trainer by ending its pilots' processes."""

    def shutdown(self) -> bool:
        return True
