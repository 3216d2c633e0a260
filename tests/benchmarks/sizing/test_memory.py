"""The benchmarks of traced memory: their cases, what they count as real, and that a failure is no success."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.gpu import steps
from benchmarks.sizing import memory
from benchmarks.sizing.cases import CASES, FOLDER, GPU_CASES, MODELS, QUICK, case_of
from benchmarks.sizing.memory import Row, accuracy, ranks_of, real_peak, summary
from sizing.base.parallel import Parallel
from sizing.child import tracing

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
    for case in (*CASES, *GPU_CASES, *(case for case in MODELS if not case.package), memory.LARGE):
        file, function = case.step.split(":")
        assert f"\ndef {function}(batch_size: int" in (FOLDER / file).read_text()
        spread = {part.partition("=")[0] for part in ranks_of(case.parallel).split(",") if part}
        assert spread <= tracing.takes(case.path)
    assert all(case_of(name) in CASES for name in QUICK)


def test_an_estimate_is_as_far_off_above_as_below() -> None:
    assert accuracy(90, 100) == accuracy(110, 100) == pytest.approx(0.9)
    assert accuracy(300, 100) == -1


def test_a_failure_counts_as_nothing_right_and_what_is_refused_or_only_bounded_is_counted_apart() -> None:
    rows = [
        Row("right", 1, "", 100, 99, marp_bytes=150),
        Row("failed", 1, "", 0, 100, why="no"),
        Row("refused", 1, "", 100, why="no", refused=True),
        Row("bounded", 1, "", 100, 150, bound=True),
    ]
    found = summary(rows)
    assert (found["cases"], found["failed"], found["refused"]) == (4, 1, 1)
    assert found["traced"] == {"cases": 2, "mean": pytest.approx(0.99 / 2), "worst": 0.0}
    assert found["bounds"] == {"cases": 1, "least": 1.5, "most": 1.5}
    assert found["marp"] == {"cases": 1, "mean": 0.5, "worst": 0.5}
    shown = memory.overall({"accuracy": found, "rows": [asdict(row) | {"accuracy": row.accuracy} for row in rows]})
    measured = [line.split("|")[2].strip() for line in shown.splitlines()[2:]]
    # the mean, the worst, those that are right, the upper bound, the refused one, and MARP
    assert [text.endswith(", missed") for text in measured] == [True, True, False, False, True, False]


@pytest.mark.torch
def test_what_counts_as_real_is_the_most_that_the_steps_held_at_once(tmp_path: Path) -> None:
    file = tmp_path / "known.py"
    file.write_text(KNOWN)
    # What the step keeps and its largest moment; the larger one while the step was made is none of a step.
    assert real_peak(f"{file}:make_step", 3, Parallel())["peak_bytes"] == 4 * 1_000_000 + 4 * 2_000_000


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_a_case_is_run_traced_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    memory.main(["--only", "moe:fp32", "--no-large", "--json"])
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert row["accuracy"] >= 0.999
    assert row["marp_bytes"] > 0
    assert found["accuracy"]["traced"]["cases"] == 1


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_a_trace_alone_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    steps.main(["--only", "gpu:moe_recompute", "--trace-only", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["traced_bytes"] > 2**30
    assert "allocated_bytes" not in row
