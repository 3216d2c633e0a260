"""What jobs used that have run: kept a line each, and read back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sizing.base.errors import SizingError, UsageError
from sizing.files import past_runs
from tests.sizing.plans_of import RAN
from tests.support.messages import says


def test_a_run_is_read_back_as_it_was_kept_and_others_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "deeper" / "ran.jsonl"
    assert past_runs.read(file, RAN.step) == ([], "")
    runs = [RAN, replace(RAN, job="home/43", step_s=0.25, peak_bytes=5, in_use_bytes=7, host_bytes=9)]
    other = replace(RAN, step="other.py:make_step", job="home/44")
    for each in (*runs, other):
        past_runs.add(file, each)
    assert past_runs.read(file, RAN.step) == (runs, "")
    assert past_runs.read(file) == ([*runs, other], "")
    mended = replace(RAN, batch=32, work="v")
    past_runs.add(file, mended)
    assert past_runs.read(file, RAN.step) == ([mended, runs[1]], ""), (
        "of a job that was learnt twice the later line counts"
    )
    past_runs.add(file, replace(RAN, step=other.step))
    assert past_runs.read(file, RAN.step) == ([runs[1]], "")


def test_lines_that_are_no_runs_are_told_and_keep_no_other_from_being_read(tmp_path: Path) -> None:
    file = tmp_path / "ran.jsonl"
    past_runs.add(file, RAN)
    good = file.read_text().strip()
    broken = (good[:-20], good.replace('"gpus": 2', '"gpus": 3'), good.replace('"batch"', '"patch"'), f"[{good}]")
    file.write_bytes(b"\n".join([*map(str.encode, broken), b"\xff" + good.encode(), good.encode()]) + b"\n")
    found, said = past_runs.read(file, RAN.step)
    assert found == [RAN]
    assert says(said, "sizing.ran.some_damaged", path=str(file), damaged="5 lines")
    file.write_text(good[:-20])
    past_runs.add(file, RAN)
    found, said = past_runs.read(file, RAN.step)
    assert found == [RAN], "what a full disk has cut takes no other with it"
    assert says(said, "sizing.ran.some_damaged", damaged="1 line")


def test_a_file_that_cannot_be_read_is_told_and_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        found, said = past_runs.read(path)
        assert found == []
        assert says(said, "sizing.ran.unreadable", path=str(path))
    file = tmp_path / "ran.jsonl"
    past_runs.add(file, RAN)
    monkeypatch.setattr(past_runs, "MOST_BYTES", 10)
    assert says(past_runs.read(file)[1], "sizing.ran.too_large", path=str(file))
    with pytest.raises(SizingError) as unwritten:
        past_runs.add(tmp_path, RAN)
    assert says(str(unwritten.value), "sizing.ran.unwritable", path=str(tmp_path))
    with pytest.raises(UsageError):
        past_runs.add(file, replace(RAN, peak_bytes=2**64))
