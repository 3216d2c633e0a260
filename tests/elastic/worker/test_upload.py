"""A worker's checkpoint on its way: the newest counts, nobody waits for one, and each is let go exactly once."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import pytest

from elastic.base.errors import WireError
from elastic.link.bulk import Incoming
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message
from elastic.worker import upload
from elastic.worker.upload import PendingCheckpoint, Uploader
from tests.elastic.fakes import channels
from tests.support.messages import wording
from tests.support.waiting import STILL_S, until


class Driver:
    """Takes uploads; `refuse` many connections first, `cut` many in the middle, and holds all until `go_on`."""

    def __init__(self) -> None:
        self.told: list[Message] = []
        self.checkpoints: list[tuple[Message, bytes]] = []
        self.refuse = self.cut = 0
        self.connections = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.lost = threading.Event()
        self.lines: list[str] = []
        self._pool = ThreadPoolExecutor()
        self._taking: list[Future[None]] = []
        self.uploader = Uploader(self._tell, self._connect, self.lost.is_set, self.lines.append)

    def _tell(self, message: Message) -> bool:
        self.told.append(message)
        return True

    def _connect(self, about: Message) -> BlockingChannel:
        self.connections += 1
        if self.refuse:
            self.refuse -= 1
            raise ConnectionRefusedError
        driver, worker = channels()
        self._taking.append(self._pool.submit(self._take, about, driver))
        return worker

    def _take(self, about: Message, channel: BlockingChannel) -> None:
        try:
            if self.cut:
                self.cut -= 1
                return
            incoming = Incoming(channel)
            content = b""
            for piece in incoming.pieces():
                content += bytes(piece)
            assert self.go_on.wait(STILL_S)
            self.checkpoints.append((about, content))
            channel.send({"op": "kept"})
        except WireError:
            pass
        finally:
            channel.hang_up()
            channel.close()

    def close(self) -> None:
        self.go_on.set()
        self.lost.set()
        self.uploader.stop()
        self._pool.shutdown()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(upload, "_PAUSES_S", (0.001,))
    driver = Driver()
    yield driver
    driver.close()


def pending(step: int, content: bytes | None = None, release: Callable[[], None] = lambda: None) -> PendingCheckpoint:
    written = b"checkpoint of %d" % step if content is None else content

    def write(file: BinaryIO) -> None:
        file.write(written)

    return PendingCheckpoint(step, 10 * step, write, release)


def test_of_states_saved_while_one_travels_the_newest_alone_follows_it(driver: Driver) -> None:
    driver.go_on.clear()
    driver.uploader.commit(pending(1))
    driver.uploader.upload_soon()
    until("the first one is uploaded", lambda: driver.connections == 1)
    for step in range(2, 50):
        driver.uploader.commit(pending(step))
        driver.uploader.upload_soon()
    driver.go_on.set()
    until("two have come", lambda: len(driver.checkpoints) == 2)
    assert [about["step"] for about, _ in driver.checkpoints] == [1, 49]
    assert driver.checkpoints[1][1] == b"checkpoint of 49"


def test_the_thread_that_sends_leaves_the_processors_to_the_training(driver: Driver) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before, seen = priority(), list[int]()
    driver.uploader.commit(PendingCheckpoint(1, 10, lambda file: seen.append(priority())))
    driver.uploader.upload()
    assert seen[0] >= min(19, before + 1)
    assert priority() == before


def test_in_the_background_no_more_than_a_share_of_a_core_is_used_and_when_asked_it_is_sent_at_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "UPLOAD_APART_S", 1000.0)
    for step in (1, 2):
        driver.uploader.commit(pending(step))
        driver.uploader.upload_soon()
        until("the first one has come", lambda: driver.uploader._arrived)
    time.sleep(0.05)
    assert len(driver.checkpoints) == 1
    driver.uploader.ask()
    until("the second one has come", lambda: len(driver.checkpoints) == 2)
    assert [(about["step"], about["last"]) for about, _ in driver.checkpoints] == [(1, False), (2, True)]


def test_what_waits_for_its_share_follows_by_itself_however_seldom_a_script_saves(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "UPLOAD_APART_S", 0.2)
    for step in (1, 2):
        driver.uploader.commit(pending(step))
        driver.uploader.upload_soon()
        until("the first one has come", lambda: driver.checkpoints)
    until("the second one has come", lambda: len(driver.checkpoints) == 2)


def test_each_checkpoint_is_let_go_exactly_once_and_never_while_it_is_written_whatever_threads_do(
    driver: Driver,
) -> None:
    """Four threads save as fast as they can, two ask for checkpoints, and connections break now and then."""
    released, writing, wrong = Counter[int](), set[int](), list[str]()
    numbers = iter(range(1, 1_000_000))
    guard = threading.Lock()

    def state() -> PendingCheckpoint:
        with guard:
            number = next(numbers)

        def write(file: BinaryIO) -> None:
            if released[number]:
                wrong.append(f"{number} was written after it was let go")
            writing.add(number)
            file.write(b"%d" % number * 1000)
            time.sleep(random.random() / 1000)
            writing.discard(number)

        def release() -> None:
            if number in writing:
                wrong.append(f"{number} was let go while it was written")
            released[number] += 1

        return PendingCheckpoint(number, number, write, release)

    def save() -> None:
        for _ in range(100):
            driver.uploader.commit(state())
            driver.uploader.upload_soon()
            if random.random() < 0.05:
                driver.cut += 1
            time.sleep(random.random() / 500)

    def ask() -> None:
        for _ in range(20):
            driver.uploader.ask()
            driver.uploader.upload()

    threads = [threading.Thread(target=work) for work in (save, save, save, save, ask, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STILL_S)
        assert not thread.is_alive()
    driver.cut = 0
    driver.uploader.upload()
    last = driver.uploader.newest
    assert last is not None
    until("nothing is uploaded", lambda: driver.uploader._uploading is None)
    assert wrong == []
    assert released == Counter(range(1, 401)) - Counter([last.step])
    assert driver.checkpoints[-1][1] == b"%d" % last.step * 1000


@pytest.mark.parametrize("how", ["refuse", "cut"])
def test_while_the_link_holds_a_broken_connection_is_made_again(driver: Driver, how: str) -> None:
    setattr(driver, how, 3)
    driver.uploader.commit(pending(5, bytes(3_000_000)))
    driver.uploader.upload()
    assert [len(content) for _, content in driver.checkpoints] == [3_000_000]
    assert driver.connections == 4
    assert driver.uploader.arrived


def test_once_the_link_is_gone_nobody_waits_any_more(driver: Driver) -> None:
    driver.refuse = 1_000_000
    driver.uploader.commit(pending(5))
    waiting = threading.Thread(target=driver.uploader.upload)
    waiting.start()
    until("it tries", lambda: driver.connections > 3)
    driver.lost.set()
    driver.uploader.stop()
    waiting.join(STILL_S)
    assert not waiting.is_alive()
    assert not driver.uploader.arrived


def test_a_checkpoint_that_the_driver_cannot_keep_is_sent_again_only_when_it_asks(driver: Driver) -> None:
    driver.cut = 1_000_000
    driver.uploader.commit(pending(5))
    waiting = threading.Thread(target=driver.uploader.upload)
    waiting.start()
    until("it is sent", lambda: driver.connections)
    driver.uploader.refused()
    waiting.join(STILL_S)
    assert not waiting.is_alive(), "who waited for it has an answer"
    until("nothing is uploaded", lambda: driver.uploader._uploading is None)
    before = driver.connections
    driver.uploader.upload_soon()
    time.sleep(0.05)
    assert driver.connections == before
    driver.cut = 0
    driver.uploader.ask()
    until("it has come", lambda: driver.checkpoints)
    driver.uploader.refused()
    assert not driver.uploader.arrived


def test_a_long_save_tells_how_far_it_is(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "SAVING_S", 0.0)
    driver.uploader.commit(pending(5, bytes(5 << 20)))
    driver.uploader.upload()
    told = [message["bytes"] for message in driver.told if message["op"] == "saving"]
    assert told == sorted(set(told))
    assert told[-1] == 5 << 20


def test_a_worker_that_saved_nothing_or_has_sent_it_says_so_to_a_driver_that_asks(driver: Driver) -> None:
    driver.uploader.ask()
    until("it is said", lambda: driver.told == [{"op": "nothing_saved"}])
    driver.uploader.commit(pending(5))
    driver.uploader.upload()
    driver.uploader.ask()
    until("it is said", lambda: driver.told[1:] == [{"op": "shipped", "step": 5}])
    assert len(driver.checkpoints) == 1


def test_a_checkpoint_that_is_overtaken_while_the_driver_is_told_that_it_has_it_is_let_go_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = list[int]()
    driver.uploader.commit(pending(1, release=lambda: released.append(1)))
    driver.uploader.upload()
    driver.uploader._tell = lambda message: driver.uploader.commit(pending(2)) or driver._tell(message)
    driver.uploader.ask()
    until("it is said", lambda: driver.told == [{"op": "shipped", "step": 1}])
    driver.uploader.upload()
    assert released == [1]


class Files:
    """A shared file system: a checkpoint counts once `go_on` is set, unless it does not at all or cannot be pickled."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.counts = True
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def pending(self, step: int, release: Callable[[], None] = lambda: None) -> PendingCheckpoint:
        def publish(lost: Callable[[], bool]) -> bool:
            self.steps.append(step)
            while not (lost() or self.go_on.wait(0.01)):
                pass
            if self.error is not None:
                raise self.error
            return self.counts

        def write(file: BinaryIO) -> None:
            raise AssertionError("this checkpoint is distributed")

        return PendingCheckpoint(step, 10 * step, write, release, publish)


def test_of_distributed_ones_the_newest_follows_the_one_being_written_and_one_at_a_time_is_let_go(
    driver: Driver,
) -> None:
    files, released = Files(), list[int]()
    files.go_on.clear()
    for step in range(1, 6):
        driver.uploader.commit(files.pending(step, lambda step=step: released.append(step)))
        driver.uploader.upload_soon()
        until("the first one is written", lambda: files.steps)
    assert released == [2, 3, 4]
    driver.uploader.ask()
    files.go_on.set()
    until("it is answered", lambda: driver.told)
    assert (driver.told, files.steps, driver.connections) == ([{"op": "shipped", "step": 5}], [1, 5], 0)
    assert released == [2, 3, 4, 1]
    assert driver.uploader.arrived


def test_a_distributed_one_is_not_written_all_the_time_where_every_batch_commits(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PUBLISH_APART_S", 1000.0)
    monkeypatch.setattr(upload, "UPLOAD_APART_S", 0.0)
    monkeypatch.setattr(upload, "UPLOAD_SHARE", 1000.0)
    files = Files()
    for step in range(1, 20):
        driver.uploader.commit(files.pending(step))
        driver.uploader.upload_soon()
        until("the first one counts", lambda: driver.uploader._arrived)
    time.sleep(0.05)
    assert files.steps == [1]
    driver.uploader.upload()
    assert files.steps == [1, 19]


def test_a_distributed_one_that_does_not_count_is_nothing_saved_and_the_next_commit_is_tried(driver: Driver) -> None:
    files = Files()
    files.counts = False
    driver.uploader.commit(files.pending(1))
    driver.uploader.ask()
    until("it is said", lambda: driver.told == [{"op": "nothing_saved"}])
    assert not driver.uploader.arrived
    files.counts, files.error = True, TypeError("cannot pickle a generator")
    driver.uploader.commit(files.pending(2))
    driver.uploader.ask()
    until("it is said", lambda: len(driver.told) == 2)
    assert driver.told[1] == {"op": "nothing_saved"}
    assert driver.lines == [
        wording("elastic.saving.not_saved", step="2 cannot be saved", why="TypeError('cannot pickle a generator')")
    ]
    files.error = None
    driver.uploader.commit(files.pending(3))
    driver.uploader.upload()
    assert driver.uploader.arrived


def test_of_a_distributed_one_nobody_waits_for_the_drivers_word_once_the_link_is_gone(driver: Driver) -> None:
    files = Files()
    files.go_on.clear()
    driver.uploader.commit(files.pending(1))
    waiting = threading.Thread(target=driver.uploader.upload)
    waiting.start()
    until("it is written", lambda: files.steps)
    driver.lost.set()
    driver.uploader.stop()
    waiting.join(STILL_S)
    assert not waiting.is_alive()
