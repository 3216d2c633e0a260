"""One download a node: its workers share one file, whoever of them dies."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from elastic.base.errors import CheckpointError, WireError
from elastic.worker.node_cache import CheckpointOffer, shared
from tests.support.messages import fragment, pattern
from tests.support.waiting import STILL_S

CONTENT = b"weights" * 1000


def offer(step: int = 5, content: bytes = CONTENT) -> CheckpointOffer:
    return CheckpointOffer(step, step * 10, len(content), hashlib.sha256(content).hexdigest())


def copy(file: BinaryIO) -> None:
    file.write(CONTENT)


def _worker(folder: str, downloads: Any, results: Any, dies: bool) -> None:
    def download(file: BinaryIO) -> None:
        with downloads.get_lock():
            downloads.value += 1
            mine = downloads.value
        file.write(CONTENT[:100])
        if dies and mine == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)
        file.write(CONTENT[100:])

    with shared(folder, offer(), download) as file:
        results.put((os.fstat(file.fileno()).st_ino, file.read()))


@pytest.mark.parametrize("dies", [False, True])
def test_eight_workers_download_a_checkpoint_once_and_when_the_one_that_downloads_is_killed_once_more(
    tmp_path: Path, dies: bool
) -> None:
    context = multiprocessing.get_context("fork")
    downloads, results = context.Value("i", 0), context.Queue()
    workers = [context.Process(target=_worker, args=(str(tmp_path), downloads, results, dies)) for _ in range(8)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=STILL_S) for _ in range(8 - dies)]
    for worker in workers:
        worker.join(STILL_S)
    assert sorted(worker.exitcode or 0 for worker in workers) == [-signal.SIGKILL] * dies + [0] * (8 - dies)
    assert downloads.value == 1 + dies
    assert {content for _, content in got} == {CONTENT}
    assert len({inode for inode, _ in got}) == 1, "one file, and one copy of it in memory"
    assert sorted(os.listdir(tmp_path / "bft-state")) == ["lock", offer().name]


def test_a_newer_checkpoint_takes_the_place_of_an_older_one_which_who_has_it_open_reads_on(tmp_path: Path) -> None:
    old = shared(str(tmp_path), offer(), copy)
    newer = b"newer"
    with shared(str(tmp_path), offer(6, newer), lambda file: _write(file, newer)) as file:
        assert file.read() == newer
    assert sorted(os.listdir(tmp_path / "bft-state")) == ["lock", offer(6, newer).name]
    assert old.read() == CONTENT
    old.close()


def test_nobody_can_write_into_what_is_shared(tmp_path: Path) -> None:
    with shared(str(tmp_path), offer(), copy) as file, pytest.raises(OSError):  # noqa: PT011
        file.write(b"x")
    assert stat.S_IMODE((tmp_path / "bft-state").stat().st_mode) == 0o700


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["no folder", "no space", "no locks", "another user's", "a link", "full at the end"])
def test_where_nothing_can_be_shared_each_worker_has_the_checkpoint_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder, inner = str(tmp_path), tmp_path / "bft-state"
    download = copy
    if what == "no folder":
        folder = str(tmp_path / "away" / "further")
    elif what == "no space":
        monkeypatch.setattr(os, "posix_fallocate", _fail)
    elif what == "no locks":
        monkeypatch.setattr("fcntl.lockf", _fail)
    elif what == "another user's":
        inner.mkdir(mode=0o700)
        inner.chmod(0o777)
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir()
        inner.symlink_to(tmp_path / "elsewhere")
    else:
        tries = iter([_fail, copy])

        def download(file: BinaryIO) -> None:
            next(tries)(file)

    with shared(folder, offer(), download) as file:
        assert file.read() == CONTENT
        assert os.fstat(file.fileno()).st_nlink == 0, "it is in no folder"
    for path in (inner, tmp_path / "elsewhere"):
        assert not path.exists() or set(os.listdir(path)) <= {"lock"}


def test_a_node_without_memory_for_the_state_says_so_and_a_connection_that_breaks_is_another_matter(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        CheckpointError, match=pattern("elastic.sharing.no_memory", strerror=fragment("No space left on device"))
    ):
        shared(str(tmp_path), offer(), _fail)

    def broken(file: BinaryIO) -> None:
        raise WireError("cut short")

    with pytest.raises(WireError):
        shared(str(tmp_path), offer(), broken)
    assert os.listdir(tmp_path / "bft-state") == ["lock"]
