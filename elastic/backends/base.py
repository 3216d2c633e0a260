"""The interface of a back-end: what the trainer asks of it, and what it may ask of the trainer.

A `Backend` lives in the driver. It sends messages to a pilot's node process by `Pilot.send` and gets its messages in
`received`; the agent between them passes on messages that it does not know itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from elastic.driver.pilots.launcher import Pilot
from elastic.driver.settings import DriverSettings
from elastic.link.peer import Peer
from elastic.link.wire import Message


class TrainerServices(Protocol):
    """The trainer, as a back-end sees it."""

    settings: DriverSettings

    def log(self, text: str) -> None:
        """Write one line to the trainer's log."""

    def wake(self) -> None:
        """Have the trainer compare wanted and current members again, because something changed."""

    def formed(self, leases: Collection[str]) -> None:
        """Note that workers of these leases are about to connect; if one leaves meanwhile, the others may end."""

    def started(self, leases: Collection[str]) -> None:
        """Note that a group of new workers starts on these leases; those before them there have ended."""

    def broke(self, step: int, at_s: float) -> None:
        """Note that a worker ended by itself at `step`: the following change is due to a crash, not a resize."""

    def crashed(self, pilot: Pilot, rc: int, early: str = "") -> None:
        """Note that a worker on `pilot` caused a crash by ending with `rc`; the node may be given back for it.

        `early` names a worker of its group that had ended with 0 before: a crash that follows from that is no node's
        fault.
        """

    def absent(self, pilot: Pilot, text: str) -> None:
        """Report a ready pilot that does not take part in training, and give it back."""

    def workers_failed(self, reason: str) -> None:
        """Note that all workers ended without success and without a reported crash."""

    def finish(self, exit_code: int, reason: str) -> None:
        """End the training."""

    async def save_checkpoint(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        """Have the workers' last checkpoint uploaded, at a step boundary if `graceful`."""


class Backend(ABC):
    """A back-end, which resizes a running training job.

    Calls come one at a time, except `lost` and `received`, which never wait.
    """

    def __init__(self, services: TrainerServices) -> None:
        self._services = services

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether workers train or are about to."""

    @abstractmethod
    def uses(self, pilot: Pilot) -> bool:
        """Whether processes on this pilot still belong to the job."""

    @property
    def finishing(self) -> Sequence[Pilot]:
        """The nodes that still have to reach the script's end after others have; they no longer need the others."""
        return ()

    @abstractmethod
    async def start(self) -> None:
        """Start the processes beside the driver."""

    @abstractmethod
    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        """Make `pilots` (never empty, in a stable order) the job's nodes; nodes left out leave gracefully."""

    @abstractmethod
    async def suspend(self) -> None:
        """Have the checkpoint uploaded and end every worker; pilots stay warm."""

    @abstractmethod
    def lost(self, pilot: Pilot) -> None:
        """Handle a pilot whose processes are gone, or will be within a moment."""

    @abstractmethod
    def received(self, pilot: Pilot, message: Message) -> None:
        """Take a message of the pilot's node process."""

    @abstractmethod
    async def close(self) -> None:
        """End the processes beside the driver."""
