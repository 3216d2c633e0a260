"""What the back-ends' tests share: the trainer and the helper processes beside the driver, played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from elastic.backends.base import Backend
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.settings import DriverSettings
from elastic.link.peer import Peer
from elastic.link.wire import Message
from tests.elastic.fakes import peer, sent


class FakeCompanion:
    """A helper process: keeps its commands; the store answers at once."""

    made: ClassVar[list[FakeCompanion]] = []

    def __init__(
        self,
        on_message: Callable[[Message], None],
        on_exit: Callable[[int], None],
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.on_message, self.on_exit, self.on_line = on_message, on_exit, on_line
        self.commands: list[Message] = []
        self.argv: list[str] = []
        self.stopped = False
        FakeCompanion.made.append(self)

    async def start(self, interpreter: str, module: str, *args: str, image: object = None) -> None:
        self.argv = [interpreter, module, *args]

    def send(self, message: Message) -> None:
        self.commands.append(message)
        if message["op"] == "open":
            self.on_message({"op": "opened", "generation": message["generation"], "port": 4000})

    async def stop(self) -> None:
        self.stopped = True

    @property
    def hosts(self) -> list[str]:
        """The hosts of the last list."""
        return list(next(m for m in reversed(self.commands) if m["op"] == "hosts")["hosts"])


class FakeServices:
    """The trainer, as a back-end sees it."""

    def __init__(self, settings: DriverSettings) -> None:
        self.settings = settings
        self.crashes: list[tuple[str, int]] = []
        self.early: list[str] = []
        self.broken_at: int | None = None
        self.groups: list[list[str]] = []
        self.starts: list[set[str]] = []
        self.failures: list[str] = []
        self.saves: list[bool] = []
        self.ends: list[tuple[int, str]] = []
        self.wakes = 0
        self.logged: list[str] = []

    def log(self, text: str) -> None:
        self.logged.append(text)

    def wake(self) -> None:
        self.wakes += 1

    @property
    def ended(self) -> tuple[int, str] | None:
        """How training ended, as it was told first."""
        return self.ends[0] if self.ends else None

    def formed(self, leases: Collection[str]) -> None:
        self.groups.append(list(leases))

    def started(self, leases: Collection[str]) -> None:
        self.starts.append(set(leases))

    def broke(self, step: int, at_s: float) -> None:
        self.broken_at = step

    def crashed(self, pilot: Pilot, rc: int, early: str = "") -> None:
        self.crashes.append((pilot.node, rc))
        self.early.append(early)

    def absent(self, pilot: Pilot, text: str) -> None:
        self.log(text)
        pilot.expiring = True

    def workers_failed(self, reason: str) -> None:
        self.failures.append(reason)

    def finish(self, exit_code: int, reason: str) -> None:
        self.ends.append((exit_code, reason))

    async def save_checkpoint(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        self.saves.append(graceful)


def pilot(node: str, workers: int = 1) -> Pilot:
    made = Pilot(f"{node}.1", node, 3600.0, "", state="ready", workers_per_node=workers)
    made.agent = peer(role="agent", lease=made.lease)
    return made


def told(to: Pilot) -> list[Message]:
    assert to.agent
    return [message for message in sent(to.agent) if message["op"] != "beat"]


@asynccontextmanager
async def started(services: FakeServices, kind: Callable[[Any], Backend]) -> AsyncIterator[Any]:
    """A back-end that may be given members."""
    backend = kind(services)
    await backend.start()
    yield backend
    await backend.close()
