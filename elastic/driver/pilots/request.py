"""The share of a node that a trainer's pilots ask for: a part, if the rest can go to regular jobs, or the whole.

The numbers are the user's (`share=4:16G`) or those that `bft size cpu` found for this script. Once a process of a
trainer has run out of memory, its pilots have whole nodes.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from elastic.options.node_share import NodeShare
from slurm_plugin.submission.shared_nodes import NodePart, Sharing

OWN_BYTES = 512 * 2**20
"""The memory beside the workers: with torch the agent took 25 MiB, the process that starts them 300, its tunnel 23."""

UNKNOWN_STATE_BYTES = 2 * 2**30
"""The assumed size of a checkpoint not seen yet: a larger one should be distributed, and is not kept in memory."""

_COPIES = 2  # of the checkpoint, in the memory of the worker that sends it (elastic.checkpoint.buffers)
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True)
class ProfiledNeed:
    """The profiled need: CPUs and memory for each GPU, or for the one worker of a node without GPUs."""

    cpus: float
    memory_bytes: int


class NodePartRequest:
    """The part of its node that each pilot asks for; `tell` gets a line when that changes.

    `workers` is the number on each node, if the user set it: the profiled need counts for each worker, or for each GPU
    if there are more.
    """

    def __init__(
        self, share: NodeShare, sharing: Sharing, note: Callable[[str], None], workers: int | None = None
    ) -> None:
        self.note = note
        self.state_bytes: Callable[[], int | None] = lambda: None
        """Returns the size of the newest checkpoint kept in memory: 0 for none, None if unknown."""
        self._share = share
        self._workers = workers or 1
        self._sharing = sharing
        self._need: ProfiledNeed | None = None
        self._whose = ""
        self._too_small = ""
        self._noted: dict[str, str] = {}
        self._looked = asyncio.Event()
        self._looked.set()

    def looking(self) -> None:
        """Notes that a profile is being looked for: pilots wait for `looked`, which must follow."""
        self._looked.clear()

    def looked(self) -> None:
        """Notes that the search for a profile is over."""
        self._looked.set()

    async def known(self) -> None:
        """Waits until the search for a profile is over."""
        await self._looked.wait()

    @property
    def wanted(self) -> bool:
        """Whether pilots may have parts of nodes at all."""
        return not (self._share.never or self._too_small) and bool(self._share.cpus or self._need)

    def profiled(self, need: ProfiledNeed, whose: str) -> None:
        """Takes a profile's need; `whose` describes the profile to the user."""
        self._need, self._whose = need, whose

    def part(self, gres: str) -> NodePart | None:
        """Returns the part that a pilot with these devices asks for if it may, None for the whole node."""
        if not self.wanted:
            return None
        if self._share.cpus or self._need is None:
            return NodePart(self._share.cpus, self._share.memory_bytes)
        each = max(self._workers, sum(map(int, _GPUS.findall(gres))))
        state_bytes = self.state_bytes()
        copies = _COPIES * (UNKNOWN_STATE_BYTES if state_bytes is None else state_bytes)
        return NodePart(math.ceil(self._need.cpus * each), self._need.memory_bytes * each + OWN_BYTES + copies)

    def against(self, node: str, partition: str, part: NodePart) -> str:
        """Returns why this node's pilot gets the whole node after all, "" if it gets the part; asks Slurm."""
        return self._sharing.against(node, partition, part)

    def decided(self, node: str, part: NodePart, against: str) -> None:
        """Reports what a pilot asks for, if that is news."""
        whose = self._whose if self._need is not None and not self._share.cpus else f"share={self._share.format()}"
        if against:
            text = f"pilots have whole nodes, not the {size_text(part)} of {whose}: on {node}, {against}"
        else:
            text = f"pilots ask for {size_text(part)} of a node ({whose}); regular jobs may have the rest of it"
        key = against or size_text(part)
        noted = key in self._noted.values()  # nodes of different sizes may alternate
        self._noted[node] = key
        if not noted:
            self.note(text)

    def give_up(self, node: str, part: NodePart) -> None:
        """Switches to whole nodes, as a pilot's memory was too small."""
        if not self._too_small:
            self._too_small = node
            self.note(
                f"a process on {node} was ended for want of memory: its pilot has {size_text(part)}; from now on "
                "pilots have whole nodes. Give more with share=CPUS:MEMORY, or share=no"
            )


def size_text(part: NodePart) -> str:
    """Returns a part's CPUs and memory in words."""
    mib = part.memory_mib
    gib = mib / 1024
    memory = f"{mib} MiB" if gib < 1 else f"{gib:.3g} GiB" if gib < 1000 else f"{gib:.0f} GiB"
    return f"{part.cpus} CPU{'s' if part.cpus != 1 else ''} and {memory}"
