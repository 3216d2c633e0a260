"""What a back-end is: what the trainer asks of it, and what it may ask of the trainer.

A `Backend` lives in the driver. It speaks to a pilot's node process by `Pilot.tell` and hears it in `received`; the
agent between them passes on what it does not know itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from elastic.driver.pilots import Pilot
from elastic.driver.settings import DriverSettings
from elastic.link.peer import Peer
from elastic.link.wire import Message


class Host(Protocol):
    """The trainer, as a back-end sees it."""

    settings: DriverSettings

    def log(self, text: str) -> None:
        """Writes one line to the trainer's log."""

    def wake(self) -> None:
        """Something changed: compare wanted and current members again."""

    def formed(self, leases: Collection[str]) -> None:
        """Workers of these leases are to find each other; one that leaves meanwhile may be the end of the others."""

    def broke(self, step: int, at_s: float) -> None:
        """A worker ended by itself at `step`: what follows is no resize but a crash's."""

    def crashed(self, pilot: Pilot, rc: int, early: str = "") -> None:
        """A worker on `pilot` caused a crash by ending with `rc`; the node may be given back for it.

        `early` names a worker of its group that had ended with 0 by then: what follows of that is no node's fault.
        """

    def absent(self, pilot: Pilot, text: str) -> None:
        """A pilot that is ready does not take part in training: it is told of and given back."""

    def life_failed(self, reason: str) -> None:
        """All workers ended without success and without a crash that was reported."""

    def finish(self, exit_code: int, reason: str) -> None:
        """Training is over."""

    async def save_state(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        """Fetches the workers' last state, at a step boundary when `graceful`."""


class Backend(ABC):
    """Resizes a running training job. Calls come one at a time, except `lost` and `received`, which never wait."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether workers train or are about to."""

    @abstractmethod
    def uses(self, pilot: Pilot) -> bool:
        """Whether processes on this pilot still belong to the job."""

    @property
    def finishing(self) -> Sequence[Pilot]:
        """The nodes that still have to come to the script's end, once others have; these need the others no more."""
        return ()

    @abstractmethod
    async def start(self) -> None:
        """Starts what lives beside the driver."""

    @abstractmethod
    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        """Makes `pilots` (never empty, in a stable order) the job's nodes; who is left out leaves gracefully."""

    @abstractmethod
    async def suspend(self) -> None:
        """Fetches the state and ends every worker; pilots stay warm."""

    @abstractmethod
    def lost(self, pilot: Pilot) -> None:
        """The pilot's processes are gone, or will be within a moment."""

    @abstractmethod
    def received(self, pilot: Pilot, message: Message) -> None:
        """Takes a message of the pilot's node process."""

    @abstractmethod
    async def close(self) -> None:
        """Ends what lives beside the driver."""
