"""`bft size profile` as a user meets it: what it will run, each result as it comes, and one line for what cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bftd.cli.size.shared import allocation
from sizing.profiles import profile as measuring
from sizing.profiles.store import Store
from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.support.messages import excerpt, says, wording
from tests.support.terminal import Ended
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
SMALL = "gpt:h=32,l=2,a=4,s=8,V=64"
CPU = ("--device", "cpu", "--python", sys.executable, "--rounds", "1")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> SizeTerminal:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return SizeTerminal(tmp_path, monkeypatch, capsys)


def profile(terminal: SizeTerminal, *words: str) -> Ended:
    return terminal("size", "profile", *words)


@pytest.mark.torch
@pytest.mark.usefixtures("exporting")
def test_stages_are_profiled_once_and_then_come_out_of_the_cache(terminal: SizeTerminal) -> None:
    words = ("--config", SMALL, "--global-batch", "8", "--gpus", "2", "--stages", "1,2", *CPU)
    first = profile(terminal, *words)
    assert first.code == 0, first.err
    assert says(first.err, "cli.size_profile_work.to_profile", todo="4 shards", cached="")
    assert "4/4 " + wording("cli.size_profile_work.operators", first=0, last=3, batch=8, tp=2) in first.err
    assert says(first.out, "cli.size_profile.head")
    assert says(first.out, "sizing.slices.shared_embedding")
    again = profile(terminal, *words, "--json")
    assert again.err == wording("cli.size_profile_work.all_cached", known="4 shards") + "\n"
    assert len(again.json["profiles"]) == 4
    assert again.json["profiles"][0]["compute_s"]["origin"] == "measured"
    listed = profile(terminal, "--list")
    assert "adam fp32 1" in listed.out
    assert profile(terminal, "--forget", "gpt").out == "4 profiles forgotten\n"
    assert profile(terminal, "--list", "--json").json == {"format": 1, "profiles": []}


@pytest.mark.torch
@pytest.mark.usefixtures("exporting")
def test_a_configuration_is_profiled_in_its_own_precision_which_choose_looks_for(terminal: SizeTerminal) -> None:
    words = ("--global-batch", "2", "--gpus", "1", "--stages", "1", *CPU)
    ran = profile(terminal, "--config", f"{SMALL},precision=bf16", *words)
    assert ran.code == 0, ran.err
    assert "adam bf16 1" in profile(terminal, "--list").out
    refused = profile(terminal, "--config", f"{SMALL},precision=fp16", *words)
    assert refused.code == 2
    assert says(refused.err, "cli.size_profile.config_precision", precision="fp16")


@pytest.mark.torch
@pytest.mark.usefixtures("exporting")
def test_regression_profiles_of_this_cpu_were_shown_where_a_gpu_was_asked_for(
    terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ("--config", SMALL, "--global-batch", "8", "--gpus", "1", *CPU)
    assert profile(terminal, *words).code == 0
    ended = profile(terminal, *words, "--device", "cuda")
    assert ended.code == 2
    assert says(ended.err, "sizing.profiles.no_gpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--global-batch B"),
        (("--global-batch", "8"), "--gpus N"),
        (("--global-batch", "8", "--gpus", "3", "--config", SMALL), "2 or 4"),
        (("--global-batch", "0", "--gpus", "2", "--config", SMALL), "at least 1"),
        (("--global-batch", "8", "--gpus", "2"), excerpt("cli.size_model.step_missing")),
        (("--global-batch", "8", "--gpus", "2", "--config", "wresnet:x=1"), "wresnet knows k="),
        (("--global-batch", "8", "--gpus", "2", "--config", SMALL, "train.py:make_step"), "not both"),
        (("--global-batch", "8", "--gpus", "2", "gone.py:make_model"), "no such file"),
        (
            ("--global-batch", "8", "--gpus", "2", "--config", SMALL, "--partition", "p"),
            wording("cli.size_allocation.no_srun"),
        ),
        (("--global-batch", "8", "--gpus", "2", "--config", SMALL, "--timeout", "0"), "more than 0"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(terminal: SizeTerminal, words: tuple[str, ...], said: str) -> None:
    ended = profile(terminal, *words)
    assert ended.code in (1, 2)
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_regression_a_cache_that_cannot_be_written_was_found_out_after_the_first_shard(
    terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    (terminal.folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(terminal.folder / "file"))
    monkeypatch.setattr(measuring, "profiled", lambda *_, **__: pytest.fail("something was run"))
    ended = profile(terminal, "--config", SMALL, "--global-batch", "8", "--gpus", "1", *CPU)
    assert ended.code == 1
    assert ended.err.endswith(
        wording("sizing.database.not_written", path="profiles.sqlite", why="Not a directory") + "\n"
    )


def test_the_command_in_an_allocation_is_the_users_own_without_the_partition() -> None:
    own = ["size", "profile", "m.py:f", "-p", "a100", "--gpus", "2"]
    assert allocation.words_of(own) == ["size", "profile", "m.py:f", "--gpus", "2", "--json"]
    for option in ("-pa100", "--partition=a100"):
        assert allocation.words_of(["size", "profile", option, "--json"]) == ["size", "profile", "--json"]


@pytest.mark.torch
@pytest.mark.slow
def test_an_interrupted_command_keeps_what_is_done_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    large = ("--config", SMALL, "--global-batch", "8", "--gpus", "2", *CPU, "--rounds", "1000")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bftd.cli.main", "size", "profile"]
    started = subprocess.Popen([*command, *large], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stderr is not None
    assert "shards to profile" in started.stderr.readline()
    assert started.stderr.readline().startswith("1/")
    started.send_signal(signal.SIGINT)
    said = started.communicate(timeout=STILL_S)[1]
    assert started.returncode == 130, said
    assert "Traceback" not in said
    rows = Store(tmp_path / "bft" / "profiles.sqlite").listed()
    assert [row[3] for row in rows] == [1]
