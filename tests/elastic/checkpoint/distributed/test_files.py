"""The files of a checkpoint version on their way to the disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.torch]


@pytest.mark.parametrize("way", ["written", "copied from a stage"])
def test_while_a_file_is_flushed_a_sign_of_life_is_told_for_no_longer_than_a_checkpoint_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    from elastic.checkpoint.distributed import files

    monkeypatch.setattr(files, "SAVING_S", 0.01)
    monkeypatch.setattr(files, "LAST_CHECKPOINT_S", 0.5)

    def until_all_is_told(_: int) -> None:
        for thread in threading.enumerate():
            if thread.name == "bft-flush":
                thread.join(STILL_S)
                assert not thread.is_alive()

    monkeypatch.setattr(os, "fsync", until_all_is_told)
    told: list[tuple[int, bool]] = []
    pace = files.SaveProgress(lambda size_bytes, flushing: told.append((size_bytes, flushing)))
    if way == "written":
        with files.SealingFileSystem(pace).create_stream(tmp_path / "shard", "wb") as stream:
            stream.write(b"x" * 100)
    else:
        (tmp_path / "staged").write_bytes(b"x" * 100)
        files.copy(tmp_path / "staged", tmp_path / "shard", pace)
    flushing = [size_bytes for size_bytes, flushing in told if flushing]
    assert set(flushing) == {100}
    assert 2 <= len(flushing) <= 50
    assert (tmp_path / "shard").read_bytes() == b"x" * 100


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_each_file_is_verified_by_one_worker_and_a_ranks_own_by_itself(size: int) -> None:
    from elastic.checkpoint.distributed.files import Sealed, share

    names = [".metadata", *(f"__{rank}_{number}.distcp" for rank in range(4) for number in range(2))]
    listed = [Sealed(name, 1, "") for name in names]
    shares = [share(listed, rank, size) for rank in range(size)]
    assert sorted(file.name for each in shares for file in each) == sorted(names)
    for rank in range(min(size, 4)):
        assert {f"__{rank}_0.distcp", f"__{rank}_1.distcp"} <= {file.name for file in shares[rank]}
