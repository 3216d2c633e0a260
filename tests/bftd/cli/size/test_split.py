"""`bft size split` as a user meets it: a model of his own, and what he can get wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sizing.cells.comm import table as comm
from sizing.cells.comm.protocol import Link
from sizing.profiles import comm_tables
from tests.support.messages import excerpt, says, wording
from tests.support.terminal import Run, Terminal

pytestmark = pytest.mark.slow

MODEL = """
import torch

def make_model(batch_size):
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    return model, (torch.randn(batch_size, 32),)
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft size split` beside a model, with a home of its own."""
    (tmp_path / "bftd.toml").write_text("")
    (tmp_path / "train.py").write_text(MODEL)
    monkeypatch.setenv("BFTD_CONFIG", str(tmp_path / "bftd.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(monkeypatch, capsys, "size", "split")
    terminal.err_lines_most = 2  # that it goes on, and what is wrong
    return terminal


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], excerpt("cli.size_split.model_missing")),
        (["train.py:make_model"], excerpt("cli.size_split.gpus_missing")),
        (["train.py:make_model", "--gpus", "6", "--global-batch", "8"], "take 4 or 8"),
        (["train.py:make_model", "--gpus", "4", "--global-batch", "0"], "--global-batch 0"),
        (
            ["train.py:make_model", "--gpus", "4", "--global-batch", "8", "--type", "abacus"],
            wording("cli.size_split.type_unknown", named="abacus"),
        ),
        (["train.py:make_model", "--gpus", "4", "--global-batch", "8", "--type", "h100-sxm-80gb"], "--per-node 8"),
        (["train.py:make_model", "--gpus", "4", "--global-batch", "8", "--timeout", "0"], "--timeout 0"),
        (
            ["none.py:make_model", "--gpus", "4", "--global-batch", "8"],
            wording("sizing.launch.no_file", path="none.py"),
        ),
        (["a.py:f", "--config", "gpt:h=8", "--gpus", "4", "--global-batch", "8"], "not both"),
    ],
)
def test_a_mistake_ends_in_one_line(run: Run, words: list[str], why: str) -> None:
    code, said, error = run(*words)
    assert code != 0
    assert why in error
    assert said == ""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("exporting")
def test_a_users_own_model_is_tuned_by_profiles_that_are_kept(run: Run, tmp_path: Path) -> None:
    words = ["train.py:make_model", "--gpus", "2", "--global-batch", "8", "--rounds", "3", "--json"]
    words += ["--python", sys.executable]
    code, _, error = run(*words)
    assert code != 0
    assert says(error, "sizing.cells_comm.bench_command", per_node=2)  # no table yet: said, not guessed
    link = Link("cpu", 2, 1)
    table = comm.table("all_reduce", link, {1024: [1e-4], 2**26: [1e-2]}, "made up", "2026-01-01")
    comm_tables.save(tmp_path / "home" / "bft" / "comm.json", [table])
    code, said, _ = run(*words)
    assert code == 0
    found = json.loads(said)
    (stage,) = found["stages"]
    assert (stage["dp"], stage["tp"], stage["candidates"]) == (2, 1, 2)
    assert "dp 1 x tp 2: " + wording("sizing.cells_profile.no_tensor_parallelism") in found["dropped"][0]
    assert found["step_low_s"] <= found["step_s"] <= found["step_high_s"]
    assert (tmp_path / "cache" / "bft" / "profiles.sqlite").exists()
