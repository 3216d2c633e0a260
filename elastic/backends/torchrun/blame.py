"""The ends of workers that belong to one crash: one end causes others, and those may be reported first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from elastic.backends.base import TrainerServices
from elastic.driver.pilots.launcher import Pilot

_BLAME_S = 0.5
"""Ends that belong to one crash are reported within this. Nodes look each 0.05 s, but a worker that takes the group
down before its own error is reported, as `finally: destroy_process_group()` does, ends last: it must not be stopped
before."""


class CrashEnds:
    """The ends of one generation's workers, reported to the trainer together, once a generation.

    The trainer decides which of them caused the others: it knows what the workers reported.
    """

    def __init__(self, services: TrainerServices) -> None:
        self._services = services
        self._suspects: list[Pilot] = []
        self._exits: list[tuple[Pilot, int]] = []
        self._early = ""
        self._settling: asyncio.Handle | None = None
        self._settled = asyncio.Event()
        self._settled.set()

    def begin(self, members: Sequence[Pilot]) -> None:
        """Begin a generation, after settling the ends of the previous one."""
        self.end()
        self._suspects, self._early = list(members), ""

    def end(self) -> None:
        """Stop collecting: from now on the driver itself has workers ended."""
        self._settle()
        self._suspects = []

    def heard(self, pilot: Pilot, rc: int) -> bool:
        """Note a worker's end; False if it does not count: its peers were taken, or it is of an old generation."""
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
        """Wait until no more ends are expected that belong to those already noted."""
        await self._settled.wait()

    def finished(self, pilot: Pilot) -> None:
        """Note that a member is done: the loss of its node gives the others no reason to fail."""
        if pilot in self._suspects:
            self._suspects.remove(pilot)

    def ended_well(self, rank: int, step: int) -> None:
        """Note that a worker ended with 0 after `step` (-1: unknown): others that fail later fail because of it."""
        at = f" at step {step}" if step >= 0 else ""
        self._early = self._early or f"rank {rank} ended with 0{at}"

    def excuse(self, pilot: Pilot) -> None:
        """Excuse ends caused by the loss of a member's node, including ends that were reported before it."""
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
            self._services.crashed(pilot, rc, self._early)
