"""A trace of a step for a CPU's kernels says what the same step really takes, on one rank and on two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.sizing.cases import case_of
from benchmarks.sizing.memory import compare
from sizing.base.parallel import Parallel
from sizing.child import tracing

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
def test_a_trace_says_what_the_step_really_takes(name: str) -> None:
    row = compare(case_of(name))
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
