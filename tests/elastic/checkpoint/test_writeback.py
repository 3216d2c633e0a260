"""Large files on their way to the disk: which of them leave the memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from elastic.checkpoint import writeback
from elastic.checkpoint.writeback import Writeback

PIECE = b"x" * (1 << 20)


def in_memory(path: Path) -> float:
    """The share of a file's pages that are in memory (mincore(2))."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as pages:
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        found = (ctypes.c_ubyte * -(-len(pages) // mmap.PAGESIZE))()
        libc = ctypes.CDLL(None)
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        assert libc.mincore(address, len(pages), found) == 0
        return sum(page & 1 for page in found) / len(found)


@pytest.mark.parametrize("keep", [True, False])
def test_what_its_writer_reads_again_stays_in_memory_and_the_rest_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(writeback, "_EVERY_BYTES", 2 << 20)
    path = tmp_path / "state"
    with open(path, "wb", buffering=0) as file:
        writer = Writeback(file.fileno(), keep)
        for _ in range(8):
            file.write(PIECE)
            os.fsync(file.fileno())  # what is on the disk can be dropped
            writer.wrote(len(PIECE))
    kept = in_memory(path)
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(path) == 1.0:
        pytest.skip("this file system lies in memory")
    assert kept == (1.0 if keep else 0.0)


def test_where_the_system_has_no_early_writing_a_file_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writeback, "_EVERY_BYTES", 1 << 20)
    monkeypatch.setattr(writeback, "_sync_file_range", lambda: None)
    with open(tmp_path / "state", "wb", buffering=0) as file:
        writer = Writeback(file.fileno(), keep=True)
        file.write(PIECE)
        writer.wrote(len(PIECE))
    assert (tmp_path / "state").read_bytes() == PIECE


def test_early_writing_begins_where_the_one_before_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(writeback, "_EVERY_BYTES", 2 << 20)
    monkeypatch.setattr(
        writeback, "_sync_file_range", lambda: lambda fd, start, count, flags: ranges.append((start, count))
    )
    with open(tmp_path / "state", "wb") as file:
        writer = Writeback(file.fileno(), keep=True)
        for _ in range(5):
            writer.wrote(1 << 20)
    assert ranges == [(0, 2 << 20), (2 << 20, 2 << 20)]
