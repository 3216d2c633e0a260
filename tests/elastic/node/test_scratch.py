"""An agent's folder for temporary files: its own, whoever sweeps at the same moment, and gone after its end."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from elastic.node import scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("moment", ["before it is open", "before it is locked"])
def test_a_folder_that_another_agent_sweeps_at_once_is_made_again(
    monkeypatch: pytest.MonkeyPatch, temporary: Path, moment: str
) -> None:
    swept: list[str] = []
    make, lock = tempfile.mkdtemp, fcntl.flock

    def sweep(path: str) -> None:
        if not swept:
            swept.append(path)
            os.rmdir(path)

    def made_and_swept(prefix: str) -> str:
        path = make(prefix=prefix)
        sweep(path)
        return path

    def swept_and_locked(fd: int, operation: int) -> None:
        sweep(os.readlink(f"/proc/self/fd/{fd}"))
        lock(fd, operation)

    if moment == "before it is open":
        monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    else:
        monkeypatch.setattr(fcntl, "flock", swept_and_locked)
    mine = scratch.Scratch()
    assert [Path(mine.path)] == list(temporary.iterdir())
    assert swept not in ([], [mine.path])
    mine.remove()


def test_the_folder_of_a_living_agent_stays_and_that_of_a_killed_one_is_swept(temporary: Path) -> None:
    alive = scratch.Scratch()
    left = temporary / "bft-agent-left"
    left.mkdir()
    other = scratch.Scratch()
    assert sorted(temporary.iterdir()) == sorted([Path(alive.path), Path(other.path)])
    alive.remove()
    other.remove()
    assert list(temporary.iterdir()) == []
