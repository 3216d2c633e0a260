"""`bft size curve` as a user types it: a curve for each class of nodes, or one line that says what is missing."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sizing.base.errors import Untraceable
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.cells.shards import ShardProfile, StageShard
from sizing.child import stepping, tracing
from sizing.child.stepping import RealStep
from sizing.model.trace import CATEGORIES, OperatorTotals, StepTrace
from sizing.profiles.profile import Setting, Unfit
from sizing.profiles.store import Store, by_files
from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.sizing.cells.made import profile_of
from tests.support.messages import excerpt, fragment, pattern, says, wording

pytestmark = pytest.mark.slow

SCRIPT = "def make_step(batch_size=16): ...\nif __name__ == '__main__': ...\n"
CLASSES = [
    {"class": "a100x4", "gpus": {"a100": 4}, "features": ["a100-sxm4-80gb"], "cpus": 64},
    {"class": "cpu8-16G", "gpus": {}, "cpus": 8},
    {"class": "odd", "gpus": {"zx81": 1}},
]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    """Where a step takes 1e13 FLOPs a batch of 16 on a GPU, and half a second of one core."""

    def trace(step: str, batch: int, parallel: Parallel, **_: object) -> StepTrace:
        operators = (OperatorTotals("mm", 1, 625_000_000_000 * batch, 10**9),)
        nothing = dict.fromkeys(CATEGORIES, 0)
        return StepTrace(batch, parallel, "cuda", 0, nothing, 10**7, operators, {}, "2.13", 1.0)

    def run(step: str, batch: int, **_: object) -> RealStep:
        return RealStep(batch, batch / 32, 10**7)

    monkeypatch.setattr(tracing, "trace", trace)
    monkeypatch.setattr(stepping, "run", run)
    made = SizeTerminal(tmp_path, monkeypatch, capsys)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "classes.json").write_text(json.dumps(CLASSES))
    return made


def test_each_class_has_a_curve_with_what_it_comes_from_and_one_that_is_unknown_a_note(terminal: SizeTerminal) -> None:
    ended = terminal("size", "curve", "train.py", "--nodes", "1-4", "--classes", "classes.json", "--json")
    gpus, cpus = ended.json["estimates"]
    assert (gpus["class"], gpus["nodes"], gpus["origin"]) == ("a100x4", [1, 2, 4], "assumed")
    assert gpus["basis"] == wording("cli.size_curve.basis_trace", whose="data", name="sheet of a100-sxm-80gb", batch=16)
    bounds = zip(gpus["low"], gpus["samples_per_s"], gpus["high"], strict=True)
    assert all(low <= rate <= high for low, rate, high in bounds)
    assert cpus["samples_per_s"][0] == pytest.approx(32 * 8 * 0.7, rel=1e-3)
    [note] = ended.json["notes"]
    assert re.match("odd: " + pattern("cli.size_curve.gpu_unknown", type=fragment("zx81")), note)
    assert terminal("size", "curve", "train.py", "--nodes", "1-4", "--classes", "classes.json").code == 0


def test_the_batch_and_the_workers_are_those_of_the_job(terminal: SizeTerminal) -> None:
    def rate(text: str) -> float:
        ended = terminal("size", "curve", "train.py", "--nodes", text, "--classes", "classes.json", "--json")
        found: float = ended.json["estimates"][0]["samples_per_s"][0]
        return found

    assert says(
        terminal("size", "curve", "train.py", "--nodes", "1,curve=estimate:64", "--classes", "classes.json").out,
        "cli.size_curve.basis_trace",
        batch=64,
    )
    assert rate("1,workers=1") < rate("1,workers=2") < rate("1")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print(1)\n", wording("cli.size_curve.no_make_step", name="train.py")),
        ("def make_step(n=1): ...\n", excerpt("cli.size_curve.would_train")),
        ("def make_step(n): ...\nif __name__ == '__main__': ...\n", "say curve=estimate:N"),
    ],
)
def test_a_script_that_cannot_be_estimated_is_told_in_one_line(terminal: SizeTerminal, source: str, said: str) -> None:
    (terminal.folder / "train.py").write_text(source)
    ended = terminal("size", "curve", "train.py", "--nodes", "1-4", "--classes", "classes.json")
    assert ended.code == 2
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_step_that_cannot_be_traced_leaves_the_classes_that_need_no_trace(
    terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> StepTrace:
        raise Untraceable("train.py:3: it decides by its numbers")

    monkeypatch.setattr(tracing, "trace", fails)
    ended = terminal("size", "curve", "train.py", "--nodes", "1-4", "--classes", "classes.json", "--json")
    assert [each["class"] for each in ended.json["estimates"]] == ["cpu8-16G"]
    assert "a100x4: train.py:3: it decides by its numbers" in ended.json["notes"]
    (terminal.folder / "classes.json").write_text(json.dumps(CLASSES[:1]))
    ended = terminal("size", "curve", "train.py", "--nodes", "1-4", "--classes", "classes.json")
    assert ended.code == 1
    assert (
        ended.err
        == "bft: "
        + wording("cli.size_curve.nothing_estimated", notes="a100x4: train.py:3: it decides by its numbers")
        + "\n"
    )


@pytest.mark.parametrize("text", ["{}", "[1]", "no json", '[{"class": "a", "gpus": {"a100": -1}}]', "[" * 5000])
def test_classes_that_are_none_are_refused_in_one_line(terminal: SizeTerminal, text: str) -> None:
    (terminal.folder / "classes.json").write_text(text)
    ended = terminal("size", "curve", "train.py", "--nodes", "1-4", "--classes", "classes.json")
    assert ended.code in (1, 2)
    assert len(ended.err.splitlines()) == 1


def test_a_profile_in_the_cache_takes_the_place_of_the_data_sheet(
    terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(terminal.folder / "cache"))
    script = terminal.folder / "train.py"
    step = f"{script}:make_model"
    model = by_files(step, [("train.py", hashlib.sha256(script.read_bytes()).hexdigest())])
    exact = Estimate(0.25, 0.2, 0.3, "measured")
    profile = ShardProfile(
        StageShard(0, 9, 8, 1),
        "a100-sxm-80gb",
        exact,
        Estimate(0.0, 0.0, 0.0, "measured"),
        0,
        0,
        0,
        0,
        0,
        (),
        5,
        1.0,
        "2.13",
    )
    part = replace(profile, shard=StageShard(5, 9, 8, 1))
    Store().put(model, Setting("sgd", "fp32"), [profile, part])
    words = ("size", "curve", "train.py", "--nodes", "1-2", "--classes", "classes.json", "--json")
    gpus = terminal(*words).json["estimates"][0]
    assert gpus["basis"] == wording(
        "cli.size_curve.basis_profile", MODEL="make_model", name="a100-sxm-80gb", precision="fp32"
    )
    assert gpus["origin"] == "assumed", "what is between nodes was not measured"
    assert gpus["samples_per_s"] == pytest.approx([4 * 8 / 0.25, 2 * 4 * 8 / 0.25]), (
        "of twice the batch in twice the time"
    )
    kept = terminal.folder / "kept"
    kept.mkdir()
    (kept / "train.py").write_text(SCRIPT)
    words = ("size", "curve", "kept/train.py", *words[3:], "--modules", str(terminal.folder))
    assert "measured on a100" in terminal(*words).json["estimates"][0]["basis"], "the driver's copy is the same"
    (kept / "train.py").write_text(SCRIPT + "\n")
    assert "data sheet" in terminal(*words).json["estimates"][0]["basis"], "another script is another model"


def test_regression_the_first_stage_of_a_model_that_fits_no_gpu_was_taken_for_all_of_it(
    terminal: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(terminal.folder / "cache"))
    script = terminal.folder / "train.py"
    model = by_files(f"{script}:make_model", [("train.py", hashlib.sha256(script.read_bytes()).hexdigest())])
    first = profile_of(StageShard(0, 4, 8, 1), 0.1, device="a100-sxm-80gb")
    Store().put(model, Setting(), [first, Unfit(StageShard(0, 9, 8, 1), "a100-sxm-80gb", "40 GiB too many", "2.13")])
    words = ("size", "curve", "train.py", "--nodes", "1-2", "--classes", "classes.json", "--json")
    assert "data sheet" in terminal(*words).json["estimates"][0]["basis"]
