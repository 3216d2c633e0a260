"""An agent's folder for temporary files: its own, whoever sweeps at the same moment, and gone after its end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic.base.timing import SCRATCH_S
from elastic.node import scratch
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

LEFT = f"bft-agent-{os.uname().nodename}-left"


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    """A sweeper is a fork of an agent, which does not wait for it; here that is this process, which lives on."""
    yield
    own = psutil.Process()
    for child in own.children():
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE or child.cmdline() == own.cmdline():
                child.wait(20)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def until_gone(path: Path) -> None:
    until(f"{path} is removed", lambda: not path.exists())


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
    mine.leave()


def test_the_folder_of_a_living_agent_stays_and_that_of_a_killed_one_is_swept(temporary: Path) -> None:
    alive = scratch.Scratch()
    left = temporary / LEFT
    left.mkdir()
    other = scratch.Scratch()
    other.sweep()
    until_gone(left)
    assert sorted(temporary.iterdir()) == sorted([Path(alive.path), Path(other.path)])
    alive.leave()
    other.leave()
    assert list(temporary.iterdir()) == []


def test_regression_the_sweeper_of_an_agent_that_is_gone_kept_its_folder_from_the_next_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sweeping = os.pipe()

    def hang() -> None:  # as a process of low priority does on a busy machine, also once it has been killed
        os.write(sweeping, b".")
        time.sleep(60)

    mine = scratch.Scratch()
    others = set(psutil.Process().children())  # what earlier tests in this process have not waited for
    with monkeypatch.context() as patched:
        patched.setattr(scratch, "sweep", hang)
        mine.sweep()
    assert os.read(asked, 1)
    (sweeper,) = set(psutil.Process().children()) - others
    try:
        os.close(mine._fd)  # as the agent's end does
        scratch.sweep()
        assert list(temporary.iterdir()) == []
    finally:
        sweeper.kill()
        sweeper.wait(20)
        os.close(asked)
        os.close(sweeping)


def test_however_many_files_a_script_left_they_delay_no_agent_and_are_the_next_ones(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = scratch.Scratch()
    for number in range(30):
        folder = Path(mine.path, f"data{number}")
        folder.mkdir()
        for file in range(20):
            (folder / str(file)).touch()
    clock = itertools.count()
    with monkeypatch.context() as patched:
        # each look at the clock takes a millisecond
        patched.setattr(scratch.time, "monotonic", lambda: next(clock) / 1000)
        mine.leave()
    left = sum(1 for _ in Path(mine.path).glob("*/*"))
    assert 600 - SCRATCH_S * 1000 <= left < 600
    os.close(mine._fd)  # as the agent's end does
    scratch.sweep()
    assert list(temporary.iterdir()) == []


def test_one_large_file_which_nothing_can_interrupt_is_the_next_agents(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "SCRATCH_S", STILL_S)  # however busy the machine is
    mine = scratch.Scratch()
    large = Path(mine.path, "large")
    with large.open("wb") as file:
        file.truncate(1 << 30)
    Path(mine.path, "small").touch()
    mine.leave()
    assert [path.name for path in Path(mine.path).iterdir()] == ["large"]
    os.close(mine._fd)
    scratch.sweep()
    assert list(temporary.iterdir()) == []


def test_a_file_system_that_hangs_does_not_hold_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = scratch.Scratch()
    answers, has_ended = threading.Event(), threading.Event()
    monkeypatch.setattr(scratch._Removal, "run", lambda _: (answers.wait(60), has_ended.set()))
    mine.leave()
    assert not has_ended.is_set()
    answers.set()


def test_folders_that_a_script_closed_to_itself_go_too(temporary: Path) -> None:
    as_user = pytest.importorskip("pwd").getpwnam("nobody").pw_uid if os.getuid() == 0 else os.getuid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if as_user != os.getuid():
                os.chown(temporary, as_user, -1)
                for above in temporary.parents:
                    os.stat(above).st_mode & 1 or os.chmod(above, os.stat(above).st_mode | 0o11)
                os.setuid(as_user)
            left = temporary / LEFT
            inner = left / "closed" / "shut"
            inner.mkdir(parents=True)
            (inner / "file").touch()
            inner.chmod(0o500)
            inner.parent.chmod(0)
            scratch.sweep()
            code = 2 if left.exists() else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_link_out_of_the_folder_is_removed_and_not_followed(temporary: Path) -> None:
    outside = temporary / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    left = temporary / LEFT
    left.mkdir()
    (left / "link").symlink_to(outside)
    (temporary / f"{LEFT}-link").symlink_to(outside)
    scratch.sweep()
    assert not left.exists()
    assert (outside / "precious").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("kind", ["another file system", "the same file system", "a name with a blank"])
def test_what_is_mounted_in_the_folder_is_not_entered(temporary: Path, kind: str) -> None:
    outside = temporary / "outside"
    outside.mkdir()
    left = temporary / LEFT
    mount = left / ("data set" if kind == "a name with a blank" else "data")
    mount.mkdir(parents=True)
    (left / "other").touch()
    options = ["-t", "tmpfs", "none"] if kind == "another file system" else ["--bind", str(outside)]
    subprocess.run(["mount", *options, str(mount)], check=True)
    try:
        (mount / "precious").touch()
        scratch.sweep()
        assert (mount / "precious").exists()
        assert not (left / "other").exists()
    finally:
        subprocess.run(["umount", str(mount)], check=True)
    scratch.sweep()
    assert not left.exists()


def test_a_folder_of_another_users_is_not_swept(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / LEFT
    left.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    scratch.sweep()
    assert left.exists()


def test_a_folder_of_another_nodes_is_not_swept_though_its_lock_is_not_seen_here(temporary: Path) -> None:
    """On a file system that nodes share and where each knows only its own locks."""
    left = temporary / "bft-agent-elsewhere-left"
    left.mkdir()
    scratch.sweep()
    assert left.exists()


def test_an_agent_starts_where_the_temporary_folder_is_on_a_file_system_without_locks(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    mine = scratch.Scratch()
    scratch.sweep()
    assert Path(mine.path).is_dir()
    mine.leave()
    assert list(temporary.iterdir()) == []
