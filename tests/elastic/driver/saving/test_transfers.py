"""Checkpoints that come and go beside the driver's loop: who may send one, what a liar costs, what is waited for."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from elastic.base.errors import WireError
from elastic.driver.saving import transfers as modules
from elastic.driver.saving.saver import CheckpointSaver
from elastic.driver.saving.transfers import Transfers
from elastic.driver.server import Hub, listen
from elastic.link.bulk import DOWNLOAD, UPLOAD, PieceWriter, receive_file
from elastic.link.channel import BlockingChannel
from elastic.link.peer import Peer
from elastic.link.wire import Message
from elastic.store import files
from elastic.store.store import CheckpointStore
from tests.elastic.fakes import SECRET, ops, peer, sent, until

pytestmark = pytest.mark.slow


class Stage:
    """A hub with a store behind it, and the workers that are present."""

    def __init__(self, folder: Path) -> None:
        self.store = CheckpointStore(folder)
        self.saver = CheckpointSaver(self.store)
        self.present: dict[str, Peer] = {}
        self.heard: list[Peer] = []
        self.saved = self.saved_bytes = 0
        self.saved_s = 0.0
        self.transfers = Transfers(self.saver, self._worker_of, self.heard.append, self._has_saved, self.store.offer)
        listening = listen()
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        listener: Any = None
        self.hub = Hub(listener, SECRET, listening, transfers=self.transfers.accept)
        self.pool = ThreadPoolExecutor()

    def _worker_of(self, about: Message) -> Peer | None:
        return self.present.get(str(about.get("lease")))

    def _has_saved(self, took_s: float, state_bytes: int) -> None:
        self.saved, self.saved_s, self.saved_bytes = self.saved + 1, took_s, state_bytes

    def worker(self, lease_id: str) -> Peer:
        self.present[lease_id] = peer(role="worker", lease=lease_id)
        return self.present[lease_id]

    def connect(self, lease: Any, **about: Any) -> BlockingChannel:
        return BlockingChannel.connect(self.address, SECRET, {"role": "state", "lease": lease, **about})

    async def upload(self, lease_id: str, step: int, content: bytes = b"state", **more: Any) -> Message | None:
        """What the driver answers a worker that sends a checkpoint."""

        def send() -> Message | None:
            channel = self.connect(lease_id, what=UPLOAD, step=step, samples=0, last=True, **more)
            try:
                writer = PieceWriter(channel)
                writer.write(content)
                writer.whole()
                return channel.receive()
            except OSError:
                return None
            finally:
                channel.close()

        return await self.thread(send)

    async def thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *args)


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    made = Stage(folder)
    try:
        yield made
    finally:
        made.hub.close()
        await made.transfers.close()
        made.pool.shutdown(wait=False)
        made.store.close()


@pytest.fixture
def stage(tmp_path: Path) -> AbstractAsyncContextManager[Stage]:
    return staged(tmp_path)


async def test_a_present_workers_checkpoint_is_stored_and_another_one_downloads_it(tmp_path: Path) -> None:
    async with staged(tmp_path / "state") as stage:
        worker = stage.worker("n1")
        assert await stage.upload("n1", 7, b"weights") == {"op": "kept"}
        assert (stage.store.step, stage.saved, ops(worker)) == (7, 1, [])
        stage.transfers.answer(worker)
        [offer] = await until("it is told", lambda: sent(worker))
        assert (offer["step"], offer["size"]) == (7, 7)

        def download() -> bytes:
            channel = stage.connect("n1", what=DOWNLOAD)
            with (tmp_path / "got").open("w+b") as file:
                receive_file(channel, channel.receive() or {}, file)
            channel.close()
            return (tmp_path / "got").read_bytes()

        assert await stage.thread(download) == b"weights"


@pytest.mark.parametrize("odd", ["x", -1.0, float("inf"), None])
async def test_what_a_worker_has_written_beside_its_checkpoint_counts_as_the_checkpoints(
    odd: object, stage: Stage
) -> None:
    stage.worker("n1")
    assert await stage.upload("n1", 7, b"name", beside_s=1000.0, beside_bytes=4096) == {"op": "kept"}
    assert stage.saved_s > 1000.0
    assert stage.saved_bytes == 4100
    assert await stage.upload("n1", 8, b"name", beside_s=odd, beside_bytes=odd) == {"op": "kept"}
    assert stage.saved_s < 1000.0
    assert stage.saved_bytes == 4


@pytest.mark.parametrize(
    "about", [{"lease": "n2"}, {"lease": "n1", "what": "more"}, {"lease": "n1"}, {"lease": ["n1"]}]
)
async def test_who_is_no_present_worker_or_wants_something_else_sends_no_checkpoint(
    about: dict[str, object], stage: Stage
) -> None:
    stage.worker("n1")
    known = {"what": UPLOAD} if about["lease"] == "n2" else {}
    channel = await stage.thread(lambda: stage.connect(**{**known, **about}))  # type: ignore[arg-type]
    assert await stage.thread(channel.receive) is None
    assert not stage.transfers._all
    channel.close()


async def test_a_worker_of_another_lease_stores_no_state(stage: Stage) -> None:
    stage.worker("n1")
    assert await stage.upload("n2", 7) is None
    assert stage.store.step == -1


LIES: dict[str, Callable[[BlockingChannel], None]] = {
    "it goes away in the middle": lambda channel: channel.send_raw(struct.pack(">I", 100), b"half"),
    "a piece is too long": lambda channel: channel.send_raw(b"\xff\xff\xff\xff" + bytes(100)),
    "there is no end": lambda channel: channel.send_raw(struct.pack(">I", 4), b"four", struct.pack(">I", 0)),
    "the digest is wrong": lambda channel: (
        channel.send_raw(struct.pack(">I", 4), b"four", struct.pack(">I", 0)),
        channel.send({"op": "whole", "bytes": 4, "sha256": "0" * 64}),
    )[0],
    "it is empty": lambda channel: PieceWriter(channel).whole() and None,
    "it is no checkpoint": lambda channel: channel.send_raw(b"GET / HTTP/1.1\r\n\r\n"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
async def test_a_liar_is_dropped_and_leaves_nothing_on_the_disk(
    tmp_path: Path, lie: Callable[..., None], stage: Stage
) -> None:
    worker = stage.worker("n1")
    assert await stage.upload("n1", 3) == {"op": "kept"}
    channel = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, step=9, samples=0))
    await stage.thread(lie, channel)
    channel.hang_up()
    await until("it is dropped", lambda: not stage.transfers._all)
    channel.close()
    await until("nothing is left", lambda: not list(tmp_path.glob(f"*{files.PART}")))
    assert stage.store.step == 3
    assert ops(worker) == []


@pytest.mark.parametrize("about", [{"step": "x"}, {"step": -1}, {"step": 10**18}, {}, {"step": 3, "samples": None}])
async def test_a_state_of_no_step_is_dropped(about: dict[str, object], stage: Stage) -> None:
    stage.worker("n1")
    fields = {"samples": 0, **about}
    channel = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, **fields))
    assert await stage.thread(channel.receive) is None
    channel.close()
    assert stage.store.step == -1


async def test_a_worker_that_comes_again_has_no_second_thread(stage: Stage) -> None:
    stage.worker("n1")
    first = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, step=3, samples=0))
    await until("it is let in", lambda: stage.transfers._all)
    assert await stage.upload("n1", 4) == {"op": "kept"}
    assert await stage.thread(first.receive) is None
    await until("it is dropped", lambda: not stage.transfers._all)
    first.close()


async def test_there_are_only_so_many_at_a_time_and_who_comes_then_tries_again(stage: Stage) -> None:
    stage.transfers._most = 1
    stage.worker("n1")
    stage.worker("n2")
    first = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, step=3, samples=0))
    await until("it is let in", lambda: stage.transfers._all)
    assert await stage.upload("n2", 4) is None
    first.hang_up()
    await until("it is gone", lambda: not stage.transfers._all)
    assert await stage.upload("n2", 4) == {"op": "kept"}
    first.close()


async def test_a_disk_that_is_full_in_the_middle_is_told_to_the_worker_which_sends_it_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = files.write_all, 0

    def fill(file: BinaryIO, content: bytes) -> None:
        nonlocal written
        written += len(content)
        if written > 2 << 20:
            raise OSError(28, "No space left on device")
        real(file, content)

    async with staged(tmp_path) as stage:
        worker = stage.worker("n1")
        with monkeypatch.context() as patched:
            patched.setattr(files, "write_all", fill)
            assert await stage.upload("n1", 3, bytes(20 << 20)) is None
        await until("it is told", lambda: sent(worker) == [{"op": "unsaved", "step": 3}])
        assert not list(tmp_path.glob(f"*{files.PART}"))
        assert await stage.upload("n1", 3, bytes(20 << 20)) == {"op": "kept"}


async def test_bytes_that_come_are_a_sign_of_life_and_the_loop_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "_LOOK_S", 0.005)
    async with staged(tmp_path) as stage:
        worker = stage.worker("n1")
        assert not stage.saver.growing
        channel = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, step=3, samples=0))
        for count in range(1, 4):
            await stage.thread(channel.send_raw, struct.pack(">I", 4), b"four")
            await until("it is seen", lambda count=count: len(stage.heard) >= count)
        assert set(stage.heard) == {worker}
        assert stage.saver.growing
        channel.close()


async def test_a_group_that_begins_is_offered_what_a_worker_that_is_gone_has_sent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    real = files.sync_and_close

    def slow(file: BinaryIO) -> None:
        assert goes_on.wait(20)
        real(file)

    monkeypatch.setattr(files, "sync_and_close", slow)
    monkeypatch.setattr(modules, "CHECKPOINT_SETTLE_S", 0.0)
    async with staged(tmp_path) as stage:
        stage.worker("n1")
        uploading = asyncio.create_task(stage.upload("n1", 9))
        await until("all of it came", lambda: [one for one in stage.transfers._all if one.incoming.digest])
        half = await stage.thread(lambda: stage.connect("n1", what=DOWNLOAD))
        half.close()
        del stage.present["n1"]
        new = stage.worker("n2")
        stage.transfers.answer(new)
        await asyncio.sleep(0.05)
        assert sent(new) == []
        goes_on.set()
        [offer] = await until("it is told", lambda: sent(new))
        assert offer["step"] == 9
        assert await uploading == {"op": "kept"}


async def test_what_a_worker_that_is_gone_has_half_sent_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "CHECKPOINT_SETTLE_S", 0.01)
    monkeypatch.setattr(modules, "_LOOK_S", 0.005)
    async with staged(tmp_path) as stage:
        stage.worker("n1")
        channel = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, step=3, samples=0))
        await stage.thread(channel.send_raw, struct.pack(">I", 100), b"half")
        await until("it is let in", lambda: stage.transfers._all)
        del stage.present["n1"]
        new = stage.worker("n2")
        stage.transfers.answer(new)
        await until("it is told", lambda: sent(new) == [{"op": "fetched", "none": True}])
        channel.close()


def test_the_driver_that_ends_leaves_no_connection_and_no_thread_waiting(tmp_path: Path) -> None:
    async def body() -> None:
        async with staged(tmp_path) as stage:
            stage.worker("n1")
            channel = await stage.thread(lambda: stage.connect("n1", what=UPLOAD, step=3, samples=0))
            await until("it is let in", lambda: stage.transfers._all)
            await stage.transfers.close()
            assert not stage.transfers._all
            assert await stage.thread(channel.receive) is None
            channel.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(body())
    assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_a_state_that_is_altered_on_its_way_is_never_stored(stage: Stage) -> None:
    stage.worker("n1")

    def send() -> Message | None:
        channel = stage.connect("n1", what=UPLOAD, step=3, samples=0)
        real = channel.send_raw
        channel.send_raw = lambda *parts: real(*(bytes(p).replace(b"weights", b"WEIGHTS") for p in parts))  # type: ignore[method-assign]
        writer = PieceWriter(channel)
        writer.write(b"weights")
        writer.whole()
        try:
            return channel.receive()
        finally:
            channel.close()

    assert await stage.thread(send) is None
    assert stage.store.step == -1


async def test_a_wrong_secret_opens_no_connection_for_a_state(stage: Stage) -> None:
    stage.worker("n1")
    about = {"role": "state", "lease": "n1", "what": UPLOAD}
    with pytest.raises(WireError):
        await stage.thread(BlockingChannel.connect, stage.address, "another", about)
