"""Shared memory of ended workers goes, and nobody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.node import shared_memory
from elastic.node.shared_memory import RECORD, Segments, remove_noted

pytestmark = pytest.mark.slow

HOLDER = """
import mmap, os, sys
how, path = sys.argv[1:]
with open(path, "a+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 0) if how == "mapped" else os.dup(file.fileno()) if how == "open" else None
print("up", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that makes a segment, or takes one that is there, and has it in one of several ways."""

    def __init__(self, path: Path, how: str) -> None:
        argv = [sys.executable, "-c", HOLDER, how, str(path)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"
        self.pid = self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Holder]]:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(shared_memory, "SHM", str(folder))
    started: list[Holder] = []

    def start(name: str, how: str = "mapped") -> Holder:
        started.append(Holder(folder / name, how))
        return started[-1]

    yield start
    for holder in started:
        holder.end()


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_the_shared_memory_of_a_worker_that_was_killed_is_gone(
    tmp_path: Path, hold: Callable[..., Holder], how: str
) -> None:
    known = Segments(str(tmp_path))
    worker, other = hold("a", how), hold("b", how)
    known.sample([worker.pid, other.pid])
    worker.end()
    known.ended([other.pid])
    assert os.listdir(shared_memory.SHM) == ["b"]


def test_what_was_there_before_a_pilot_is_never_touched(tmp_path: Path, hold: Callable[..., Holder]) -> None:
    Path(shared_memory.SHM, "a").touch()
    known = Segments(str(tmp_path))
    worker = hold("a")
    known.sample([worker.pid])
    worker.end()
    known.ended([])
    assert os.listdir(shared_memory.SHM) == ["a"]


def test_what_another_job_of_the_user_made_is_not_touched(tmp_path: Path, hold: Callable[..., Holder]) -> None:
    """A second pilot on a shared node; also where a worker takes it later, and its maker has ended."""
    known = Segments(str(tmp_path))
    foreign, worker = hold("a"), hold("b")
    known.sample([worker.pid])
    later = hold("a")
    known.sample([worker.pid, later.pid])
    for holder in (foreign, worker, later):
        holder.end()
    known.ended([])
    assert os.listdir(shared_memory.SHM) == ["a"]


def test_what_another_process_has_as_well_stays_until_that_has_ended(
    tmp_path: Path, hold: Callable[..., Holder]
) -> None:
    known = Segments(str(tmp_path))
    worker = hold("a")
    known.sample([worker.pid])
    other = hold("a", "open")
    worker.end()
    known.ended([])
    assert os.listdir(shared_memory.SHM) == ["a"]
    other.end()
    known.ended([])
    assert os.listdir(shared_memory.SHM) == []


def test_a_name_that_was_taken_anew_is_not_removed(tmp_path: Path, hold: Callable[..., Holder]) -> None:
    known = Segments(str(tmp_path))
    worker = hold("a")
    known.sample([worker.pid])
    again = Path(shared_memory.SHM, "again")
    again.write_text("another's")
    again.replace(Path(shared_memory.SHM, "a"))
    worker.end()
    known.ended([])
    assert Path(shared_memory.SHM, "a").read_text() == "another's"


def test_the_next_agent_frees_what_an_agent_that_was_killed_could_not(
    tmp_path: Path, hold: Callable[..., Holder]
) -> None:
    known = Segments(str(tmp_path))
    worker = hold("a")
    known.sample([worker.pid])
    remove_noted(str(tmp_path))
    assert os.listdir(shared_memory.SHM) == ["a"], "a living process has it"
    # as the leaving agent, whose SIGKILL is on its way to the worker
    remove_noted(str(tmp_path), but=[worker.pid])
    assert os.listdir(shared_memory.SHM) == []


@pytest.mark.parametrize("record", ["", "[[1]]", "{}", '[["a", "b", "c"]]', None])
def test_a_note_that_a_script_spoilt_removes_nothing(tmp_path: Path, hold: Callable[..., Holder], record: str) -> None:
    hold("a").end()
    if record is not None:
        (tmp_path / RECORD).write_text(record)
    remove_noted(str(tmp_path))
    assert os.listdir(shared_memory.SHM) == ["a"]


def test_a_note_of_a_file_elsewhere_removes_nothing(tmp_path: Path, hold: Callable[..., Holder]) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    seen = precious.stat()
    for path in (precious, Path(shared_memory.SHM, "..", "precious")):
        (tmp_path / RECORD).write_text(json.dumps([[seen.st_dev, seen.st_ino, str(path)]]))
        remove_noted(str(tmp_path))
        assert precious.exists()


def test_an_agent_that_has_no_time_to_see_who_has_a_segment_leaves_it(
    tmp_path: Path, hold: Callable[..., Holder]
) -> None:
    known = Segments(str(tmp_path))
    worker = hold("a")
    known.sample([worker.pid])
    worker.end()
    remove_noted(str(tmp_path), deadline_s=0.0)
    assert os.listdir(shared_memory.SHM) == ["a"]
