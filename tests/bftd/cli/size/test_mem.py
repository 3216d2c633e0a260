"""`bft size mem` as a user meets it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bftd.cli import progress
from sizing.child import tracing
from tests.bftd.cli.sizing_commands import GPT, SizeTerminal
from tests.sizing.plans_of import GIB, Step
from tests.support.messages import excerpt, fragment, wording
from tests.support.messages import says as says_message

pytestmark = pytest.mark.slow


def test_a_traced_step_is_told_by_category_with_its_origin(bft: SizeTerminal) -> None:
    bft.traces(Step(4, 0.5))
    ended = bft("size", "mem", "train.py:make_step", "--global-batch", "8")
    assert ended.code == 0
    assert says_message(ended.out, "cli.size_mem.peak", amount="8.0 GiB", origin="traced")
    rows = [line for line in ended.out.splitlines() if line.endswith("traced")]
    assert [row.split()[0] for row in rows] == ["parameters", "gradients", "optimizer", "activations", "temporary"]
    assert says_message(ended.out, "cli.size_mem.guard_band", amount="9.5 GiB", what=fragment("CUDA context"))


def test_a_trace_that_takes_a_while_is_told_of_beside_the_answer(
    bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    bft.traces(Step(4, 0.5))
    quick = tracing.trace

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.5)
        return quick(*args, **kwargs)

    monkeypatch.setattr(tracing, "trace", slow)
    monkeypatch.setattr(progress, "PRINTED_AFTER_S", 0.0)
    ended = bft("size", "mem", "train.py:make_step", "--json")
    assert ended.json["origin"] == "traced"
    assert ended.err.splitlines() == ["bft: tracing train.py:make_step: 0 s so far"]


def test_json_has_the_keys_that_are_promised(bft: SizeTerminal) -> None:
    bft.traces(Step(4, 0.5))
    told = bft("size", "mem", "train.py:make_step", "--global-batch", "8", "--dp", "2", "--json").json
    assert (told["peak_bytes"], told["origin"], told["trace_s"]) == (6 * GIB, "traced", 1.0)
    assert told["low_bytes"] <= told["peak_bytes"] < told["high_bytes"]
    assert told["per_rank"] == {"dp": 2, "tp": 1, "fsdp": 1}
    assert sum(told["by_category"].values()) == told["peak_bytes"]
    assert told["marp_bytes"] is None


def test_without_a_batch_each_gpu_has_one_sample(bft: SizeTerminal) -> None:
    step = Step(4, 0.5)
    bft.traces(step)
    assert says_message(
        bft("size", "mem", "train.py:make_step", "--dp", "2").out,
        "cli.size_mem.batch_on_each",
        batch=1,
        gpus=2,
        value="s",
        spread="dp 2, tp 1, fsdp 1",
    )
    assert [point.batch for point in step.points] == [1]


def test_by_formula_marp_stands_beside_it(bft: SizeTerminal) -> None:
    shown = bft("size", "mem", "--config", f"{GPT},b=8", "--marp").out
    assert "(formula)" in shown
    assert "MARP as printed: 28.0 GiB" in shown
    told = bft("size", "mem", "--config", f"{GPT},b=8", "--json").json
    assert told["origin"] == "formula"
    assert told["marp_bytes"] > told["peak_bytes"]


def test_a_global_batch_is_cut_into_the_micro_batches_of_the_configuration(bft: SizeTerminal) -> None:
    alone = bft("size", "mem", "--config", f"{GPT},b=4,accumulation=2", "--json").json
    cut = bft("size", "mem", "--config", f"{GPT},b=4", "--global-batch", "16", "--dp", "2", "--json").json
    whole = bft("size", "mem", "--config", GPT, "--global-batch", "16", "--dp", "2", "--json").json
    assert cut["by_category"]["activations"] == alone["by_category"]["activations"]
    assert whole["peak_bytes"] > cut["peak_bytes"]


def test_options_come_before_the_spread_of_the_configuration(bft: SizeTerminal) -> None:
    told = bft("size", "mem", "--config", f"{GPT},b=4,tp=2,dp=4", "--tp", "4", "--json").json
    assert told["per_rank"] == {"dp": 4, "tp": 4, "fsdp": 1}


def test_a_step_that_cannot_be_traced_is_told_by_formula_with_the_reason(bft: SizeTerminal) -> None:
    bft.traces(Step(4, 1, refuses=lambda point: True))
    words = ("size", "mem", "train.py:make_step", "--global-batch", "8")
    shown = bft(*words, "--config", GPT)
    assert shown.code == 0
    assert says_message(shown.out, "cli.size_mem.not_traced", why="line 7: it looks at a loss")
    assert bft(*words, "--config", GPT, "--json").json["why"] == "line 7: it looks at a loss"
    alone = bft(*words)
    assert (alone.code, alone.out) == (1, "")
    assert (
        alone.err == "bft: " + wording("cli.size_choose_timers.untraceable", error="line 7: it looks at a loss") + "\n"
    )


def test_a_models_own_file_is_read(bft: SizeTerminal) -> None:
    (bft.folder / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 1024, "vocab_size": 50257}'
    )
    told = bft("size", "mem", "--config", "config.json:b=2,s=512,precision=bf16", "--json").json
    assert told["origin"] == "formula"
    assert told["peak_bytes"] > GIB
    assert told["notes"] == []
    own = bft("size", "mem", "--config", "config.json:b=2,s=512")
    assert says_message(own.out, "sizing.request.dtype", precision="fp32", name="config.json")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], excerpt("cli.size_model.step_missing")),
        (["train.py"], excerpt("cli.size_model.step_malformed")),
        (["train.py:make-step"], excerpt("cli.size_model.step_malformed")),
        (["train.py:make_step", "--global-batch", "0"], "--global-batch 0: at least 1"),
        (
            ["train.py:make_step", "--global-batch", "8", "--dp", "3"],
            excerpt("sizing.parallel.batch_not_cut", shares=3),
        ),
        (["train.py:make_step", "--tp", "-2"], "tp=-2: at least 1"),
        (["train.py:make_step", "--timeout", "0"], "--timeout 0"),
        (["train.py:make_step", "--timeout", "nan"], "--timeout nan"),
        (["train.py:make_step", "--marp"], wording("cli.size_mem.marp_by_config")),
        (["--config", "gpt:h=12"], "gpt: say l="),
        (["--config", "no.json"], "No such file"),
        (["--config", "list.json"], "no JSON object"),
        (["--config", "deep.json"], "no JSON object"),
        (["--config", f"{GPT},b=4", "--global-batch", "6"], "micro-batches of 4"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(bft: SizeTerminal, words: list[str], says: str) -> None:
    bft.traces(Step(4, 1))
    (bft.folder / "list.json").write_text("[1]")
    (bft.folder / "deep.json").write_text("[" * 100_000)
    ended = bft("size", "mem", *words)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_example_is_traced_as_a_replica(bft: SizeTerminal) -> None:
    example = Path(__file__).parents[4] / "examples" / "size_gpt.py"
    words = (f"{example}:make_step", "--global-batch", "4", "--dp", "2", "--python", sys.executable)
    told = bft("size", "mem", *words, "--json").json
    parts = told["by_category"]
    assert (told["origin"], told["per_rank"]) == ("traced", {"dp": 2, "tp": 1, "fsdp": 1})
    assert parts["parameters"] == pytest.approx(4 * 124_439_808, rel=0.001)
    assert parts["optimizer"] == pytest.approx(2 * parts["parameters"], rel=0.001)
    assert parts["activations"] > parts["parameters"]
