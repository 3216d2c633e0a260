"""How fast data is read, on the file systems that are here: bounded, and with the page cache as it was."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from sizing.base.errors import SizingError, UsageError
from sizing.cpu import bandwidth, dataset
from tests.support.messages import fragment, pattern

PIECE = bandwidth.PIECE_BYTES


def written(path: Path, size: int) -> tuple[str, int]:
    """A file on the disk of which the page cache has nothing, where the file system has a disk."""
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return str(path), size


def in_cache(path: str) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        return bandwidth._in_cache(handle, 0, os.fstat(handle).st_size)
    finally:
        os.close(handle)


@pytest.fixture
def no_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses to be read around the page cache, as some do."""
    real = os.open

    def opened(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(bandwidth.os, "open", opened)


def test_all_of_a_few_files_are_read_once_each_and_no_more(tmp_path: Path) -> None:
    files = [written(tmp_path / str(at), size) for at, size in enumerate((10, PIECE, 3 * PIECE + 7))]
    told = bandwidth.disk(files)
    assert told.read_bytes == 4 * PIECE + 17
    assert told.took_s > 0
    assert told.bytes_per_s == pytest.approx(told.read_bytes / told.took_s)


def test_no_more_is_read_than_the_bound_and_what_was_on_its_way(tmp_path: Path) -> None:
    files = [written(tmp_path / "large", 16 * PIECE)]
    assert 2 * PIECE <= bandwidth.disk(files, most_bytes=2 * PIECE).read_bytes <= 6 * PIECE


def test_it_ends_in_time_however_much_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def slow(*arguments: object) -> int:
        time.sleep(0.05)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bandwidth.os, "preadv", slow)
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)
    told = bandwidth.disk([(str(tmp_path / "huge"), 2**40)], limit_s=0.1)
    assert told.took_s >= 0.1
    assert told.read_bytes < 100 * PIECE  # of a million


def test_what_the_page_cache_has_stays_and_what_it_has_not_does_not_come(tmp_path: Path) -> None:
    cold, warm = written(tmp_path / "cold", PIECE), written(tmp_path / "warm", PIECE)
    if in_cache(cold[0]):
        pytest.skip("the files here are in memory")
    Path(warm[0]).read_bytes()
    told = bandwidth.disk([cold, warm])
    assert (told.read_bytes, told.how) == (2 * PIECE, "direct")
    assert (in_cache(cold[0]), in_cache(warm[0])) == (False, True)


@pytest.mark.usefixtures("no_direct")
def test_without_direct_reads_only_what_the_cache_has_not_is_read_and_dropped_again(tmp_path: Path) -> None:
    cold, warm = written(tmp_path / "cold", PIECE + 5), written(tmp_path / "warm", PIECE)
    if in_cache(cold[0]):
        pytest.skip("the files here are in memory")
    Path(warm[0]).read_bytes()
    told = bandwidth.disk([cold, warm])
    assert (told.read_bytes, told.how) == (PIECE + 5, "dropped")
    assert (in_cache(cold[0]), in_cache(warm[0])) == (False, True)


@pytest.mark.usefixtures("no_direct")
def test_without_direct_reads_nothing_is_read_ahead_into_the_cache(tmp_path: Path) -> None:
    path, size = written(tmp_path / "cold", 32 * PIECE)
    if in_cache(path):
        pytest.skip("the files here are in memory")
    assert bandwidth.disk([(path, size)], most_bytes=PIECE).read_bytes <= 5 * PIECE
    assert not in_cache(path)


@pytest.mark.usefixtures("no_direct")
def test_without_direct_reads_and_with_all_of_it_cached_the_cache_is_measured_and_it_is_said(tmp_path: Path) -> None:
    path, size = written(tmp_path / "small", 100)
    Path(path).read_bytes()
    told = bandwidth.disk([(path, size)])
    assert (told.read_bytes, told.how) == (100, "cached")
    assert in_cache(path)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no tmpfs")
def test_files_in_memory_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(f"/dev/shm/bftd-bandwidth-{os.getpid()}")
    try:
        path.write_bytes(bytes(3 * PIECE))
        assert bandwidth.disk([(str(path), 3 * PIECE)]).read_bytes == 3 * PIECE
    finally:
        path.unlink()


def test_files_that_cannot_be_read_are_passed_over_and_told_where_there_is_no_other(tmp_path: Path) -> None:
    gone = (str(tmp_path / "gone"), 10)
    assert bandwidth.disk([gone, written(tmp_path / "there", 10)]).read_bytes == 10
    with pytest.raises(
        SizingError,
        match=pattern("sizing.cpu_bandwidth.no_file_read", error=fragment("gone: No such file or directory")),
    ):
        bandwidth.disk([gone])


def test_a_file_that_became_a_pipe_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SizingError, match=pattern("sizing.cpu_bandwidth.no_file_read")):
        bandwidth.disk([(str(tmp_path / "pipe"), 10)])


def test_a_disk_that_does_not_answer_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, answered = written(tmp_path / "file", 10), threading.Event()

    def hung(*_: object) -> int:
        answered.wait(60)
        return 0

    monkeypatch.setattr(bandwidth.os, "preadv", hung)
    monkeypatch.setattr(bandwidth, "_GRACE_S", 0.1)
    with pytest.raises(SizingError, match="did not answer"):
        bandwidth.disk([file], limit_s=0.1)
    answered.set()


def test_memory_is_copied_faster_than_a_gigabit_link_and_bounded() -> None:
    told = bandwidth.memory(limit_s=0.05, size_bytes=2**22)
    assert told.bytes_per_s > 1e8
    assert told.read_bytes >= 3 * 2**22


def test_files_are_counted_once_each_through_links_and_only_those_with_something_in_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "inner").mkdir(parents=True)
    (data / "a").write_bytes(bytes(10))
    (data / "inner" / "b").write_bytes(bytes(5))
    (data / "empty").touch()
    os.link(data / "a", data / "again")
    (data / "inner" / "round").symlink_to(data)
    (data / "nowhere").symlink_to(tmp_path / "nowhere")
    os.mkfifo(data / "pipe")
    (tmp_path / "other").write_bytes(bytes(100))
    (data / "link").symlink_to(tmp_path / "other")
    found = dataset.find([data, data / "a"])
    assert (found.count, found.size_bytes, found.whole) == (3, 115, True)
    assert sorted(size for _, size in found.some) == [5, 10, 100]


def test_of_many_files_some_are_kept_and_the_count_is_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_KEPT", 5)
    for at in range(50):
        (tmp_path / str(at)).write_bytes(b"x")
    found = dataset.find([tmp_path])
    assert (found.count, found.size_bytes, len(found.some)) == (50, 50, 5)


def test_counting_ends_in_time_and_says_that_there_are_more(tmp_path: Path) -> None:
    for at in range(50):
        (tmp_path / str(at)).write_bytes(b"x")
    found = dataset.find([tmp_path], limit_s=0.0)
    assert not found.whole
    assert found.count < 50


def test_no_data_is_one_line_that_says_what_to_name(tmp_path: Path) -> None:
    for paths in ([tmp_path], [tmp_path / "no"], []):
        with pytest.raises(UsageError, match="the files"):
            dataset.find(paths)


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a").write_bytes(b"x")
    real = os.scandir

    def scanned(path: str) -> object:
        if path.endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr(dataset.os, "scandir", scanned)
    assert dataset.find([tmp_path]).unread == ((str(tmp_path / "closed"), "Permission denied"),)
    with pytest.raises(UsageError, match="closed: Permission denied"):
        dataset.find([tmp_path / "closed"])
