"""The checkpoint on disk: the highest step wins, and nothing half-done ever counts."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.base.errors import WireError
from elastic.link.bulk import AlteredError
from elastic.link.wire import CHUNK_BYTES
from elastic.store import files, store
from elastic.store.file_names import CheckpointFile
from elastic.store.folder import StoreError
from elastic.store.store import CheckpointStore, NotStoredError
from tests.elastic.fakes import FakeContent, downloaded
from tests.support.messages import excerpt, fragment, pattern, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


async def put(store: CheckpointStore, step: int, payload: bytes, cut_bytes: int = 0) -> bool:
    return await store.receive(FakeContent(payload, cut_bytes), step, step * 10)


async def got(store: CheckpointStore) -> bytes:
    """What a worker that begins is sent; b"" for "there is none"."""
    offer = await store.offer()
    if offer == {"op": "fetched", "none": True}:
        return b""
    announced, content = await downloaded(store)
    assert (offer["step"], offer["sha256"], offer["size"]) == (announced["step"], announced["sha256"], len(content))
    return content


def file_of(folder: Path) -> Path:
    """The one checkpoint in a folder."""
    [path] = folder.glob("state-*")
    return path


def again(folder: Path) -> CheckpointStore:
    """What a driver finds that is started anew."""
    found = CheckpointStore(folder)
    found.close()
    return found


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(uploads=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=8))
def test_the_whole_checkpoint_of_the_highest_step_is_what_a_restart_reads(
    tmp_path_factory: pytest.TempPathFactory, uploads: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("state")

    async def scene() -> None:
        store, best = CheckpointStore(folder), -1
        for step, cut in uploads:
            payload = b"checkpoint of %d" % step
            if cut:
                with pytest.raises(WireError):
                    await put(store, step, payload, cut_bytes=3)
            else:
                assert await put(store, step, payload) == (step >= best)
                best = max(best, step)
        store.close()
        for reader in (store, again(folder)):
            assert (reader.step, reader.samples) == (best, max(best, 0) * 10)
            assert await got(reader) == (b"" if best < 0 else b"checkpoint of %d" % best)
        assert not list(folder.glob(f"*{files.PART}"))
        assert len(list(folder.glob("state-*"))) == (best >= 0)

    asyncio.run(scene())


class PowerCut(BaseException):
    """The machine stops in the middle of a call."""


@contextmanager
def a_machine_that_stops(folder: Path, after: int) -> Iterator[None]:
    """After so many calls that change the folder nothing works any more; then what was not synced is lost by half."""
    left, unsynced, guard = after, set[int](), threading.Lock()
    names = ("write_all", "publish", "remove", "sync_and_close", "create_part")
    real = {name: getattr(files, name) for name in names}
    fsync = os.fsync

    def counted(name: str) -> Any:
        def call(*args: Any) -> Any:
            nonlocal left
            with guard:
                left -= 1
                if left < 0:
                    raise PowerCut
                if name == "write_all":
                    file, content = args
                    unsynced.add(os.fstat(file.fileno()).st_ino)
                    if left == 0:
                        real[name](file, content[: len(content) // 2])
                        raise PowerCut
                return real[name](*args)

        return call

    def synced(fd: int) -> None:
        fsync(fd)
        unsynced.discard(os.fstat(fd).st_ino)

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(files, name, counted(name))
        patch.setattr(os, "fsync", synced)
        with suppress(PowerCut):
            yield
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_ino in unsynced:
            os.truncate(path, path.stat().st_size // 2)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lives=st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), max_size=4)),
        min_size=1,
        max_size=3,
    )
)
def test_whenever_the_machine_stops_the_newest_checkpoint_that_was_acknowledged_survives(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, list[list[int]]]]
) -> None:
    """Each life: after how many calls it stops, and groups of uploads that come at once."""
    folder, told, promised, offered = tmp_path_factory.mktemp("state"), list[str](), -1, {-1}

    def payload(step: int) -> bytes:
        return b"%08d" % step * 4000

    async def upload(store: CheckpointStore, step: int) -> None:
        nonlocal promised
        offered.add(step)
        if await put(store, step, payload(step)):
            promised = max(promised, step)

    async def life(groups: list[list[int]]) -> None:
        store = CheckpointStore(folder, told.append)
        try:
            for group in groups:
                done = await asyncio.gather(*(upload(store, step) for step in group), return_exceptions=True)
                for failure in done:
                    if failure is not None:
                        raise failure
        finally:
            store.close()

    for after, groups in lives:
        with a_machine_that_stops(folder, after):
            asyncio.run(life(groups))
        found = again(folder)
        assert found.step >= promised
        assert found.step in offered
        assert asyncio.run(got(found)) == (payload(found.step) if found.step >= 0 else b"")
        promised = max(promised, found.step)
    assert not list(folder.glob("set-aside-*")), "a checkpoint that is not whole was given a checkpoint's name"


async def test_uploads_of_several_workers_at_once_do_not_mix(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    steps = [3, 9, 1, 7, 5]
    await asyncio.gather(*(put(store, step, bytes([step]) * 3_000_000) for step in steps))
    assert store.step == 9
    assert await got(store) == bytes([9]) * 3_000_000


def test_leftovers_of_a_driver_that_was_killed_are_swept(tmp_path: Path) -> None:
    (tmp_path / f"abc{files.PART}").write_bytes(b"half")
    assert CheckpointStore(tmp_path).step == -1
    assert not (tmp_path / f"abc{files.PART}").exists()


@pytest.mark.parametrize("released", [True, False])
def test_where_there_are_no_locks_leftovers_are_swept_only_when_the_driver_before_has_said_that_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    before = CheckpointStore(tmp_path)
    if released:
        before.release()
    (tmp_path / f"abc{files.PART}").write_bytes(b"half")
    after = CheckpointStore(tmp_path)
    assert (tmp_path / f"abc{files.PART}").exists() != released
    assert asyncio.run(put(after, 3, b"state"))
    with pytest.raises(NotStoredError):
        asyncio.run(put(before, 4, b"state"))


async def test_regression_a_torn_note_hid_a_good_checkpoint_and_the_first_new_step_overwrote_it(tmp_path: Path) -> None:
    first = CheckpointStore(tmp_path)
    await put(first, 400, b"good")
    first.close()
    for note in tmp_path.glob("*.json"):
        note.write_text("{")
    second = CheckpointStore(tmp_path)
    assert (second.step, second.samples) == (400, 4000)
    assert not await put(second, 1, b"from the beginning")
    second.close()
    assert await got(again(tmp_path)) == b"good"


def test_a_checkpoint_that_is_not_whole_is_set_aside_under_a_name_that_says_so_and_the_one_before_is_used(
    tmp_path: Path,
) -> None:
    told = list[str]()
    (tmp_path / CheckpointFile(7, 70, 5).name).write_bytes(b"whole")
    (tmp_path / CheckpointFile(9, 90, 100).name).write_bytes(b"torn")
    assert CheckpointStore(tmp_path, told.append).step == 7
    assert told == [wording("elastic.store.broken", name="state-9-90-100.pt", folder="set-aside-state-9-90-100.pt")]
    assert (tmp_path / "set-aside-state-9-90-100.pt").read_bytes() == b"torn"


# -- disks that fail ---


async def test_regression_a_full_disk_cut_the_worker_off_and_nobody_was_told(tmp_path: Path) -> None:
    """A real limit on a real file; the next try is the same worker's."""
    told = list[str]()
    payload = bytes(3 * CHUNK_BYTES) + b"x" * CHUNK_BYTES
    store = CheckpointStore(tmp_path, told.append)
    await put(store, 3, b"older")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK_BYTES, hard))
    try:
        for step in (10, 11):
            content = FakeContent(payload)
            with pytest.raises(NotStoredError) as caught:
                await store.receive(content, step, 0)
            assert caught.value.again
            assert content.size_bytes < len(payload), "the rest of it need not come"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert file_of(tmp_path).name.startswith("state-3-30-5-")
    assert len(list(tmp_path.iterdir())) == 3, "that, the lock and the note"
    assert await put(store, 12, payload)
    assert await got(store) == payload
    assert len(told) == 2
    failed = wording("elastic.store.not_saved", step=10, path=tmp_path, error="File too large")
    assert told[0].startswith(failed + wording("elastic.versions.one_kept", step=3))
    assert told[1] == wording("elastic.versions.saved_again")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
@pytest.mark.parametrize("place", ["create_part", "write_all", "sync_and_close", "publish"])
async def test_whatever_call_a_full_disk_fails_the_older_checkpoint_stays_and_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, place: str
) -> None:
    told = list[str]()
    store = CheckpointStore(tmp_path, told.append)
    await put(store, 3, b"older")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(files, place, fail)
        with pytest.raises(NotStoredError):
            await put(store, 4, b"newer")
    assert not list(tmp_path.glob(f"*{files.PART}"))
    assert store.step == 3
    assert await put(store, 4, b"newer")
    assert store.step == 4
    assert len(told) == 2


async def test_regression_a_checkpoint_that_could_not_be_read_was_told_as_there_is_none(tmp_path: Path) -> None:
    told = list[str]()
    store = CheckpointStore(tmp_path, told.append)
    await put(store, 5000, b"good")
    path = file_of(tmp_path)
    path.rename(tmp_path / "elsewhere")
    text = wording("elastic.store.unreadable", step=5000, path=tmp_path, error="No such file or directory")
    for _ in range(2):
        assert await store.offer() == {"op": "fetched", "error": text}
    (tmp_path / "elsewhere").rename(path)
    assert await got(store) == b"good"
    assert told == [wording("elastic.store.mend_that", text=text), wording("elastic.store.readable_again")]


async def test_a_checkpoint_whose_file_fails_while_it_is_sent_ends_the_connection_instead_of_the_driver(
    tmp_path: Path,
) -> None:
    told = list[str]()
    store = CheckpointStore(tmp_path, told.append)
    await put(store, 5, b"0123456789")
    os.truncate(file_of(tmp_path), 4)
    with pytest.raises(WireError, match="went away"):
        await asyncio.wait_for(downloaded(store), STILL_S)
    assert told == [
        wording("elastic.store.unreadable", step=5, path=tmp_path, error="")
        + wording("elastic.store.mend_that", text=wording("elastic.payload.ends_early"))
    ]


@pytest.mark.parametrize(("error", "times"), [(None, 1), (errno.EIO, 3)])
async def test_regression_workers_asked_for_ever_for_a_checkpoint_whose_file_failed_while_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None, times: int
) -> None:
    """Each try wrote two lines, that it cannot be read and that it can again, twice a second."""
    told = list[str]()

    def fail(channel: Any, *_: object) -> bool:
        raise OSError(error, os.strerror(error)) if error else OSError("its file ends too early")

    store = CheckpointStore(tmp_path, told.append)
    await put(store, 5, b"0123456789")
    with monkeypatch.context() as patched:
        patched.setattr("elastic.store.store.send_file", fail)
        for _ in range(times):
            assert "sha256" in await store.offer()
            with pytest.raises(WireError, match="hung up"):
                await downloaded(store)
        assert "cannot be read" in str((await store.offer())["error"])
    assert len(told) == 1
    os.utime(file_of(tmp_path))  # who has mended it is believed
    assert await got(store) == b"0123456789"
    assert told[1:] == [wording("elastic.store.readable_again")]


async def test_a_checkpoint_that_was_altered_on_the_disk_is_told_of_once_and_loaded_by_nobody_until_it_is_put_back(
    tmp_path: Path,
) -> None:
    told = list[str]()
    store = CheckpointStore(tmp_path, told.append)
    await put(store, 5, b"0123456789")
    path = file_of(tmp_path)
    path.write_bytes(b"0123456780")
    assert "sha256" in await store.offer(), "to look for that each time would be to read all of it"
    for _ in range(2):
        with pytest.raises(WireError, match=pattern("elastic.payload.altered") + "|hung up"):
            await downloaded(store)
        assert says(str((await store.offer())["error"]), "elastic.store.altered")
    assert path.read_bytes() == b"0123456780", "it is kept"
    path.write_bytes(b"0123456789")
    assert await got(store) == b"0123456789"
    assert len(told) == 2
    assert told[0].startswith(
        wording("elastic.store.unreadable", step=5, path=tmp_path, error=fragment(excerpt("elastic.store.altered")))
    )
    assert told[1] == wording("elastic.store.readable_again")


async def test_what_was_altered_on_its_way_only_is_no_fault_of_the_file(tmp_path: Path) -> None:
    told = list[str]()
    store = CheckpointStore(tmp_path, told.append)
    await put(store, 5, b"0123456789")
    with pytest.raises(AlteredError):
        await downloaded(store, sha256="0" * 64)
    assert await got(store) == b"0123456789"
    assert told == []


async def test_a_checkpoint_that_a_release_before_has_saved_under_a_name_without_a_digest_is_read(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "state-5-50-4.pt").write_bytes(b"good")
    store = CheckpointStore(tmp_path)
    assert (store.step, store.samples) == (5, 50)
    assert await got(store) == b"good"
    assert await put(store, 6, b"better")
    assert file_of(tmp_path).name.startswith("state-6-")


async def test_a_file_server_that_has_just_come_back_is_asked_again_for_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, tries, real = list[str](), list[str](), files.open_old

    def once(folder: int, name: str) -> BinaryIO:
        tries.append(name)
        if len(tries) < 3:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(folder, name)

    before = CheckpointStore(tmp_path, told.append)
    await put(before, 5, b"good")
    with monkeypatch.context() as patched:
        patched.setattr(store, "_PAUSE_S", 0.0)
        patched.setattr(files, "open_old", once)
        assert "error" not in await before.offer()
    assert len(tries) == 3
    assert told == []


def test_regression_training_began_anew_where_the_only_checkpoint_was_not_whole(tmp_path: Path) -> None:
    (tmp_path / CheckpointFile(9, 90, 100).name).write_bytes(b"torn")
    for _ in range(2):
        with pytest.raises(StoreError, match=pattern("elastic.store.only_one_broken", broken="state-9-90-100.pt")):
            CheckpointStore(tmp_path)
    assert (tmp_path / CheckpointFile(9, 90, 100).name).read_bytes() == b"torn"


def test_a_folder_that_cannot_be_read_at_the_start_is_one_line_and_no_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state-5-50-4.pt").write_bytes(b"good")
    tries = 0

    def fail(folder: int) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    real = store.contents
    monkeypatch.setattr(store, "_PAUSE_S", 0.0)
    monkeypatch.setattr(store, "contents", fail)
    with pytest.raises(
        StoreError,
        match=pattern("elastic.versions.unusable", error=fragment(excerpt("elastic.trouble.stale_handle"))),
    ) as told:
        CheckpointStore(tmp_path)
    assert tries == 3
    assert "BFT_STATE_DIR" in str(told.value)
    monkeypatch.setattr(store, "contents", real)
    assert CheckpointStore(tmp_path).step == 5


async def test_a_disk_that_hangs_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    real = files.create_part

    def slow(folder: int) -> Any:
        assert goes_on.wait(STILL_S)
        return real(folder)

    store = CheckpointStore(tmp_path)
    monkeypatch.setattr(files, "create_part", slow)
    uploading = asyncio.create_task(put(store, 1, b"state"))
    await asyncio.sleep(0.01)
    assert not uploading.done()
    goes_on.set()
    assert await uploading


# -- two drivers ---


async def test_regression_a_requeued_jobs_old_driver_overwrote_the_newer_checkpoint_of_its_successor(
    tmp_path: Path,
) -> None:
    fenced = list[str]()
    old = CheckpointStore(tmp_path, fenced.append, lambda: fenced.append("ends"))
    await put(old, 100, b"old 100")
    new = CheckpointStore(tmp_path)
    assert new.step == 100
    await put(new, 200, b"new 200")
    for _ in range(2):
        with pytest.raises(NotStoredError) as caught:
            await put(old, 300, b"old 300")
        assert not caught.value.again
    assert old.fenced
    assert not new.fenced
    await put(new, 210, b"new 210")
    assert await got(again(tmp_path)) == b"new 210"
    assert fenced == [wording("elastic.owner.taken_over"), "ends"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20)), min_size=1, max_size=12))
def test_of_any_drivers_that_take_over_from_each_other_the_last_alone_saves_and_no_checkpoint_is_lost(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, int]]
) -> None:
    """Each move: which driver of those there are, and the step that it saves; -1: another one takes over."""
    folder = tmp_path_factory.mktemp("state")

    async def scene() -> None:
        drivers, best = [CheckpointStore(folder)], -1
        for which, step in moves:
            if step < 0:
                drivers[-1].close()  # its lock; waiting for it would take time
                drivers.append(CheckpointStore(folder))
                continue
            driver = drivers[which % len(drivers)]
            if driver is drivers[-1]:
                assert await put(driver, step, b"checkpoint of %d" % step) == (step >= best)
                best = max(best, step)
            else:
                with pytest.raises(NotStoredError):
                    await put(driver, step, b"of a driver that was taken over")
        drivers[-1].close()
        found = again(folder)
        assert found.step == best
        assert await got(found) == (b"checkpoint of %d" % best if best >= 0 else b"")

    asyncio.run(scene())


async def test_regression_two_drivers_used_one_name_for_their_uploads_and_one_published_the_others_half(
    tmp_path: Path,
) -> None:
    old = CheckpointStore(tmp_path)
    content = SlowContent(b"old, half")
    uploading = asyncio.create_task(old.receive(content, 300, 0))
    while not (parts := list(tmp_path.glob(f"*{files.PART}"))):
        await asyncio.sleep(0.001)
    new = CheckpointStore(tmp_path)
    assert list(tmp_path.glob(f"*{files.PART}")) == parts, "who has no lock sweeps nothing"
    await put(new, 200, b"new")
    content.go_on.set()
    with pytest.raises(NotStoredError):
        await uploading
    assert await got(again(tmp_path)) == b"new"


class SlowContent(FakeContent):
    """A checkpoint whose second half comes later."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.go_on = threading.Event()

    def pieces(self) -> Iterator[memoryview]:
        [whole] = super().pieces()
        yield whole[:4]
        assert self.go_on.wait(STILL_S)
        yield whole[4:]


SAVES_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from elastic.store.store import CheckpointStore
from tests.elastic.fakes import FakeContent
async def main():
    store, step = CheckpointStore(Path(sys.argv[1])), 0
    while True:
        step += 1
        await store.receive(FakeContent(b"%08d" % step * 50_000), step, step * 10)
        print(step, flush=True)
asyncio.run(main())
"""


def test_a_driver_that_is_killed_in_the_middle_of_a_save_leaves_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    for _ in range(3):
        argv = [sys.executable, "-c", SAVES_UNTIL_KILLED, str(tmp_path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in range(5):
                process.stdout.readline()
            process.kill()
            rest = process.stdout.read().split()
        found = again(tmp_path)
        assert found.step >= max(map(int, rest), default=5)
        assert asyncio.run(got(found)) == b"%08d" % found.step * 50_000
        for path in tmp_path.glob("state-*"):
            path.unlink()


def test_a_worker_that_went_away_in_the_middle_leaves_no_half_file(tmp_path: Path) -> None:
    async def scene() -> None:
        store = CheckpointStore(tmp_path)
        content = SlowContent(b"half")
        uploading = asyncio.create_task(store.receive(content, 1, 0))
        while not list(tmp_path.glob(f"*{files.PART}")):
            await asyncio.sleep(0.001)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        content.go_on.set()
        for _ in range(1000):
            if not list(tmp_path.glob(f"*{files.PART}")):
                return
            await asyncio.sleep(0.001)
        pytest.fail("the half file is still there")

    asyncio.run(scene())


def test_a_checkpoint_without_bytes_or_steps_is_no_checkpoint(tmp_path: Path) -> None:
    async def scene(content: bytes, step: int) -> None:
        with pytest.raises(WireError):
            await CheckpointStore(tmp_path).receive(FakeContent(content), step, 0)

    asyncio.run(scene(b"", 3))
    asyncio.run(scene(b"good", -1))
    asyncio.run(scene(b"good", 10**18))  # a name that would not be read again
