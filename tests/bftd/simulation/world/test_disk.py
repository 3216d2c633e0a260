"""Simulated disks: what is killed, fails or loses its power between any two operations leaves whole files behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bftd.base.errors import LedgerError
from bftd.ledger.file import Ledger
from bftd.simulation.world.machine.disk import Disk, simulated_files
from bftd.simulation.world.machine.loop import SimulatedLoop, simulated
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.machine.sqlite_files import simulated_sqlite
from bftd.simulation.world.scripts import content_of
from elastic.store.store import CheckpointStore, NotStoredError

pytestmark = pytest.mark.slow

_LAST = 4


class StateOfStep:
    """A checkpoint's content, as the store receives it."""

    def __init__(self, step: int) -> None:
        self._data = content_of(step)
        self.size_bytes = len(self._data)
        self.digest = hashlib.sha256(self._data).hexdigest()

    def pieces(self) -> Iterator[memoryview]:
        yield memoryview(self._data)


class Host:
    """A loop of simulated time with one disk."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.disk = Disk(Random(7))

    def live(self, work: Callable[[Process], Coroutine[Any, Any, None]], *, kill_in: int | None = None) -> bool:
        """Run a process to its end; returns whether it was killed."""
        process = Process("it", "host")
        process.disk, self.disk.kill_in = self.disk, kill_in

        async def watch() -> None:
            task = process.start(work, process)
            while not (process.dead or task.done()):
                await asyncio.sleep(0.01)
            if not process.dead:
                await task
            await asyncio.sleep(0.1)

        self.loop.run_until_complete(watch())
        killed, self.disk.kill_in = process.dead, None
        process.kill()
        return killed


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture
def host() -> Iterator[Host]:
    loop = SimulatedLoop(Random(1))
    with simulated(loop), simulated_files(), simulated_sqlite():
        host = Host(loop)
        yield host
        host.disk.close()
        loop.shut()


async def _keeps_checkpoints(process: Process, folder: Path, stored: list[int]) -> None:
    store = CheckpointStore(folder)
    assert store.step >= max(stored, default=-1), "what was stored is there"
    if store.step >= 0:
        (path,) = folder.glob(f"state-{store.step}-*")
        assert path.read_bytes() == content_of(store.step)
    for step in range(max(store.step, 0) + 1, _LAST):
        if await store.receive(StateOfStep(step), step, step):
            stored.append(step)
    assert store.step == _LAST - 1


async def _keeps_numbers(process: Process, path: Path, written: list[int], least: int) -> None:
    ledger = Ledger(path)
    found = int(ledger.kept("it").get("number", 0))
    assert least <= found <= max(written, default=0) + 1
    for number in range(found + 1, found + _LAST):
        ledger.keep("it", {"number": number})
        written.append(number)
        await asyncio.sleep(0.01)
    ledger.maintain(number)
    ledger._db.execute("PRAGMA wal_checkpoint(FULL)").fetchall()


@pytest.mark.parametrize("power", [False, True])
def test_a_driver_killed_between_any_two_operations_leaves_its_last_stored_checkpoint(
    host: Host, folder: Path, power: bool
) -> None:
    after, killed = 0, True
    while killed:
        stored: list[int] = []
        home = folder / str(after)
        killed = host.live(lambda process: _keeps_checkpoints(process, home, stored), kill_in=after)  # noqa: B023
        if power:
            host.disk.lose_power()
        assert not host.live(lambda process: _keeps_checkpoints(process, home, stored))  # noqa: B023
        after += 1
    assert after > 20


@pytest.mark.parametrize("power", [False, True])
def test_a_daemon_killed_in_any_write_of_its_ledger_finds_it_whole(host: Host, folder: Path, power: bool) -> None:
    after, killed, lost = 0, True, 0
    while killed:
        written: list[int] = []
        path = folder / f"{after}.sqlite"
        killed = host.live(lambda process: _keeps_numbers(process, path, written, 0), kill_in=after)  # noqa: B023
        if power and killed:
            host.disk.lose_power()
        before = len(written)
        least = 0 if power and killed else max(written, default=0)
        assert not host.live(lambda process: _keeps_numbers(process, path, written, least))  # noqa: B023
        lost += before > 0 and written[before] <= written[before - 1]
        after += 1
    assert after > 20
    assert bool(lost) == power, "without a flush for each step a power cut takes some back, and a kill none"


def test_a_full_disk_refuses_and_keeps_what_is_there_until_there_is_space(host: Host, folder: Path) -> None:
    async def work(process: Process) -> None:
        store, ledger = CheckpointStore(folder / "state"), Ledger(folder / "ledger.sqlite")
        await store.receive(StateOfStep(1), 1, 1)
        ledger.keep("it", {"number": 1})
        for trouble in ("full", "failing"):
            setattr(host.disk, trouble, True)
            for _ in range(20):
                with pytest.raises(NotStoredError) if trouble == "full" else suppress(NotStoredError):
                    await store.receive(StateOfStep(1), 1, 1)
                with pytest.raises(LedgerError) if trouble == "full" else suppress(LedgerError):
                    ledger.keep("it", {"number": 1})
            setattr(host.disk, trouble, False)
            assert store.step == ledger.kept("it")["number"] == 1
        assert await store.receive(StateOfStep(2), 2, 2)
        ledger.keep("it", {"number": 2})
        ledger.close()
        store.close()

    assert not host.live(work)
    assert [name for name in os.listdir(folder / "state") if name.startswith("state-2-")]
