"""The progress of a script outside bftd, told to whoever measures it: never in the script's way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elastic.worker import progress_pipe


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    path = tmp_path / "progress"
    os.mkfifo(path)
    monkeypatch.setenv(progress_pipe.VARIABLE, str(path))
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def test_rank_0_tells_step_samples_and_when(pipe: int) -> None:
    writer = progress_pipe.ProgressPipe()
    before_s = time.monotonic()
    writer.step(3, 96, 0)
    step, samples, at_s = os.read(pipe, 4096).split()
    assert (int(step), int(samples)) == (3, 96)
    assert before_s - 0.001 <= float(at_s) <= time.monotonic() + 0.001


def test_other_ranks_and_steps_that_follow_at_once_tell_nothing(pipe: int) -> None:
    writer = progress_pipe.ProgressPipe()
    writer.step(1, 1, 1)
    writer.step(1, 1, 0)
    writer.step(2, 2, 0)
    assert os.read(pipe, 4096).count(b"\n") == 1


def test_a_pipe_that_is_full_or_has_no_reader_holds_nothing_up(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = progress_pipe.ProgressPipe()
    monkeypatch.setattr(progress_pipe, "_APART_S", 0.0)
    for step in range(20_000):  # more than a pipe holds
        writer.step(step, step, 0)
    os.close(pipe)
    for step in range(10):
        writer.step(step, step, 0)


def test_a_name_that_is_no_pipe_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine"
    path.write_text("precious")
    for name in (path, tmp_path / "nothing", tmp_path):
        monkeypatch.setenv(progress_pipe.VARIABLE, str(name))
        writer = progress_pipe.ProgressPipe()
        writer.step(1, 1, 0)
        writer.step(2, 2, 0)
    assert path.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()
