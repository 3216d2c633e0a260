"""The cache of points: what it knows a command by, several at once, and never a reason to fail."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import stat
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sizing.base.estimate import Estimate
from sizing.cpu.runs.affinity import ProfilingHost
from sizing.cpu.runs.measurement import ObservationLimits, PointResult
from sizing.cpu.store import Points, age_s, key_of

ROOT = Path(__file__).parents[3]
HOST = ProfilingHost("n1", 8, "EPYC", ("A100",))
LIMITS = ObservationLimits()
POINT = PointResult(
    4, Estimate(10.0, 9.0, 11.0, "measured"), "samples/s", (9.0, 10.0, 11.0), 50, 5.0, 15.0, 5.0, "affinity",
    time.time(), 10**9, 1e6, 3.5, 0.2, ("noted",),
)  # fmt: skip


OTHER_FORM = json.dumps({**asdict(POINT), "took_s": ["long"]})
ENDLESS = json.dumps({**asdict(POINT), "blocks": [math.inf]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "cpu.sqlite"


def test_points_are_found_again_by_cpus_for_the_same_key_alone(path: Path) -> None:
    store = Points("a", "train", path)
    assert store.known() == {}
    store.put(POINT)
    store.put(replace(POINT, cpus=2))
    store.put(replace(POINT, steps=99))
    assert Points("a", "train", path).known() == {2: replace(POINT, cpus=2), 4: replace(POINT, steps=99)}
    assert Points("b", "train", path).known() == {}
    assert store.said == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_command_is_known_by(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    (tmp_path / "sizes.yaml").write_text("1")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "go.py").write_text("1")
    command = ("python", "train.py", "--config=sizes.yaml", "-m", "pkg.go")

    def key(
        command: tuple[str, ...] = command,
        regex: str | None = None,
        gpus: int = 1,
        host: ProfilingHost = HOST,
        environ: dict[str, str] | None = None,
        folder: Path = tmp_path,
        limits: ObservationLimits = LIMITS,
    ) -> str:
        return key_of(command, regex, gpus, host, environ or {}, folder, limits)

    first = key()
    assert key(environ={"HOME": "/elsewhere"}) == first
    assert key(host=replace(HOST, name="n2", cpus=4)) == first
    assert key(limits=replace(LIMITS, timeout_s=300)) == first
    others = [
        key(command=(*command, "--fast")),
        key(regex="(?P<step>.)"),
        key(gpus=2),
        key(host=replace(HOST, cpu_model="Xeon")),
        key(host=replace(HOST, gpus=("H100",))),
        key(environ={"OMP_NUM_THREADS": "2"}),
        key(folder=tmp_path / "pkg"),
        key(limits=replace(LIMITS, warmup_s=60)),
        key(limits=replace(LIMITS, least_s=60)),
    ]
    for name in ("train.py", "sizes.yaml", "pkg/go.py"):
        (tmp_path / name).write_text("2")
        others.append(key())
    assert len({first, *others}) == len(others) + 1


def test_regression_a_script_that_a_shell_is_given_in_one_word_was_no_part_of_the_key(tmp_path: Path) -> None:
    keys = set()
    for text in ("1", "2"):
        (tmp_path / "train.py").write_text(text)
        keys.add(key_of(("bash", "-c", "python train.py --epochs 3"), None, 0, HOST, {}, tmp_path))
    assert len(keys) == 2


@pytest.mark.parametrize("word", ["", "=", "a" * 5000, "a\0b", "..", "/", ".", "-"])
def test_any_word_is_a_part_of_a_key(tmp_path: Path, word: str) -> None:
    assert key_of((word,), None, 0, HOST, {}, tmp_path)


def test_a_damaged_file_is_set_aside_and_told_once(path: Path) -> None:
    Points("a", "train", path).put(POINT)
    path.write_bytes(b"no database at all, and long enough to be looked at" * 50)
    store = Points("a", "train", path)
    assert store.known() == {}
    store.put(POINT)
    assert store.known() == {4: POINT}
    assert len(store.said) == 1
    assert "cpu.sqlite.damaged-0" in store.said[0]


@pytest.mark.parametrize(
    "body", ["7", "{}", '{"cpus": 4}', "not json", '{"rate": 1, "cpus": "4"}', OTHER_FORM, ENDLESS]
)
def test_a_point_that_cannot_be_read_is_as_if_it_were_not_there(path: Path, body: str) -> None:
    Points("a", "train", path).put(POINT)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE points SET body = ?", (body,))
    db.close()
    assert Points("a", "train", path).known() == {}


def test_without_a_cache_it_goes_on_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Points("a", "train", tmp_path / "file" / "cpu.sqlite")
    assert store.known() == {}
    store.put(POINT)
    store.put(POINT)
    (said,) = store.said
    assert "nothing is kept" in said
    assert "$XDG_CACHE_HOME" in said


def test_a_full_disk_is_told_once(path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    store = Points("a", "train", path)
    store.known()
    store.put(POINT)
    store.put(POINT)
    assert len(store.said) == 1


def test_several_write_at_once_and_nothing_is_lost(path: Path) -> None:
    code = (
        "import sys; from tests.sizing.cpu.test_point_store import *; "
        "[Points('a', 'train', Path(sys.argv[1])).put(replace(POINT, cpus=int(sys.argv[2]) + at)) for at in range(10)]"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), str(base)], cwd=ROOT) for base in (100, 200, 300)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(Points("a", "train", path).known()) == 30


def test_an_age_is_never_less_than_nothing() -> None:
    assert age_s(replace(POINT, made_s=time.time() + 999)) == 0
    assert age_s(replace(POINT, made_s=time.time() - 100)) == pytest.approx(100, abs=5)
