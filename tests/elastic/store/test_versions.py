"""Checkpoint versions on disk: a manifest appears once all is there, two are kept, nothing else is ever touched."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.node import shared_folder
from elastic.store import files, manifest, shards
from elastic.store.completeness import Completeness, RankReport
from elastic.store.folder import StoreError, UnsafeFolderError
from elastic.store.manifest import CheckpointVersion
from elastic.store.store import CheckpointStore
from elastic.store.versions import CheckpointVersions
from tests.elastic.store.distributed import name_of, told, write, written
from tests.elastic.store.test_store import put
from tests.support.messages import fragment, pattern, says, wording

pytestmark = pytest.mark.slow

NOBODY = 65534


class Driver:
    """One driver's hold on a trainer's checkpoints."""

    def __init__(self, folder: Path, state_path: Path | None = None) -> None:
        self.lines: list[str] = []
        self.fenced = 0
        self.store = CheckpointStore(folder, self.lines.append, self._on_fenced)
        self.found = CheckpointVersions(self.store, folder, str(state_path) if state_path else None, self.lines.append)

    def _on_fenced(self) -> None:
        self.fenced += 1

    @property
    def home(self) -> Path:
        return self.found.home.path

    async def publish(self, step: int, size: int = 2, token: int = 0) -> tuple[str, ...] | None:
        return await self.found.publish(whole(self.home, written(self.home, step, size, token)), frozenset)

    async def listed(self, other_step: int = -1) -> list[Any]:
        answer = await self.found.answer(other_step)
        return answer["generations"] if answer and "generations" in answer else [answer]

    def on_disk(self) -> list[str]:
        return sorted(os.listdir(self.home))

    def close(self) -> None:
        self.store.close()


def whole(home: Path, messages: list[Any]) -> CheckpointVersion:
    gathering, over = Completeness(), None
    for worker, message in enumerate(messages):
        over = gathering.heard(worker, RankReport.parse(message, str(home)))
    assert over is not None
    assert over.complete is not None
    return over.complete


@pytest.fixture(params=["in the checkpoint folder", "below a path"])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Driver]:
    state_path = tmp_path / "lustre" if request.param == "below a path" else None
    return lambda: Driver(tmp_path / "states" / "7@hpc", state_path)


async def test_two_versions_are_kept_and_told_the_newest_first(begin: Callable[[], Driver]) -> None:
    driver = begin()
    for step in (10, 20, 30):
        assert await driver.publish(step) == ((name_of(10),) if step == 30 else ())
    assert driver.on_disk() == [name_of(20), name_of(30)]
    assert (driver.found.step, driver.found.samples) == (30, 300)
    newest, before = await driver.listed()
    assert (newest["name"], before["name"]) == (name_of(30), name_of(20))
    assert newest["path"] == str(driver.home / name_of(30))
    assert (newest["step"], newest["samples"], newest["size"]) == (30, 300, 2)
    assert [file[:2] for file in newest["files"]] == [["__0_0.distcp", 8], [".metadata", 5], ["__1_0.distcp", 9]]
    driver.close()
    again = begin()
    assert await again.listed() == [newest, before]
    assert json.loads((driver.home / name_of(30) / "manifest.json").read_text())["step"] == 30
    again.close()


async def test_the_newer_of_two_of_one_step_takes_the_place_of_the_other(begin: Callable[[], Driver]) -> None:
    driver = begin()
    for step, token in ((10, 0), (20, 0), (20, 1)):
        await driver.publish(step, token=token)
    assert driver.on_disk() == [name_of(10), name_of(20, 1)]
    driver.close()


async def test_the_checkpoint_of_the_higher_step_is_answered_of_whichever_kind(begin: Callable[[], Driver]) -> None:
    driver = begin()
    assert await driver.listed() == [None]
    await put(driver.store, 15, b"through the driver")
    assert await driver.listed(driver.store.step) == [None]
    for step in (10, 20):
        await driver.publish(step)
    assert [one["step"] for one in await driver.listed(driver.store.step)] == [20]
    await put(driver.store, 25, b"through the driver")
    assert await driver.listed(driver.store.step) == [None]
    driver.close()


@pytest.mark.parametrize("fault", ["missing", "short", "a link", "a folder", "no folder"])
async def test_a_version_with_a_shard_that_is_not_whole_does_not_count(
    begin: Callable[[], Driver], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.store.versions._PAUSE_S", 0.0)
    driver = begin()
    await driver.publish(10)
    messages = written(driver.home, 20)
    folder = driver.home / name_of(20)
    shard = folder / "__1_0.distcp"
    if fault == "no folder":
        shutil.rmtree(folder)
    elif fault == "short":
        shard.write_bytes(b"x")
    else:
        shard.unlink()
        if fault == "a link":
            (driver.home / "elsewhere").write_bytes(b"x" * 9)
            shard.symlink_to(driver.home / "elsewhere")
        elif fault == "a folder":
            shard.mkdir()
    assert await driver.found.publish(whole(driver.home, messages), frozenset) is None
    assert driver.found.step == 10
    [line] = driver.lines
    assert says(line, "elastic.versions.does_not_count", step=fragment("20"))
    assert says(line, "elastic.versions.one_kept", step=10)
    driver.close()
    again = begin()
    assert again.found.step == 10
    again.close()


async def test_files_that_a_file_server_shows_late_are_looked_for_again(
    begin: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.store.versions._PAUSE_S", 0.2)
    driver = begin()
    messages = [told(driver.home, 5, rank, 2) for rank in range(2)]
    publishing = asyncio.create_task(driver.found.publish(whole(driver.home, messages), frozenset))
    await asyncio.sleep(0.05)
    for message in messages:
        write(message)
    assert await publishing == ()
    driver.close()


# -- whose it is ---


async def test_a_driver_that_was_taken_over_publishes_nothing_sets_nothing_aside_and_removes_nothing(
    begin: Callable[[], Driver],
) -> None:
    old = begin()
    await old.publish(10)
    new = begin()
    assert new.home == old.home
    assert await new.publish(20) == ()
    messages = written(old.home, 30)
    assert await old.found.publish(whole(old.home, messages), frozenset) is None
    assert not await old.found.set_aside(name_of(10), "it says so")
    await old.found.drop(name_of(30))
    assert old.fenced == 1
    assert new.on_disk() == [name_of(10), name_of(20), name_of(30)]
    assert [one["step"] for one in await new.listed()] == [20, 10]
    new.close()
    old.close()
    third = begin()
    assert third.found.step == 20
    third.close()


class PowerCut(BaseException):
    """The machine stops."""


@pytest.mark.parametrize("after", range(12))
async def test_a_driver_that_is_killed_anywhere_leaves_a_whole_version_and_nothing_that_stays(
    begin: Callable[[], Driver], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each call that changes a disk: the next one finds a whole version, and publishes on."""
    driver = begin()
    for step in (10, 20):
        await driver.publish(step)
    left = after

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut
            return real(*args, **more)

        return call

    version = whole(driver.home, written(driver.home, 30))
    with monkeypatch.context() as patch:
        for module, name in ((files, "publish"), (files, "create_part"), (os, "unlink"), (os, "rmdir")):
            patch.setattr(module, name, counted(getattr(module, name)))
        patch.setattr(os, "fsync", counted(os.fsync))
        try:
            # As the driver's thread does it, one call after the other.
            driver.found._check(version)
            dropped = driver.found._publish(version)
            driver.found._clear(dropped or (), frozenset())
        except PowerCut:
            pass
    driver.close()
    again = begin()
    assert again.found.step in (20, 30)
    for one in await again.listed():
        for file, size_bytes, _ in one["files"]:
            assert (Path(one["path"]) / file).stat().st_size == size_bytes
    for step in (40, 50):
        await again.publish(step)
    assert again.on_disk() == [name_of(40), name_of(50)]
    again.close()


async def test_what_is_not_a_version_of_this_trainers_is_never_removed(
    begin: Callable[[], Driver], tmp_path: Path
) -> None:
    driver = begin()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (driver.home / name_of(1)).symlink_to(outside)
    (driver.home / "step-1").mkdir()
    (driver.home / "notes.txt").write_text("mine")
    folder = driver.home / name_of(2)
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    for step in (3, 99):
        (driver.home / name_of(step)).mkdir()
    for step in (10, 20, 30):
        messages = written(driver.home, step)
        await driver.found.publish(whole(driver.home, messages), lambda: {name_of(3)})
    assert driver.on_disk() == ["notes.txt", name_of(3), name_of(20), name_of(30), name_of(99), "step-1"]
    assert (outside / "precious").read_text() == "mine"
    driver.close()


async def test_two_trainers_with_one_path_never_meet(tmp_path: Path) -> None:
    path = tmp_path / "lustre"
    one, other = (Driver(tmp_path / "states" / name, path) for name in ("7@a", "7@b"))
    assert one.home.parent == other.home.parent == path
    assert one.home != other.home
    assert one.home.stat().st_mode & 0o777 == 0o700
    for step in (10, 20, 30):
        await one.publish(step)
        await other.publish(step + 1)
    assert (one.on_disk(), other.on_disk()) == ([name_of(20), name_of(30)], [name_of(21), name_of(31)])
    # An id that comes again is another trainer's.
    shutil.move(tmp_path / "states" / "7@a", tmp_path / "states" / "7@a.earlier-20260101T000000Z")
    again = Driver(tmp_path / "states" / "7@a", path)
    assert again.home != one.home
    for driver in (one, other, again):
        driver.close()


def test_a_folder_that_another_user_could_replace_is_refused(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    group.chmod(0o775)
    refused = pattern("elastic.folder.others_can_write", fd=fragment("group"), advice=fragment("state="))
    with pytest.raises(UnsafeFolderError, match=refused):
        Driver(tmp_path / "states" / "7", group / "run7")
    assert os.listdir(group) == ["run7"] or os.listdir(group) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_shared_scratch_of_roots_will_do_and_a_folder_of_somebody_elses_will_not(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    driver = Driver(tmp_path / "states" / "7", scratch)
    assert driver.home.parent == scratch
    driver.close()
    os.chown(scratch, NOBODY, NOBODY)
    refused = pattern("elastic.folder.of_another", user="nobody", advice=wording("elastic.folder.give_state"))
    with pytest.raises(UnsafeFolderError, match=refused):
        Driver(tmp_path / "states" / "8", scratch)


async def test_where_this_host_does_not_see_the_path_workers_are_believed_and_remove_what_goes(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "states" / "7", tmp_path / "not" / "mounted")
    [line] = driver.lines
    assert says(line, "elastic.versions.not_seen")
    messages = [told(driver.home, step, 0, 1) for step in (10, 20, 30)]
    dropped = [await driver.found.publish(whole(driver.home, [message]), frozenset) for message in messages]
    assert dropped == [(), (), (name_of(10),)]
    assert [one["step"] for one in await driver.listed()] == [30, 20]
    assert driver.lines == [line]
    driver.close()
    again = Driver(tmp_path / "states" / "7", tmp_path / "not" / "mounted")
    assert again.home == driver.home
    again.close()


async def test_regression_a_full_path_was_taken_for_one_that_the_drivers_host_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(home: int, token: str, name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    driver = Driver(tmp_path / "states" / "7", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "probe", full)
        assert not await driver.found.probe("5e", "driver")
    assert driver.found.seen
    assert driver.lines == []
    assert await driver.found.probe("5e", "driver")
    await driver.found.close()
    driver.close()


async def test_regression_a_job_that_was_to_go_on_ended_since_its_path_was_full_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def full(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).startswith("bft-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        driver = Driver(tmp_path / "states" / "7", tmp_path / "run")
        assert not await driver.found.probe("5e", "driver")
    assert (driver.found.seen, driver.lines) == (True, [])
    assert await driver.found.probe("5e", "driver")
    assert await driver.publish(10) == ()
    await driver.found.close()
    driver.close()


async def test_regression_a_path_that_the_nodes_had_to_make_stayed_unseen_for_good_and_filled_up(
    tmp_path: Path,
) -> None:
    """The driver makes no folder but the last; of one that it had not seen once it looked at nothing any more."""
    path = tmp_path / "runs" / "today" / "run7"
    driver = Driver(tmp_path / "states" / "7", path)
    assert not driver.found.seen
    before = os.umask(0o002)
    try:
        assert shared_folder.probed({"path": str(driver.home), "token": "5e", "names": []}, "n1")["error"] == ""
    finally:
        os.umask(before)
    assert [level.stat().st_mode & 0o777 for level in (driver.home, path, path.parent)] == [0o700] * 3
    for step in (10, 20, 30):
        await driver.publish(step)
    assert driver.found.seen
    await driver.found.close()
    assert driver.on_disk() == [name_of(20), name_of(30)]
    assert says(driver.lines[-1], "elastic.versions.seen_now")
    driver.close()


async def test_regression_a_file_server_that_was_away_once_was_never_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    driver = Driver(tmp_path / "states" / "7", tmp_path / "lustre")
    with monkeypatch.context() as patch:
        patch.setattr(shards, "check", away)
        await driver.publish(10)
    assert not driver.found.seen
    for step in (20, 30):
        await driver.publish(step)
    assert driver.on_disk() == [name_of(20), name_of(30)]
    driver.close()


# -- one is not whole ---


async def test_a_version_that_was_found_wrong_is_kept_and_never_used_again(begin: Callable[[], Driver]) -> None:
    driver = begin()
    for step in (10, 20):
        await driver.publish(step)
    assert not await driver.found.set_aside("step-1", "a lie")
    assert await driver.found.set_aside(name_of(20), "__1_0.distcp has another digest")
    assert not await driver.found.set_aside(name_of(20), "once more")
    [line] = driver.lines
    assert line == (
        wording(
            "elastic.versions.not_used",
            step=20,
            where=driver.home / name_of(20),
            why="__1_0.distcp has another digest",
            on=10,
        )
    )
    assert driver.found.step == 10
    assert [one["step"] for one in await driver.listed()] == [10]
    driver.close()
    again = begin()
    assert [one["step"] for one in await again.listed()] == [10]
    for step in (15, 20, 30):
        await again.publish(step, token=1)
    assert again.on_disk() == [name_of(20), name_of(20, 1), name_of(30, 1)]
    again.close()


async def test_the_last_checkpoint_is_not_given_up_for_what_a_worker_says_of_it(begin: Callable[[], Driver]) -> None:
    """A node that has lost its file system finds every shard of every version missing."""
    driver = begin()
    for step in (10, 20):
        await driver.publish(step)
    assert await driver.found.set_aside(name_of(20), "a shard is gone")
    assert not await driver.found.set_aside(name_of(10), "a shard is gone")
    assert driver.lines[1:] == [wording("elastic.versions.not_whole", step=10, why="a shard is gone")]
    assert [one["step"] for one in await driver.listed()] == [10]
    await put(driver.store, 5, b"through the driver")
    assert await driver.found.set_aside(name_of(10), "a shard is gone")
    assert says(driver.lines[-1], "elastic.versions.not_used", why=fragment("a shard is gone"), on=5)
    driver.close()


async def test_when_none_is_left_a_worker_is_told_why_instead_of_beginning_anew(begin: Callable[[], Driver]) -> None:
    driver = begin()
    await driver.publish(10)
    with driver.store.opened_by_owner() as folder:
        manifest.set_aside(folder, manifest.manifests(folder).kept[0], "a shard is gone")
    driver.close()
    again = begin()
    assert again.found.step == -1
    [answer] = await again.listed()
    assert answer["op"] == "fetched"
    assert "a shard is gone" in answer["error"]
    assert await again.listed(5) == [None], "a checkpoint through the driver is there"
    again.close()


async def test_a_driver_that_is_killed_while_it_sets_one_aside_has_done_so(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "7")
    for step in (10, 20):
        await driver.publish(step)
    [name] = [path.name for path in tmp_path.glob("7/manifest-20-*")]
    content = (tmp_path / "7" / name).read_bytes()
    await driver.found.set_aside(name_of(20), "wrong")
    (tmp_path / "7" / name).write_bytes(content)
    driver.close()
    again = Driver(tmp_path / "7")
    assert again.found.step == 10
    again.close()


async def test_a_manifest_that_cannot_be_read_is_set_aside_for_the_one_before(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "7")
    for step in (10, 20):
        await driver.publish(step)
    driver.close()
    [path] = tmp_path.glob("7/manifest-20-*")
    path.write_text("{}")
    again = Driver(tmp_path / "7")
    assert again.found.step == 10
    assert again.lines == [f"{path.name} is not used: " + wording("elastic.manifest.not_a_manifest")]
    again.close()


# -- what goes wrong on a disk ---


async def test_a_manifest_that_finds_no_space_is_told_once_and_the_version_before_is_kept(
    begin: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = begin()
    await driver.publish(10)

    def full(folder: int, version: CheckpointVersion) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", full)
        for step in (20, 30):
            assert await driver.publish(step) is None
    assert driver.found.step == 10
    [line] = driver.lines
    assert wording("elastic.trouble.no_space") + wording("elastic.versions.one_kept", step=10) in line
    assert await driver.publish(40) is not None
    assert driver.lines[1:] == [wording("elastic.versions.saved_again")]
    driver.close()


async def test_too_little_space_for_the_next_checkpoints_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path / "states" / "7", tmp_path / "lustre")
    free_bytes = 43
    monkeypatch.setattr(shards, "free_bytes", lambda home: free_bytes)
    driver.found.look_at_space(0)
    assert driver.lines == [], "nothing is known of the size yet"
    await driver.publish(10)
    [line] = driver.lines
    assert line.startswith(f"{tmp_path / 'lustre'}: ")
    assert "free space there" in line
    await driver.publish(20)
    assert driver.lines[1:] == [wording("elastic.versions.space_again")], "two are kept: only one more is needed"
    driver.found.look_at_space("much")
    driver.found.look_at_space(3)
    assert len(driver.lines) == 3
    driver.close()


async def test_a_list_of_files_that_no_line_can_hold_is_read_beside_the_shards(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "7")
    many = [[f"__{number}_{'x' * 100}.distcp", 1, "0" * 32] for number in range(6000)]
    message = told(driver.home, 10, 0, 1)
    write(message)
    message["files"] += many
    for file, size_bytes, _ in many:
        (driver.home / name_of(10) / file).write_bytes(b"x" * size_bytes)
    await driver.found.publish(whole(driver.home, [message]), frozenset)
    await driver.publish(20)
    newest, before = await driver.listed()
    assert "files" in newest
    assert "files" not in before
    assert len(json.loads(Path(before["path"], "manifest.json").read_text())["files"]) == 6002
    driver.close()
    again = Driver(tmp_path / "7")
    assert again.found.step == 20
    again.close()


def test_a_path_that_takes_no_folder_ends_the_driver_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StoreError, UnsafeFolderError)) as refused:
        Driver(tmp_path / "states" / "7", tmp_path / "file")
    assert len(str(refused.value).splitlines()) == 1
