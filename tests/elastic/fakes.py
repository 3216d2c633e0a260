"""Stand-ins for the edges of a driver: Slurm, the daemon, connections and the back-ends."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bftd.protocol.lease import Leases, LeaseView, Listed
from bftd.protocol.reports import Report
from elastic.backends import KINDS
from elastic.backends.base import Backend, TrainerServices
from elastic.base.errors import WireError
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.pilots.request import NodePartRequest
from elastic.driver.settings import DriverSettings
from elastic.driver.trainer import TrainerDriver
from elastic.link.authentication import Seal, Seals
from elastic.link.bulk import receive_file
from elastic.link.channel import BlockingChannel
from elastic.link.peer import Peer
from elastic.link.wire import CHUNK_BYTES, Message, decode
from elastic.options.elastic_option import ElasticSpec
from elastic.options.node_share import NodeShare
from elastic.store.store import CheckpointStore
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.submission.shared_nodes import Sharing
from tests.support.waiting import STILL_S

KEY = b"of a test"
SECRET = "5a17"


SomeReport = TypeVar("SomeReport", bound=Report)


async def until(what: str, condition: Callable[[], Any]) -> Any:
    """Waits until a condition holds; a test whose condition never does fails by name."""
    deadline_s = time.monotonic() + STILL_S
    while not (result := condition()):
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        await asyncio.sleep(0.002)
    return result


def settings_for(folder: Path, spec: str = "1-8", backend: str = "horovod", **fields: Any) -> DriverSettings:
    return DriverSettings(
        trainer_id="7",
        name="test",
        spec=ElasticSpec.parse(spec),
        backend=backend,
        interpreter="/usr/bin/python3",
        argv=(str(folder / "train.py"), "--fast"),
        cwd=folder,
        script_dir=folder,
        state_dir=folder / "state",
        socket_path=str(folder / "s"),
        partition="elastic",
        user="ada",
        **{"given_address": "192.0.2.7", **fields},
    )


class FakeWriter:
    """A connection that keeps what is sent over it."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int]:
        assert name == "peername"
        return ("10.0.0.7", 4711)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    @property
    def transport(self) -> FakeWriter:
        return self

    def abort(self) -> None:
        self.closed = True

    @property
    def sent(self) -> list[Message]:
        return [decode(line.partition(b" ")[2]) for line in self.data.splitlines()]


def peer(**hello: Any) -> Peer:
    return Peer(FakeWriter(), {"op": "hello", **hello}, Seal(KEY))  # type: ignore[arg-type]


class FakeContent:
    """A worker's checkpoint as it comes; `cut`: the worker goes away when so many bytes are missing."""

    def __init__(self, content: bytes, cut_bytes: int = 0) -> None:
        self._content = content
        self._cut_bytes = cut_bytes
        self.size_bytes = 0
        self.digest = ""

    def pieces(self) -> Iterator[memoryview]:
        there = len(self._content) - self._cut_bytes
        for start in range(0, there, CHUNK_BYTES):
            piece = memoryview(self._content)[start : min(there, start + CHUNK_BYTES)]
            self.size_bytes += len(piece)
            yield piece
        if self._cut_bytes:
            raise WireError("the worker went away")
        self.digest = hashlib.sha256(self._content).hexdigest()


def channels() -> tuple[BlockingChannel, BlockingChannel]:
    """Both ends of one connection, proved: the driver's and the worker's."""
    one, other = socket.socketpair()
    down, up = secrets.token_bytes(), secrets.token_bytes()
    driver, worker = Seals(Seal(down), Seal(up)), Seals(Seal(up), Seal(down))
    return BlockingChannel(one, driver), BlockingChannel(other, worker)


async def downloaded(store: CheckpointStore, **about: Any) -> tuple[Message, bytes]:
    """What a worker that downloads is sent: the driver's word before the checkpoint, and that, verified."""
    driver, worker = channels()
    content = io.BytesIO()

    def download() -> Message:
        announced = worker.receive()
        if announced is None:
            raise WireError("the driver hung up")
        receive_file(worker, {**announced, **about}, content)
        return announced

    downloading = asyncio.create_task(asyncio.to_thread(download))
    try:
        await store.send(driver)
    finally:
        driver.hang_up()
        announced = await downloading
        driver.close()
        worker.close()
    return announced, content.getvalue()


def sent(to: Peer) -> list[Message]:
    assert isinstance(to.writer, FakeWriter)
    return to.writer.sent


def ops(to: Peer) -> list[str]:
    """What a peer was told, beats left out."""
    return [message["op"] for message in sent(to) if message["op"] not in ("beat", "ping")]


class FakeStarter:
    """Slurm: places what it is not told to refuse, and runs "agents" until their allocation is cancelled."""

    def __init__(self) -> None:
        self.placed: list[str] = []
        self.cancelled: list[str] = []
        self.refuse: dict[str, str] = {}
        self.complaints: dict[str, str] = {}
        """What the agent of a node that ends says of itself."""
        self.steps: dict[str, list[str]] = {}
        """What a further step on a node says before it ends at once."""
        self.closed = False
        self.hold = asyncio.Event()
        self.hold.set()
        self._ends: dict[str, asyncio.Event] = {}
        self.shares = NodePartRequest(NodeShare.parse("no"), Sharing(SlurmClient()), print)
        self.short: list[str] = []
        """The nodes on which a process was ended for want of memory."""

    def short_of_memory(self, pilot: Pilot) -> None:
        self.short.append(pilot.node)

    def go_by(self, listed: Leases) -> None:
        """Takes what comes with each list: nothing here goes by it."""

    async def place(self, pilot: Pilot) -> str | None:
        self.placed.append(pilot.lease)
        await self.hold.wait()
        if pilot.node in self.refuse:
            return self.refuse[pilot.node]
        pilot.job_id, pilot.placed_s = f"job-{pilot.lease}", time.monotonic()
        self._ends[pilot.job_id] = asyncio.Event()
        return None

    async def run_agent(self, pilot: Pilot) -> str:
        assert pilot.job_id is not None
        await self._ends[pilot.job_id].wait()
        return self.complaints.get(pilot.node, "")

    async def run_step(self, pilot: Pilot, command: Sequence[str]) -> list[str]:
        return self.steps[pilot.node]

    async def cancel(self, jobs: list[str]) -> None:
        self.cancelled += jobs
        for job in jobs:
            self.end(job)

    async def close(self) -> None:
        self.closed = True

    @property
    def known(self) -> list[str]:
        """The jobs that were placed and not forgotten."""
        return list(self._ends)

    def forget(self, job: str) -> None:
        del self._ends[job]

    def end(self, job: str) -> None:
        """The agent of this job ends by itself."""
        self._ends[job].set()


class FakeDaemon:
    """The daemon link: keeps the reports."""

    ends_in_s: float | None = None

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def report(self, report: Report) -> None:
        self.reports.append(report)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def of(self, kind: type[SomeReport], /, **fields: Any) -> list[SomeReport]:
        return reports_of(self.reports, kind, **fields)


def reports_of(reports: Sequence[Report], kind: type[SomeReport], /, **fields: Any) -> list[SomeReport]:
    """The reports of one kind, those with the given fields."""
    return [
        report
        for report in reports
        if isinstance(report, kind) and all(getattr(report, name) == value for name, value in fields.items())
    ]


def trainer_for(
    settings: DriverSettings, log: Callable[[str], None], starter: FakeStarter, daemon: FakeDaemon, **fields: Any
) -> TrainerDriver:
    """A trainer between fakes; `fields` are the back-end's, else Horovod's with a driver that trains at once."""
    kind = replace(KINDS[settings.backend], **({"driver": "tests.elastic.fakes:FakeBackend"} | fields))
    return TrainerDriver(settings, log, kind, starter, daemon)  # type: ignore[arg-type]


class FakeBackend(Backend):
    """Trains at once on whatever members it is given."""

    def __init__(self, services: TrainerServices) -> None:
        super().__init__(services)
        self.members: list[Pilot] = []
        self.calls: list[list[str]] = []
        self.suspended = 0

    @property
    def running(self) -> bool:
        return bool(self.members)

    def uses(self, pilot: Pilot) -> bool:
        return pilot in self.members

    async def start(self) -> None:
        pass

    async def set_members(self, pilots: Sequence[Pilot]) -> None:
        if list(pilots) != self.members:
            self.members = list(pilots)
            self.calls.append([pilot.node for pilot in pilots])

    async def suspend(self) -> None:
        self.members = []
        self.suspended += 1

    def lost(self, pilot: Pilot) -> None:
        self.members = [member for member in self.members if member is not pilot]

    def received(self, pilot: Pilot, message: Message) -> None:
        if message["op"] == "exit":
            self._services.broke(int(message["step"]), float(message["at_s"]))
            self._services.crashed(pilot, int(message["rc"]), message.get("early", ""))

    async def close(self) -> None:
        pass


def lease(node: str, number: int = 1, state: Listed = "granted", vacate: bool = False) -> LeaseView:
    return LeaseView(f"{node}.{number}", node, state, vacate, limit_s=3600.0, reason="the test says so")
