"""Checkpoints side by side: their names, what is kept and for how long, and that no running trainer's is touched."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.errors import UsageError
from elastic.store import catalogue, writer_lock
from elastic.store.catalogue import Name
from elastic.store.file_names import CheckpointFile
from elastic.store.folder import Place, StoreError, UnsafeFolderError
from elastic.store.store import CheckpointStore
from tests.elastic.store.test_store import put
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

DAY_S = 86400.0

ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}", fullmatch=True)


def saved(root: Path, name: str, step: int = 5, title: str = "train.py") -> Name:
    """A trainer that has saved and ended; its name."""
    running(root, name, step, title).close()
    parsed = Name.parse(name)
    assert parsed is not None
    return parsed


def running(root: Path, name: str, step: int = 5, title: str = "train.py") -> CheckpointStore:
    store = CheckpointStore(root / name, title=title)
    if step >= 0:
        asyncio.run(put(store, step, b"state"))
    store.release()
    return store


@given(ids, st.just("") | ids, st.sampled_from(["", "ended-until", "earlier"]), st.integers(0, 4_000_000_000))
def test_a_name_that_is_written_is_read_again_the_same(id_: str, cluster: str, mark: str, at_s: int) -> None:
    name = Name(id_, cluster, mark, float(at_s) if mark else 0.0)
    if ".ended-until-" not in id_ + cluster and ".earlier-" not in id_ + cluster:
        assert Name.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", ".removing-00", "a b", "7.ended-until-20269999T000000Z@", "../7", "7@a@b"])
def test_what_is_no_trainers_folder_is_left_alone(text: str) -> None:
    assert Name.parse(text) is None


def test_the_folder_is_the_variables_or_below_the_home() -> None:
    assert catalogue.root_of({"BFT_STATE_DIR": "/scratch/ada", "HOME": "/home/ada"}) == Path("/scratch/ada")
    assert catalogue.root_of({"BFT_STATE_DIR": "", "HOME": "/home/ada"}) == Path("/home/ada/.local/state/bft")


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_STATE_HOME": "/scratch/ada"}, "/scratch/ada/bft"),
        ({"XDG_STATE_HOME": "/scratch/ada", "HOME": ""}, "/scratch/ada/bft"),
        ({"XDG_STATE_HOME": "/scratch/ada", "BFT_STATE_DIR": "/states"}, "/states"),
        ({"XDG_STATE_HOME": ""}, "/home/ada/.local/state/bft"),
        ({"XDG_STATE_HOME": "states"}, "/home/ada/.local/state/bft"),
    ],
)
def test_the_folder_is_below_that_of_checkpoints_by_the_xdg_specification(environ: dict[str, str], folder: str) -> None:
    assert catalogue.root_of({"HOME": "/home/ada", **environ}) == Path(folder)


@pytest.mark.parametrize(("text", "seconds"), [("", DAY_S), ("0", 0.0), ("3600", 3600.0)])
def test_checkpoints_of_what_ended_well_are_kept_for_a_day_unless_told_otherwise(text: str, seconds: float) -> None:
    assert catalogue.keep_state_s({"BFT_KEEP_STATE_S": text}) == seconds


@pytest.mark.parametrize("text", ["-1", "a day", "nan", "inf"])
def test_a_time_to_keep_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="BFT_KEEP_STATE_S"):
        catalogue.keep_state_s({"BFT_KEEP_STATE_S": text})


def test_what_ended_well_is_kept_under_a_name_that_says_until_when_and_then_swept(tmp_path: Path) -> None:
    began_s = time.time()
    store = running(tmp_path, "7@hpc")
    (tmp_path / "7@hpc" / "script").mkdir()
    (tmp_path / "7@hpc" / "script" / "train.py").write_text("print()")
    kept = catalogue.put_away(tmp_path, Name("7", "hpc"), DAY_S)
    store.close()
    assert kept is not None
    assert int(began_s) <= kept.at_s - DAY_S <= time.time() + 1  # in whole seconds
    lock, note, state = sorted(os.listdir(tmp_path / str(kept)))
    assert (lock, note) == ("lock", "owner.json")
    assert CheckpointFile.parse(state) == CheckpointFile(5, 50, 5, hashlib.sha256(b"state").hexdigest())
    [entry] = catalogue.entries(tmp_path)
    assert (entry.state, entry.name, entry.owner.title) == ("ended", kept, "train.py")
    assert catalogue.sweep(tmp_path, kept.at_s - 1) == []
    assert [gone.name for gone in catalogue.sweep(tmp_path, kept.at_s)] == [kept]
    assert os.listdir(tmp_path) == []


def test_two_that_had_one_name_are_kept_beside_each_other(tmp_path: Path) -> None:
    for _ in range(2):
        store = running(tmp_path, "7")
        assert catalogue.put_away(tmp_path, Name("7"), DAY_S) is not None
        store.close()
    assert [entry.state for entry in catalogue.entries(tmp_path)] == ["ended", "ended"]


@pytest.mark.parametrize(("step", "keep_s"), [(5, 0.0), (-1, DAY_S)])
def test_nothing_is_kept_where_nothing_is_wanted_or_nothing_was_saved(tmp_path: Path, step: int, keep_s: float) -> None:
    store = running(tmp_path, "7", step)
    assert catalogue.put_away(tmp_path, Name("7"), keep_s) is None
    store.close()
    assert os.listdir(tmp_path) == []


def test_the_folder_of_a_trainer_that_failed_goes_only_when_there_is_nothing_in_it(tmp_path: Path) -> None:
    assert not catalogue.drop_if_empty(tmp_path, saved(tmp_path, "7"))
    assert catalogue.drop_if_empty(tmp_path, saved(tmp_path, "8", step=-1))
    assert os.listdir(tmp_path) == ["7"]


def test_the_folder_of_a_driver_that_ended_before_it_took_it_over_is_shown_and_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "7@hpc" / "script").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    [entry] = catalogue.entries(tmp_path)
    catalogue.remove(tmp_path, entry)
    assert os.listdir(tmp_path) == ["data"]


def test_what_a_driver_has_not_put_there_is_not_dropped_with_an_empty_folder(tmp_path: Path) -> None:
    name = saved(tmp_path, "7", step=-1)
    (tmp_path / "7" / "results.csv").write_text("the user's own")
    assert not catalogue.drop_if_empty(tmp_path, name)
    assert (tmp_path / "7" / "results.csv").exists()


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EBUSY, errno.ENOENT])
def test_regression_a_removal_failed_where_the_file_server_keeps_what_is_open_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """NFS does so with the lock, which is held meanwhile; another one who sweeps may also have been quicker."""

    def rmtree(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    saved(tmp_path, "7")
    saved(tmp_path, "8")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", rmtree)
        for entry in catalogue.entries(tmp_path):
            catalogue.remove(tmp_path, entry)
    assert [name[:10] for name in os.listdir(tmp_path)] == [".removing-"] * 2
    assert catalogue.entries(tmp_path) == []
    catalogue.sweep(tmp_path, time.time())
    assert os.listdir(tmp_path) == []


def test_one_leftover_that_cannot_go_keeps_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".removing-00", ".removing-11", ".removing-22"):
        (tmp_path / name).mkdir()
    remove = shutil.rmtree

    def rmtree(path: str) -> None:
        if path.endswith("00"):
            raise OSError(errno.EBUSY, "busy")
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    catalogue.sweep(tmp_path, time.time())
    assert os.listdir(tmp_path) == [".removing-00"]


def test_a_running_trainers_checkpoint_is_neither_removed_nor_swept(tmp_path: Path) -> None:
    store = running(tmp_path, "7.ended-until-20200101T000000Z")
    [entry] = catalogue.entries(tmp_path)
    assert entry.state == "running"
    with pytest.raises(UsageError, match="is running"):
        catalogue.remove(tmp_path, entry, force=True)
    assert catalogue.sweep(tmp_path, time.time()) == []
    store.close()
    [entry] = catalogue.entries(tmp_path)
    assert len(catalogue.sweep(tmp_path, time.time())) == 1


def test_a_driver_on_another_host_that_has_not_said_that_it_ends_is_believed_to_run(tmp_path: Path) -> None:
    """Its lock may not be seen from here."""
    saved(tmp_path, "7")
    note = tmp_path / "7" / "owner.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"host": "svc9", "released": False}))
    [entry] = catalogue.entries(tmp_path)
    with pytest.raises(UsageError, match=pattern("elastic.shelf.may_run", host="svc9")):
        catalogue.remove(tmp_path, entry)
    catalogue.remove(tmp_path, entry, force=True)
    assert os.listdir(tmp_path) == []


def test_what_a_removal_that_was_broken_off_has_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / ".removing-00" / "script").mkdir(parents=True)
    catalogue.sweep(tmp_path, time.time())
    assert os.listdir(tmp_path) == []


def test_a_torn_note_hides_no_checkpoint_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    saved(tmp_path, "7")
    (tmp_path / "7" / "owner.json").write_text('{"epoch": "many"}')
    (tmp_path / "8").symlink_to("7")
    seven, eight = catalogue.entries(tmp_path)
    assert seven.newest is not None
    assert (seven.newest.step, seven.owner.title) == (5, "")
    assert eight.state == "unreadable"
    with pytest.raises((StoreError, UnsafeFolderError)):
        catalogue.remove(tmp_path, eight)


def test_nothing_there_is_not_concluded_from_a_folder_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catalogue.entries(tmp_path / "not yet") == []

    def fail(*_: object) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(StoreError, match="cannot read"):
        catalogue.entries(tmp_path)


def test_looking_at_a_lock_makes_none(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    with Place(tmp_path / "7").opened() as folder:
        assert not catalogue.is_running(folder)
        assert os.listdir(folder) == []
        held = writer_lock.lock(folder)
        assert catalogue.is_running(folder)
    assert held is not None
    os.close(held)
