"""What becomes of checkpoint versions when their trainer has ended: kept, resumed by another job, removed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.cli.main import bft
from elastic.store import catalogue, manifest, restore, shards
from elastic.store.catalogue import Name
from elastic.store.manifest import StoredVersion
from elastic.store.restore import Beginning
from tests.elastic.store.distributed import name_of
from tests.elastic.store.test_store import put
from tests.elastic.store.test_versions import Driver
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow

below_path = pytest.mark.parametrize("outside", [False, True], ids=["in the checkpoint folder", "below a path"])


def saved(root: Path, name: str, *steps: int, outside: bool = False, payload: int = -1) -> Path:
    """A trainer that saved distributed checkpoints, at last one through its driver, and has ended; their home."""
    driver = Driver(root / name, root.parent / "lustre" if outside else None)

    async def scene() -> None:
        for step in steps:
            await driver.publish(step)
        if payload >= 0:
            await put(driver.store, payload, b"through the driver")

    asyncio.run(scene())
    driver.store.release()
    driver.close()
    return driver.home


def newest(folder: Path) -> str:
    """Where the newest version of a folder's is said to be."""
    driver = Driver(folder)
    driver.close()
    assert driver.found.newest is not None
    return str(driver.found.newest.path(folder))


def entry(root: Path, name: str) -> catalogue.Entry:
    return next(found for found in catalogue.entries(root) if str(found.name) == name)


@below_path
def test_what_ended_well_keeps_its_newest_version_alone_until_it_is_swept(root: Path, outside: bool) -> None:
    home = saved(root, "7", 10, 20, outside=outside)
    (home / name_of(30)).mkdir()
    kept = catalogue.put_away(root, Name("7"), 3600.0)
    assert kept is not None
    folder = root / str(kept)
    there = home if outside else folder / "shards"
    assert os.listdir(there) == [name_of(20)]
    assert newest(folder) == str(there / name_of(20))
    assert catalogue.sweep(root, time.time() + 7200.0) != []
    assert os.listdir(root) == []
    if outside:
        assert os.listdir(root.parent / "lustre") == []


@below_path
def test_of_both_kinds_the_checkpoint_of_the_higher_step_is_kept(root: Path, outside: bool) -> None:
    home = saved(root, "7", 10, 20, payload=25, outside=outside)
    assert entry(root, "7").newest is not None
    kept = catalogue.put_away(root, Name("7"), 3600.0)
    assert kept is not None
    assert not home.exists()
    assert list((root / str(kept)).glob("state-25-*"))
    assert not list((root / str(kept)).glob("manifest-*"))
    home = saved(root, "8", 30, payload=25, outside=outside)
    assert isinstance(entry(root, "8").newest, StoredVersion)
    kept = catalogue.put_away(root, Name("8"), 3600.0)
    assert not list((root / str(kept)).glob("state-25-*"))


@below_path
def test_a_checkpoint_that_is_removed_takes_its_versions_along_and_nobody_elses(root: Path, outside: bool) -> None:
    home, other = (saved(root, name, 10, 20, outside=outside) for name in ("7", "8"))
    driver = Driver(root / "7", root.parent / "lustre" if outside else None)
    asyncio.run(driver.found.set_aside(name_of(20), "wrong"))
    driver.store.release()
    driver.close()
    assert catalogue.remove(root, entry(root, "7")) == ""
    assert not home.exists()
    assert not (root / "7").exists()
    assert sorted(os.listdir(other)) == [name_of(10), name_of(20)]


def test_a_note_that_names_a_folder_of_the_users_has_nothing_else_in_it_removed(root: Path) -> None:
    home = saved(root, "7", 10, outside=True)
    (home / "mine.txt").write_text("mine")
    catalogue.remove(root, entry(root, "7"))
    assert os.listdir(home) == ["mine.txt"]
    saved(root, "8", 10)
    precious = root.parent / "precious"
    (precious / name_of(10)).mkdir(parents=True)
    (root / "8" / "shards.json").write_text(json.dumps({"path": str(precious)}))
    catalogue.remove(root, entry(root, "8"))
    assert os.listdir(precious) == [name_of(10)]


def test_a_removal_that_was_broken_off_goes_on_with_the_next_sweep(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = saved(root, "7", 10, outside=True)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(shards, "remove", fail)
        with pytest.raises(catalogue.StoreError, match="Input/output error"):
            catalogue.remove(root, entry(root, "7"))
    assert catalogue.entries(root) == []
    assert home.exists()
    catalogue.sweep(root, time.time())
    assert not home.exists()
    assert os.listdir(root) == []


def test_where_the_path_is_not_seen_the_user_is_told_where_files_are_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFT_STATE_DIR", str(root))
    home = saved(root, "7", 10, outside=True)
    shutil.rmtree(root.parent / "lustre")
    done = CliRunner().invoke(bft, ["checkpoints", "rm", "7"])
    assert done.output == ("removed 7" + wording("cli.checkpoints.files_not_seen", left=home) + "\n"), done.exception
    assert os.listdir(root) == []


@below_path
def test_distributed_checkpoints_are_shown_with_step_size_and_place(
    root: Path, outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFT_STATE_DIR", str(root))
    monkeypatch.setenv("COLUMNS", "300")
    home = saved(root, "7", 10, 20, outside=outside)
    saved(root, "8", payload=3)
    seven, eight = json.loads(CliRunner().invoke(bft, ["checkpoints", "ls", "--json"]).output)["checkpoints"]
    assert (seven["step"], seven["samples"], seven["size_bytes"]) == (20, 200, 2 * (8 + 5 + 9))
    assert (seven["distributed_folder"], seven["set_aside"], eight["distributed_folder"]) == (str(home), 0, None)
    shown = CliRunner().invoke(bft, ["checkpoints", "ls"]).output.splitlines()
    assert str(home) in shown[1]


@below_path
def test_a_new_job_has_the_newest_version_for_its_own_also_when_the_old_checkpoint_goes(
    root: Path, outside: bool
) -> None:
    home = saved(root, "6", 10, 20, outside=outside)
    told: list[str] = []
    state_path = str(root.parent / "lustre") if outside else None
    path = restore.begin(root, Beginning("7", "", False, "6", state_path), root.parent, told.append)
    assert told == [wording("elastic.beginning.goes_on_from", name=6, note=20)]
    assert sorted(os.listdir(home)) == [name_of(10), name_of(20)], "theirs stays what it is"
    catalogue.remove(root, entry(root, "6"))
    driver = Driver(path, root.parent / "lustre" if outside else None)
    assert (driver.found.step, driver.home != home) == (20, True)
    assert (driver.home / name_of(20) / "__0_0.distcp").read_bytes() == b"x" * 8

    async def scene() -> None:
        for step in (30, 40):
            await driver.publish(step)

    asyncio.run(scene())
    assert driver.on_disk() == [name_of(30), name_of(40)]
    driver.close()


@below_path
def test_regression_a_job_that_resumed_had_no_version_to_fall_back_to(root: Path, outside: bool) -> None:
    """The newest has lost a shard: that is found by who reads it, and the one before it was left behind."""
    home = saved(root, "6", 10, 20, outside=outside)
    (home / name_of(20) / "__0_0.distcp").unlink()
    state_path = str(root.parent / "lustre") if outside else None
    path = restore.begin(root, Beginning("7", "", False, "6", state_path), root.parent, lambda _: None)
    driver = Driver(path, root.parent / "lustre" if outside else None)

    async def scene() -> None:
        answer = await driver.found.answer(-1)
        assert answer is not None
        assert [one["name"] for one in answer["generations"]] == [name_of(20), name_of(10)]
        await driver.found.set_aside(name_of(20), "__0_0.distcp is missing")
        assert driver.found.step == 10
        assert driver.found.newest is not None
        assert (driver.found.newest.path(path) / "__0_0.distcp").exists()

    asyncio.run(scene())
    driver.close()


def test_a_version_on_another_file_system_is_read_where_it_is_and_never_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = saved(root, "6", 10, 20)
    told: list[str] = []

    def other_file_system(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    begins = Beginning("7", "", False, "6", str(root.parent / "lustre"))
    path = restore.begin(root, begins, root.parent, told.append)
    assert says(told[0], "elastic.beginning.files_read_in_place")
    driver = Driver(path, root.parent / "lustre")
    assert driver.found.newest is not None
    assert driver.found.newest.path(path) == home / name_of(20)

    async def scene() -> None:
        for step in (30, 40):
            await driver.publish(step)

    asyncio.run(scene())
    driver.store.release()
    driver.close()
    assert sorted(os.listdir(home)) == [name_of(10), name_of(20)]
    assert driver.on_disk() == [name_of(30), name_of(40)]
    catalogue.remove(root, entry(root, "7"))
    assert sorted(os.listdir(home)) == [name_of(10), name_of(20)]


def test_a_requeued_job_goes_on_from_its_own_version(root: Path) -> None:
    saved(root, "7", 10, 20)
    told: list[str] = []
    path = restore.begin(root, Beginning("7", "", True, "6"), root.parent, told.append)
    assert told == []
    assert newest(path).endswith(name_of(20))


def test_the_folder_of_a_trainer_that_published_nothing_goes_and_one_with_a_version_stays(root: Path) -> None:
    home = saved(root, "7", outside=True)
    assert catalogue.drop_if_empty(root, Name("7"))
    assert not home.exists()
    saved(root, "8", 10)
    assert not catalogue.drop_if_empty(root, Name("8"))
    with catalogue.Place(root / "8").opened() as folder:
        assert manifest.manifests(folder).newest is not None
