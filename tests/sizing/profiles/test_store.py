"""The cache of profiles: found again while the model is the same, by several at once, and never a reason to fail."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sizing.base.errors import NoProfile, SizingError
from sizing.base.estimate import Estimate
from sizing.cells.cell import Cell, Stage
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.model import config
from sizing.model.graph import Graph
from sizing.model.wide_resnet import WideResNet
from sizing.profiles.profile import Setting, Unfit
from sizing.profiles.sources import profiles_for
from sizing.profiles.store import Store, by_files, by_sizes
from tests.support.messages import excerpt, fragment, pattern

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SHARD = StageShard(0, 3, 8, 2)
TIME = Estimate(0.5, 0.4, 0.6, "measured")
EXCHANGED = (Exchange("all_reduce", 4096, 4),)
PROFILE = ShardProfile(SHARD, "cpu", TIME, TIME, 10, 40, 120, 77, 300, EXCHANGED, 12, 3.5, "2.13.0")
MODEL = config.parse("gpt:h=64,l=2,a=4,s=16,V=100")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "profiles.sqlite")


def script(folder: Path) -> str:
    """A user's file that imports another beside it."""
    (folder / "net.py").write_text("WIDTH = 64\n")
    (folder / "train.py").write_text("import net\n\ndef make_model(batch_size): ...\n")
    return f"{folder / 'train.py'}:make_model"


def digests(folder: Path, *names: str) -> list[tuple[str, str]]:
    import hashlib

    return [(name, hashlib.sha256((folder / name).read_bytes()).hexdigest()) for name in names]


def test_what_was_written_is_read_again_for_the_same_device_setting_and_torch_alone(store: Store) -> None:
    model, setting = by_sizes(MODEL), Setting()
    assert store.get(model, "cpu", setting, SHARD) is None
    store.put(model, setting, [PROFILE])
    assert store.get(model, "cpu", setting, SHARD) == PROFILE
    assert store.get(model, "cpu", replace(setting, rounds=99), SHARD) == PROFILE
    assert store.get(model, "cpu", setting, SHARD, "2.12.0") is None
    assert store.get(model, "a100-sxm-80gb", setting, SHARD) is None
    for other in (replace(setting, precision="bf16"), replace(setting, optimizer="sgd"), replace(setting, threads=2)):
        assert store.get(model, "cpu", other, SHARD) is None
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_a_shard_that_is_too_large_is_remembered_as_such(store: Store) -> None:
    store.put(by_sizes(MODEL), Setting(), [Unfit(SHARD, "cpu", "out of memory", "2.13.0")])
    assert store.get(by_sizes(MODEL), "cpu", Setting(), SHARD) == Unfit(SHARD, "cpu", "out of memory", "2.13.0")


def test_sizes_are_told_apart_and_what_a_setting_says_is_not() -> None:
    assert by_sizes(MODEL).id == by_sizes(config.with_options(MODEL, "b=4,dp=8,optimizer=sgd,precision=bf16")).id
    assert by_sizes(MODEL).id != by_sizes(config.with_options(MODEL, "l=3")).id
    assert by_sizes(WideResNet()).id != by_sizes(WideResNet(width=9)).id


@pytest.mark.parametrize("changed", ["train.py", "net.py"])
def test_a_change_of_the_users_file_or_of_one_that_it_imports_makes_it_another_model(
    store: Store, tmp_path: Path, changed: str
) -> None:
    step = script(tmp_path)
    assert store.model(step) is None
    known = by_files(step, digests(tmp_path, "train.py", "net.py"))
    store.put(known, Setting(), [PROFILE])
    assert store.model(step) == known
    before = (tmp_path / changed).read_text()
    (tmp_path / changed).write_text(before + "# another\n")
    assert store.model(step) is None
    (tmp_path / changed).write_text(before)
    assert store.model(step) == known
    (tmp_path / changed).unlink()
    if changed == "net.py":
        assert store.model(step) is None


def test_a_damaged_file_is_set_aside_with_a_line_and_a_new_one_begun(store: Store) -> None:
    store.put(by_sizes(MODEL), Setting(), [PROFILE])
    store.path.write_bytes(b"no database at all, and long enough to be looked at" * 50)
    again = Store(store.path)
    assert again.get(by_sizes(MODEL), "cpu", Setting(), SHARD) is None
    assert len(again.said) == 1
    assert "profiles.sqlite.damaged-0" in again.said[0]
    again.put(by_sizes(MODEL), Setting(), [PROFILE])
    assert Store(store.path).get(by_sizes(MODEL), "cpu", Setting(), SHARD) == PROFILE
    assert (store.path.parent / "profiles.sqlite.damaged-0").exists()


def test_a_file_of_another_version_is_set_aside(store: Store) -> None:
    store.put(by_sizes(MODEL), Setting(), [PROFILE])
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    again = Store(store.path)
    again.put(by_sizes(MODEL), Setting(), [PROFILE])
    assert "of version 99" in again.said[0]


def test_a_row_that_cannot_be_read_is_as_if_it_were_not_there(store: Store) -> None:
    store.put(by_sizes(MODEL), Setting(), [PROFILE])
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE profiles SET body = '{\"shard\": 7}'")
    db.close()
    assert store.get(by_sizes(MODEL), "cpu", Setting(), SHARD) is None


def test_regression_damaged_words_of_a_models_files_ended_in_a_traceback(store: Store, tmp_path: Path) -> None:
    source = script(tmp_path)
    model = by_files(source, digests(tmp_path, "train.py"))
    for column, text in (("files", '[["train'), ("files", "7"), ("body", "7")):
        store.put(model, Setting(), [PROFILE])
        assert store.model(source) == model
        with sqlite3.connect(store.path) as db:
            db.execute(f"UPDATE {'models' if column == 'files' else 'profiles'} SET {column} = ?", (text,))
        db.close()
        assert store.model(source) == (None if column == "files" else model)
        assert store.get(model, "cpu", Setting(), SHARD) == (PROFILE if column == "files" else None)


def test_regression_a_file_without_its_tables_was_never_set_aside(store: Store) -> None:
    store.put(by_sizes(MODEL), Setting(), [PROFILE])
    with sqlite3.connect(store.path) as db:
        db.execute("DROP TABLE models")
    db.close()
    assert store.forget() == 0
    assert "tables are missing" in store.said[0]
    store.put(by_sizes(MODEL), Setting(), [PROFILE])
    assert store.get(by_sizes(MODEL), "cpu", Setting(), SHARD) == PROFILE


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SizingError, match="XDG_CACHE_HOME"):
        Store(tmp_path / "file" / "profiles.sqlite").put(by_sizes(MODEL), Setting(), [PROFILE])


_WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.sizing.profiles.test_store import *
for at in range(20):
    shard = StageShard(at, int(sys.argv[2]), 1, 1)
    Store(Path(sys.argv[1])).put(by_sizes(MODEL), Setting(), [replace(PROFILE, shard=shard)])
"""


def test_two_processes_write_at_once_and_lose_nothing(store: Store) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(store.path), str(100 + at)], env=env) for at in (0, 1)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(store.all(by_sizes(MODEL), "cpu", Setting())) == 40


def test_what_is_forgotten_is_gone_and_the_rest_is_listed(store: Store) -> None:
    store.put(by_sizes(MODEL), Setting(), [PROFILE])
    store.put(by_sizes(WideResNet()), Setting(threads=2), [PROFILE])
    assert sorted(row[:4] for row in store.listed()) == [
        ("gpt", "cpu", "adam fp32 1", 1),
        ("wresnet", "cpu", "adam fp32 2", 1),
    ]
    assert store.forget("gpt") == 1
    assert [row[0] for row in store.listed()] == ["wresnet"]
    assert store.forget() == 1
    assert store.listed() == []


def cell(kind: str = "cpu") -> Cell:
    return Cell(kind, (Stage(0, 3, 2, 100, 0, 10),))


def test_an_estimate_gets_its_profiles_or_the_command_that_makes_them(store: Store) -> None:
    graph = Graph("gpt", 8, (), "formula")
    with pytest.raises(
        NoProfile,
        match=pattern(
            "sizing.cells_sources.missing",
            missing=1,
            elsewhere="cpu",
            how=fragment(excerpt("sizing.cells_sources.on_this_cpu")),
        ),
    ):
        profiles_for([cell()], graph, MODEL, store=store)
    store.put(by_sizes(MODEL), Setting(), [PROFILE, Unfit(StageShard(0, 3, 16, 1), "cpu", "too large", "2.13.0")])
    assert profiles_for([cell()], graph, MODEL, store=store) == {SHARD: PROFILE}
    assert profiles_for([cell()], graph, MODEL, wanted=[SHARD, StageShard(0, 3, 16, 1)], store=store) == {
        SHARD: PROFILE
    }
    with pytest.raises(NoProfile, match="lacks 1 profiles"):
        profiles_for([cell()], graph, MODEL, wanted=[SHARD, StageShard(0, 3, 4, 1)], store=store)
    with pytest.raises(NoProfile, match=r"on a100-sxm-80gb \(it was on cpu\)"):
        profiles_for([cell("a100-sxm-80gb")], graph, MODEL, store=store)
    with pytest.raises(NoProfile, match="of one type"):
        profiles_for([cell(), cell("a100-sxm-80gb")], graph, MODEL, store=store)


def test_a_users_model_that_was_never_profiled_as_it_is_now_says_so(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        NoProfile,
        match=pattern("sizing.cells_sources.changed_since", how=fragment(excerpt("sizing.cells_sources.on_this_cpu"))),
    ):
        profiles_for([cell()], Graph("x", 8, (), "export"), script(tmp_path), store=store)
