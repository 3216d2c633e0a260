"""Which ends of workers belong to one crash: one end takes the others along, and theirs may be heard of first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from elastic.backends.base import Host
from elastic.driver.pilots import Pilot

_BLAME_S = 0.5
"""Ends that belong to one crash are heard of within this. Nodes look each 0.05 s, but who takes the group down before
its own error is told, as `finally: destroy_process_group()` does, ends last: it must not be stopped before it has."""


class Blame:
    """Collects the ends of one generation's workers and tells them to the trainer together, once a generation.

    Which of them caused the others is the trainer's to say: it knows what the workers told.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._suspects: list[Pilot] = []
        self._exits: list[tuple[Pilot, int]] = []
        self._early = ""
        self._settling: asyncio.Handle | None = None
        self._settled = asyncio.Event()
        self._settled.set()

    def begin(self, members: Sequence[Pilot]) -> None:
        """A new generation: what was heard of the one before is settled first."""
        self.end()
        self._suspects, self._early = list(members), ""

    def end(self) -> None:
        """From now on the driver itself has workers ended."""
        self._settle()
        self._suspects = []

    def heard(self, pilot: Pilot, rc: int) -> bool:
        """Notes a worker's end; False where it is not to be counted: its peers were taken, or it is an old one's."""
        if pilot not in self._suspects:
            return False
        loop = asyncio.get_running_loop()
        self._settled.clear()
        if self._settling is None:
            self._settling = loop.call_later(_BLAME_S, self._settle)
        self._exits.append((pilot, rc))
        if {one.lease for one in self._suspects} <= {one.lease for one, _ in self._exits}:
            self._settling.cancel()
            self._settling = loop.call_soon(self._settle)
        return True

    async def settled(self) -> None:
        """Waits until no more ends are to be expected that belong to those that were heard."""
        await self._settled.wait()

    def finished(self, pilot: Pilot) -> None:
        """A member is done: that its node goes is no reason for the others to fail."""
        if pilot in self._suspects:
            self._suspects.remove(pilot)

    def ended_well(self, rank: int, step: int) -> None:
        """A worker ended with 0 after `step` (-1: unknown): others that fail before they have, too, fail of that."""
        at = f" at step {step}" if step >= 0 else ""
        self._early = self._early or f"rank {rank} ended with 0{at}"

    def excuse(self, pilot: Pilot) -> None:
        """A member's node is gone: that the others' workers end now is its doing, also where that was heard before."""
        if pilot in self._suspects:
            self._exits.clear()
            self._suspects = []
            self._settled.set()

    def _settle(self) -> None:
        if self._settling is None:
            return
        self._settling.cancel()
        self._settling = None
        self._settled.set()
        exits, self._exits, self._suspects = self._exits, [], []
        for pilot, rc in exits:
            self._host.crashed(pilot, rc, self._early)
