"""A trace of a step for a CPU's kernels says what the same step really takes, on one rank and on two."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sizing import memory
from benchmarks.sizing.cases import FOLDER, Case, case_of
from sizing.base.parallel import Parallel
from sizing.child import tracing
from tests.support.torch_forks import Forks, Scripts

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("forked")]

LEARNED_MASK = """
import torch
import torch.nn.functional as F

def make_step(batch_size):
    bias = torch.nn.Parameter(torch.zeros(1, 4, 128, 128, device="cuda"))
    x = torch.randn(batch_size, 4, 128, 32, device="cuda", requires_grad=True)

    def step():
        F.scaled_dot_product_attention(x, x, x, attn_mask=bias).sum().backward()
        bias.grad = x.grad = None

    return step
"""

# Half a TFLOP in bfloat16 takes a CPU without instructions for it minutes.
SMALLER = """
import sys
sys.path.insert(0, {folder!r})
import gpt
gpt.SMALL = gpt.Sizes(hidden=64, layers=2, heads=4, seq=128, vocab=512)  # most is activations
gpt.WIDE = gpt.Sizes(hidden=256, layers=2, heads=4, seq=32, vocab=1024)  # most is parameters

def {function}({taken}):
    return gpt.{function}({given})
"""

REAL = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"


@pytest.fixture
def forked_reality(tracing_process: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let real steps of one rank run in forks of a process that has torch; ranks that meet are processes as ever."""
    scripts, usual = Scripts(tracing_process, tmp_path), memory.real_peak

    def real_peak(path: str, batch: int, parallel: Parallel) -> dict[str, Any]:
        if parallel.gpus > 1:
            return usual(path, batch, parallel)
        words = (str(memory._REAL), path, f"--batch={batch}", "--steps=3")
        said = scripts(REAL, *words, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", KINETO_LOG_LEVEL="5")
        assert said.returncode == 0, said.stderr
        found: dict[str, Any] = json.loads(next(line for line in said.stdout.splitlines() if line.startswith("{")))
        return found

    monkeypatch.setattr(memory, "real_peak", real_peak)


def smaller(case: Case, folder: Path) -> Case:
    """The same step of a smaller model where its file has sizes to change."""
    file, _, function = case.step.partition(":")
    if file != "gpt.py":
        return case
    sizes = [name for name in ("dp", "fsdp") if getattr(case.parallel, name) > 1]
    taken, given = (", ".join(["batch_size", *(form.format(name) for name in sizes)]) for form in ("{0}=1", "{0}={0}"))
    path = folder / "smaller.py"
    path.write_text(SMALLER.format(folder=str(FOLDER), function=function, taken=taken, given=given))
    return replace(case, step=f"{path}:{function}", batch=min(case.batch, 4))


@pytest.mark.usefixtures("forked_reality")
@pytest.mark.parametrize(
    "name",
    [
        "gpt:autocast_dropout",
        pytest.param("gpt:adafactor", id="an optimizer that bounds its rates by numbers out of tensors"),
        pytest.param("gpt:ddp_autocast_accumulation", id="gradients that lie in the buckets of a replica"),
        pytest.param("gpt:sharded", id="two ranks whose gathered and scattered tensors gloo copies"),
        pytest.param("odd:lstm", id="a recurrent layer whose kernel keeps what backward needs in a buffer of its own"),
        pytest.param("odd:packed", id="sequences packed by their lengths"),
        pytest.param(
            "huggingface:resnet_autocast",
            id="convolutions that take memory of their own",
            marks=pytest.mark.frameworks,
        ),
        pytest.param(
            "huggingface:llama",
            id="a package that looks whether its tensors have contents",
            marks=pytest.mark.frameworks,
        ),
    ],
)
def test_a_trace_says_what_the_step_really_takes(name: str, tmp_path: Path) -> None:
    case = smaller(case_of(name), tmp_path)
    row = memory.compare(case)
    for _ in range(2):
        # gloo's threads let go of tensors late on a busy machine, and then two ranks hold more at once.
        if case.parallel.gpus > 1 and row.real_bytes > row.traced_bytes:
            row = memory.compare(case)
    assert row.why == ""
    assert row.accuracy >= 0.999, f"{row.traced_bytes} bytes traced, {row.real_bytes} real"


def test_regression_a_learned_mask_of_attention_was_refused_for_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "biased.py"
    file.write_text(LEARNED_MASK)
    traced = tracing.trace(f"{file}:make_step", 8, Parallel(), target="cuda", python=sys.executable)
    scores_bytes = 8 * 4 * 128 * 128 * 4
    # The gradient of the mask is there once for each sample, and no more than two such tensors at once.
    assert scores_bytes < traced.peak_bytes < 3 * scores_bytes


def test_regression_layers_computed_anew_lost_their_autocast_on_a_gpu() -> None:
    case = case_of("gpt:recompute_autocast_dropout")
    anew, kept = (
        tracing.trace(path, case.batch, Parallel(), target="cuda", python=sys.executable).peak_bytes
        for path in (case.path, case_of("gpt:autocast_dropout").path)
    )
    assert anew < kept
