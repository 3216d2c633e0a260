"""The benchmarks of traced memory: their cases, what they count as real, and that a failure is no success."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_steps, sizing_memory
from benchmarks.sizing_cases import CASES, FOLDER, GPU_CASES, MODELS, QUICK, case_of
from benchmarks.sizing_memory import Row, accuracy, ranks_of, real_peak, summary
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.choice.sources import RankBatch
from sizing.model import tracing
from sizing.model.stepping import GpuStep
from tests.sizing.plans_of import GIB, trace
from tests.support.messages import excerpt, pattern, says

pytestmark = pytest.mark.slow

KNOWN = """
import torch

def make_step(batch_size):
    assert batch_size == 3
    during = torch.ones(5_000_000)
    del during
    kept = torch.ones(1_000_000)

    def step():
        first = torch.ones(2_000_000)
        del first
        return kept.sum() + torch.ones(1_500_000).sum()

    return step
"""


def test_every_case_has_a_name_of_its_own_and_a_function_that_takes_what_it_is_spread_over() -> None:
    assert len(CASES) >= 36
    assert len(MODELS) == 60
    assert len({case.name for case in (*CASES, *MODELS)}) == len(CASES) + len(MODELS)
    assert len({(case.name, case.batch) for case in GPU_CASES}) == len(GPU_CASES) >= 24
    for case in (*CASES, *GPU_CASES, *(case for case in MODELS if not case.package), sizing_memory.LARGE):
        file, function = case.step.split(":")
        assert f"\ndef {function}(batch_size: int" in (FOLDER / file).read_text()
        spread = {part.partition("=")[0] for part in ranks_of(case.parallel).split(",") if part}
        assert spread <= tracing.takes(case.path)
    assert all(case_of(name) in CASES for name in QUICK)


def test_the_models_that_were_asked_for_are_among_the_cases() -> None:
    names = " ".join(case.name for case in CASES)
    for model in ("gpt:", "llama:", "moe:", *(f"huggingface:{each}" for each in _PACKAGE)):
        assert model in names
    assert {ranks_of(case.parallel) for case in CASES} == {"", "dp=2", "tp=2", "fsdp=2"}


_PACKAGE = ("gpt2", "bert", "vit", "resnet", "llama", "mixtral", "t5")


def test_an_estimate_is_as_far_off_above_as_below() -> None:
    assert accuracy(90, 100) == accuracy(110, 100) == pytest.approx(0.9)
    assert accuracy(300, 100) == -1


def test_a_case_that_fails_counts_as_nothing_right() -> None:
    rows = [
        Row("right", 1, "", 100, 100),
        Row("refused", 1, "", 100, why="no"),
        Row("not run", 1, "", 0, 100, why="no"),
    ]
    found = summary(rows)
    assert (found["cases"], found["failed"]) == (3, 2)
    assert found["traced"] == {"cases": 3, "mean": pytest.approx(1 / 3), "worst": 0.0}


def test_marp_is_summed_up_only_where_the_sizes_of_the_model_are_known() -> None:
    found = summary([Row("text", 1, "", 100, 100, marp_bytes=150), Row("pictures", 1, "", 100, 100)])
    assert found["marp"] == {"cases": 1, "mean": 0.5, "worst": 0.5}


def test_what_is_refused_or_only_bounded_is_told_apart_from_estimates() -> None:
    rows = [
        Row("right", 1, "", 100, 99),
        Row("refused", 1, "", 100, why="no", refused=True),
        Row("bounded", 1, "", 100, 150, bound=True),
    ]
    found = summary(rows)
    assert (found["failed"], found["refused"]) == (0, 1)
    assert found["traced"] == {"cases": 1, "mean": 0.99, "worst": 0.99}
    assert found["bounds"] == {"cases": 1, "least": 1.5, "most": 1.5}


def test_models_of_a_package_that_is_not_there_are_told_as_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizing_memory.importlib.util, "find_spec", lambda name: None)
    sizing_memory.main(["--models", "--only", "timm_models:mixer_s16_224_bf16", "--json"])
    printed = capsys.readouterr()
    (name,) = json.loads(printed.out)["left_out"]
    assert says(printed.err, "benchmarks.sizing_memory.left_out", wanted="timm", left_out=name)


@pytest.mark.torch
@pytest.mark.frameworks
@pytest.mark.parametrize(
    "name",
    [
        "torchvision_models:mobilenet_v3_large_momentum",
        "timm_models:vit_small_patch16_224",
        "diffusers_models:AutoencoderKL",
        "transformers_models:MixtralForCausalLM_bf16",
    ],
)
def test_a_model_of_a_package_can_be_made_by_its_name(name: str) -> None:
    case = case_of(name)
    if importlib.util.find_spec(case.package) is None:
        pytest.skip(f"{case.package} is not installed (the extra models)")
    assert tracing.trace(case.path, 1, case.parallel, target="cuda", python=sys.executable).peak_bytes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "gpt:nothing"], excerpt("benchmarks.sizing_memory.no_such_case", only="gpt:nothing")),
        (["--jobs", "0"], "at least one"),
    ],
)
def test_what_cannot_be_measured_is_told_at_once(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        sizing_memory.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.torch
def test_what_counts_as_real_is_the_most_that_the_steps_held_at_once(tmp_path: Path) -> None:
    file = tmp_path / "known.py"
    file.write_text(KNOWN)
    # What the step keeps and its largest moment; the larger one while the step was made is none of a step.
    assert real_peak(f"{file}:make_step", 3, Parallel())["peak_bytes"] == 4 * 1_000_000 + 4 * 2_000_000
    with pytest.raises(
        RuntimeError, match=pattern("benchmarks.sizing_memory.real_run_failed", splitlines="AssertionError")
    ):
        real_peak(f"{file}:make_step", 4, Parallel())


@pytest.mark.torch
def test_a_case_is_run_traced_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    sizing_memory.main(["--only", "moe:fp32", "--no-large", "--json"])
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert row["accuracy"] >= 0.999
    assert row["marp_bytes"] > 0
    assert found["accuracy"]["traced"]["cases"] == 1


def test_without_a_gpu_the_benchmark_of_gpus_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_steps, "has_gpu", lambda: False)
    gpu_steps.main([])
    assert capsys.readouterr().out.count("\n") == 1


def test_a_gpu_that_was_too_small_with_the_guard_band_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_steps, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu_steps.tracing, "trace", lambda *words, **named: trace(RankBatch(Parallel(), 4), 10))
    for in_room in (True, False):
        took = Estimate(0.1, 0.1, 0.1, "measured")
        real = GpuStep(4, took, 10 * GIB, 11 * GIB, 13 * GIB, 79 * GIB, in_room, "NVIDIA H200", "2.11")
        monkeypatch.setattr(gpu_steps.stepping, "run_on_gpu", lambda *words, real=real, **named: real)
        gpu_steps.main(["--only", "gpu:gpt_fp32"])
        said = capsys.readouterr().out
        assert says(said, "benchmarks.gpu_steps.within_band", within_the_guard_band=int(in_room), rows=1)
        assert "allocated: mean 100.00%" in said
        assert "corrected: 1.00 at the median" in said


def test_cases_of_a_package_that_is_not_there_are_told_as_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_steps.importlib.util, "find_spec", lambda name: None)
    gpu_steps.main(["--only", "gpu_huggingface:bert", "--trace-only", "--json"])
    printed = capsys.readouterr()
    assert says(printed.err, "benchmarks.gpu_steps.left_out", left_out="gpu_huggingface:bert")
    assert json.loads(printed.out) == {"left_out": ["gpu_huggingface:bert"], "rows": []}


@pytest.mark.torch
def test_a_trace_alone_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_steps.main(["--only", "gpu:moe_recompute", "--trace-only", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["traced_bytes"] > 2**30
    assert "allocated_bytes" not in row
