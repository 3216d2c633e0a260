"""A framework's checkpoints in a shared folder: written beside training, whole before a driver hears of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic.base.errors import CheckpointError, UsageError, WireError
from elastic.integrations import checkpoint
from elastic.integrations.checkpoint import Keeper
from elastic.link.bulk import Incoming
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message
from elastic.worker import driver_link, upload
from elastic.worker.driver_link import DriverLink
from tests.elastic.fakes import channels
from tests.elastic.script.test_api import FakeChannel
from tests.support.messages import fragment, pattern, says
from tests.support.waiting import STILL_S, until

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class Driver(DriverLink):
    """A worker's link whose checkpoints come here, while its disk `takes` them."""

    def __init__(self) -> None:
        self.channel = FakeChannel()
        super().__init__(self.channel, open_transfer=self._opened)  # type: ignore[arg-type]
        self.checkpoints: list[tuple[Message, bytes]] = []
        self.takes, self.cut = True, 0
        self._pool = ThreadPoolExecutor()
        self._taking: list[Future[None]] = []

    def _opened(self, about: Message) -> BlockingChannel:
        driver, worker = channels()
        self._taking.append(self._pool.submit(self._take, about, driver))
        return worker

    def _take(self, about: Message, channel: BlockingChannel) -> None:
        try:
            content = b"".join(bytes(piece) for piece in Incoming(channel).pieces())
            if self.cut:
                self.cut -= 1
            elif self.takes:
                self.checkpoints.append((about, content))
                channel.send({"op": "kept"})
            else:
                self._uploader.refused()
        except WireError:
            pass
        finally:
            channel.hang_up()
            channel.close()

    @property
    def steps(self) -> list[int]:
        return [int(about["step"]) for about, _ in self.checkpoints]

    def close(self) -> None:
        self._lost.set()
        self._uploader.stop()
        self._pool.shutdown()


class Disk:
    """A file system that takes its time, while `go_on` is not set, and may be full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.flushes = 0
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        self.flushes += 1
        assert self.go_on.wait(STILL_S)
        self._fsync(descriptor)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(upload, "UPLOAD_SHARE", 1000.0)  # of a core: these checkpoints are small
    monkeypatch.setattr(upload, "UPLOAD_APART_S", 0.0)
    monkeypatch.setattr(upload, "_PAUSES_S", (0.001,))
    driver = Driver()
    monkeypatch.setattr(driver_link, "_current", driver)
    yield driver
    driver.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.go_on.set()


def save(keeper: Keeper, step: int, sharded: bool = False) -> None:
    """As a step that saves: a model whose numbers are the step's, which changes once this returns."""
    driver_link.current().step(step, step, 0, 1, None)
    checkpoint.api._progress.step = step
    weight = torch.full((1000,), float(step))
    with keeper.saving(step, sharded, done=step) as folder:
        torch.save({"weight": weight}, folder / "model.pt")
        (folder / "rng").write_text(str(step))
    weight.zero_()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def step_of(folder: Path) -> int:
    """The step whose numbers a whole checkpoint has."""
    weight = torch.load(folder / "model.pt")["weight"]
    assert weight.eq(weight[0]).all()
    assert (folder / "rng").read_text() == str(int(weight[0]))
    return int(weight[0])


def arrived(driver: Driver, *steps: int) -> None:
    until("the driver has them", lambda: driver.steps == list(steps) and driver._uploader.arrived)


def test_regression_a_step_that_saved_in_a_shared_folder_waited_for_the_file_system(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path)
    disk.go_on.clear()
    save(keeper, 1)
    until("it is on its way to the disk", lambda: disk.flushes)
    assert names(tmp_path) == ["step-1.part"], "nothing half-written has its name"
    assert not driver.checkpoints, "nobody hears of what is not on the disk"
    disk.go_on.set()
    arrived(driver, 1)
    assert (names(tmp_path), step_of(tmp_path / "step-1")) == (["step-1"], 1)


def test_of_checkpoints_that_come_faster_than_they_are_written_the_newest_follows(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path)
    disk.go_on.clear()
    for step in range(1, 5):
        save(keeper, step)
        until("the first one is on its way", lambda: disk.flushes)
    assert names(tmp_path) == ["step-1.part"], "one is written at a time"
    disk.go_on.set()
    arrived(driver, 1, 4)
    assert [step_of(tmp_path / name) for name in names(tmp_path)] == [1, 4]


@pytest.mark.parametrize("code", [0, 1])
def test_a_script_that_ends_while_its_checkpoint_is_written_ends_when_it_is(
    code: int, driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    disk.go_on.clear()
    save(Keeper(tmp_path), 1)
    until("it is on its way to the disk", lambda: disk.flushes)
    ending = threading.Thread(target=driver._deliver, args=(code,))
    ending.start()
    until("the end waits", lambda: driver._uploader._asks)
    assert not driver.checkpoints
    disk.go_on.set()
    ending.join(STILL_S)
    assert (driver.steps, names(tmp_path)) == ([1], ["step-1"])


def test_a_worker_that_is_to_leave_rests_once_its_checkpoint_is_written(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    driver.pause_requested.set()
    disk.go_on.clear()
    threading.Thread(target=save, args=(Keeper(tmp_path), 1), daemon=True).start()  # it never returns
    until("it is on its way to the disk", lambda: disk.flushes)
    driver.channel.awaited(op="saving", flushing=True)  # so it is waited for
    assert "paused" not in driver.channel.ops()
    disk.go_on.set()
    driver.channel.awaited(op="paused")
    assert (driver.steps, step_of(tmp_path / "step-1")) == ([1], 1)


def test_who_asks_for_a_checkpoint_that_is_being_written_waits_for_it(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    disk.go_on.clear()
    save(Keeper(tmp_path), 1)
    until("it is on its way to the disk", lambda: disk.flushes)
    driver._uploader.ask()
    driver.channel.awaited(op="saving", flushing=True)
    assert not {"shipped", "nothing_saved"} & set(driver.channel.ops())
    disk.go_on.set()
    driver.channel.awaited(op="shipped", step=1)
    assert driver.steps == [1]


def test_a_full_disk_costs_a_checkpoint_and_one_line_and_training_goes_on_with_the_one_before(
    driver: Driver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keeper = Keeper(tmp_path)
    save(keeper, 1)
    arrived(driver, 1)
    (tmp_path / "step-2.part").mkdir()
    (tmp_path / "step-2.part" / "model.pt").symlink_to("/dev/full")
    save(keeper, 2)
    until("it is given up", lambda: driver._uploader._refused)
    assert names(tmp_path) == ["step-1"]
    [line] = capfd.readouterr().err.splitlines()
    assert says(line, "elastic.upload.not_written", step=2, error=fragment(os.strerror(28)))
    save(keeper, 3)
    arrived(driver, 1, 3)
    assert [step_of(tmp_path / name) for name in names(tmp_path)] == [1, 3]


def test_a_folder_that_cannot_be_made_is_one_line_and_the_next_checkpoint_is_tried(
    driver: Driver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("a file")
    keeper = Keeper(kept)
    save(keeper, 1)
    until("it is given up", lambda: driver._uploader._refused)
    assert says(capfd.readouterr().err, "elastic.upload.not_written", step=1)
    kept.unlink()
    save(keeper, 2)
    arrived(driver, 2)


def test_a_worker_killed_in_the_middle_of_a_checkpoint_leaves_the_one_before_and_what_is_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if child == 0:
        try:
            disk, driver = Disk(monkeypatch), Driver()
            driver_link.install(driver)
            keeper = Keeper(tmp_path)
            save(keeper, 1)
            until("it is kept", lambda: driver.steps == [1])
            disk.go_on.clear()
            disk.flushes = 0
            save(keeper, 2)
            until("the next is on its way", lambda: disk.flushes)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert names(tmp_path) == ["step-1", "step-2.part"]
    driver = Driver()
    monkeypatch.setattr(driver_link, "_current", driver)
    keeper = Keeper(tmp_path)
    assert names(tmp_path) == ["step-1"]
    assert step_of(keeper.open({"folder": str(tmp_path / "step-1")})) == 1
    driver.close()


def test_regression_a_folder_was_removed_that_the_drivers_checkpoint_named_while_its_disk_was_full(
    driver: Driver, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path)
    for step in (1, 2, 3):
        save(keeper, step)
        arrived(driver, *range(1, step + 1))
    until("the two newest are left", lambda: names(tmp_path) == ["step-2", "step-3"])
    driver.takes = False
    for step in (4, 5):
        save(keeper, step)
        until("it is refused", lambda step=step: driver._uploader._refused == step)
    assert names(tmp_path) == ["step-2", "step-3", "step-4", "step-5"]
    driver.takes = True
    save(keeper, 6)
    until("the two newest are left", lambda: names(tmp_path) == ["step-5", "step-6"])


def test_regression_what_earlier_lives_had_kept_was_never_removed(driver: Driver, tmp_path: Path) -> None:
    for step in (9, 10, 30):
        (tmp_path / f"step-{step}").mkdir()
    keeper = Keeper(tmp_path)
    keeper.open({"folder": str(tmp_path / "step-10")})
    save(keeper, 11)
    until("those before are gone", lambda: names(tmp_path) == ["step-10", "step-11", "step-30"])


def test_a_checkpoint_is_written_once_where_its_name_has_to_be_sent_again(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    driver.cut = 1
    save(Keeper(tmp_path), 1)
    arrived(driver, 1)
    once = disk.flushes
    assert once < 10
    [(about, _)] = driver.checkpoints
    assert about["beside_bytes"] > 4000
    assert about["beside_s"] > 0


def test_a_sharded_checkpoint_is_written_where_it_stays_and_told_of_once_it_is_on_the_disk(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path)
    disk.go_on.clear()
    save(keeper, 1, sharded=True)
    until("it is on its way to the disk", lambda: disk.flushes)
    assert not driver.checkpoints
    assert names(tmp_path) == ["step-1.part"]
    disk.go_on.set()
    arrived(driver, 1)
    assert (names(tmp_path), step_of(tmp_path / "step-1")) == (["step-1"], 1)


def test_a_whole_checkpoint_of_an_earlier_life_that_no_driver_heard_of_gives_way(
    driver: Driver, tmp_path: Path
) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "old").touch()
    save(Keeper(tmp_path), 1)
    arrived(driver, 1)
    assert names(tmp_path / "step-1") == ["model.pt", "rng"]


def test_a_checkpoint_of_the_scripts_own_that_was_gone_on_from_is_never_removed(driver: Driver, tmp_path: Path) -> None:
    own = tmp_path / "checkpoint-7"
    own.mkdir()
    keeper = Keeper(tmp_path / "kept")
    assert keeper.open({"folder": str(own)}) == own
    for step in (8, 9, 10):
        save(keeper, step)
        until("it is kept", lambda step=step: driver.steps[-1:] == [step] and driver._uploader.arrived)
    keeper.close(own)
    assert own.exists()


def test_a_checkpoint_that_names_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=pattern("elastic.checkpoint.not_there")):
        Keeper(tmp_path).open({"folder": str(tmp_path / "step-7")})


def test_regression_a_sharded_checkpoint_whose_flush_failed_once_was_told_as_an_empty_folder(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(tmp_path)
    save(keeper, 1, sharded=True)
    arrived(driver, 1)
    monkeypatch.setattr(checkpoint, "_flush", failing := Failing(checkpoint._flush))
    save(keeper, 2, sharded=True)
    until("it has failed", lambda: failing.failed)
    driver._deliver(0)
    assert driver.steps == [1, 2], "it was tried again"
    assert step_of(tmp_path / "step-2") == 2


class Failing:
    """A flush that fails once where all of a checkpoint is flushed by who writes beside the training."""

    def __init__(self, flush: Callable[..., None]) -> None:
        self._flush, self.failed = flush, 0

    def __call__(self, folder: Path, below: bool = True) -> None:
        if below and not self.failed and threading.current_thread() is not threading.main_thread():
            self.failed += 1
            raise OSError(5, "Input/output error")
        self._flush(folder, below)


def test_regression_sharded_checkpoints_that_newer_ones_overtook_stayed_on_the_disk(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path)
    disk.go_on.clear()
    for step in range(1, 5):
        save(keeper, step, sharded=True)
        until("the first one is on its way", lambda: disk.flushes)
    assert names(tmp_path) == ["step-1.part", "step-2.part", "step-3.part", "step-4.part"]
    disk.go_on.set()
    arrived(driver, 1, 4)
    assert names(tmp_path) == ["step-1", "step-4"]


def test_regression_a_second_training_was_told_by_the_folder_of_the_first(driver: Driver, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    save(keeper, 1)
    arrived(driver, 1)
    (tmp_path / "step-1" / "rng").write_text("of the first training")
    save(keeper, 1)
    arrived(driver, 1, 1)
    assert step_of(tmp_path / "step-1") == 1
    assert names(tmp_path) == ["step-1"]


def test_a_half_written_checkpoint_of_this_process_is_not_removed_by_its_second_training(
    driver: Driver, disk: Disk, tmp_path: Path
) -> None:
    keeper = Keeper(tmp_path)
    disk.go_on.clear()
    save(keeper, 1)
    until("it is on its way to the disk", lambda: disk.flushes)
    keeper.stay(tmp_path)
    assert names(tmp_path) == ["step-1.part"]
    disk.go_on.set()
    arrived(driver, 1)
    assert step_of(tmp_path / "step-1") == 1


def test_a_sharded_model_in_a_shared_folder_is_refused_beside_distributed_checkpoints(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFT_STATE_BY_PATH", "1")
    with pytest.raises(UsageError, match=pattern("elastic.checkpoint.no_state_beside")):
        save(Keeper(tmp_path), 1, sharded=True)


def test_two_jobs_of_one_script_have_folders_of_their_own(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "8" / "step-5.part").mkdir(parents=True)
    monkeypatch.setenv("BFT_TRAINER", "7")
    save(Keeper(tmp_path), 1)
    arrived(driver, 1)
    assert (names(tmp_path / "7"), names(tmp_path / "8")) == (["step-1"], ["step-5.part"])
    monkeypatch.setenv("BFT_TRAINER", "8")
    save(Keeper(tmp_path), 2)
    arrived(driver, 1, 2)
    assert (names(tmp_path / "7"), names(tmp_path / "8")) == (["step-1"], ["step-2"])
