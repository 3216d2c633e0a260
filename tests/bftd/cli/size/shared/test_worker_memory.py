"""Elastic jobs whose script has a `make_step`: nodes whose GPUs are too small for a worker are left out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bftd.base.errors import UsageError
from bftd.cli.size.shared import worker_memory
from bftd.core.model.classes import NodeClass
from elastic.options.elastic_option import ElasticSpec
from sizing.base.errors import Untraceable
from sizing.base.parallel import Parallel
from sizing.child import tracing
from sizing.inventory.gpus import CATALOGUE, GpuType
from sizing.model.trace import StepTrace, Target
from tests.support.messages import excerpt, fragment, pattern, says, wording

GIB = 2**30
GUARD = 'if __name__ == "__main__":\n    raise SystemExit(1)\n'
SCRIPT = f"import torch\ndef make_step(batch_size=8):\n    return lambda: None\n{GUARD}"


def gpu_class(name: str, *features: str, **gpus: int) -> NodeClass:
    return NodeClass(name, 2, gpus, frozenset(features), frozenset(), ())


V100 = gpu_class("v100x2", v100=2)
A100 = gpu_class("a100x4", "a100_80gb", a100=4)
CPU = gpu_class("cpu64-251G")


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, int]]]:
    """Stands in for the trace: its peak in GiB, or the error that it raises; gives what was traced."""

    def with_peak(peak: float | Exception) -> list[tuple[str, int]]:
        asked: list[tuple[str, int]] = []

        def trace(step: str, batch: int, parallel: Parallel, *, python: str, timeout_s: float) -> StepTrace:
            asked.append((step, batch))
            if isinstance(peak, Exception):
                raise peak
            target: Target = "cuda"
            return StepTrace(batch, parallel, target, int(peak * GIB), {}, 1, (), {}, "2.0", timeout_s / 60)

        monkeypatch.setattr(tracing, "trace", trace)
        return asked

    return with_peak


class Job:
    """A script in a folder, and what was told of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train.py"
        self.told: list[str] = []

    def fitted(
        self,
        *classes: NodeClass,
        source: str = SCRIPT,
        spec: str = "1-4",
        batch: int | None = None,
        own: Mapping[str, GpuType] | None = None,
    ) -> ElasticSpec:
        self.path.write_text(source)
        known = {kind.name: kind for kind in classes}
        script = self.path, sys.executable
        return worker_memory.fitted(ElasticSpec.parse(spec), script, batch, known, own or {}, self.told.append)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


Traced = Callable[..., list[tuple[str, int]]]


def test_a_worker_that_fits_all_gpus_changes_nothing_and_nothing_is_said(job: Job, traced: Traced) -> None:
    asked = traced(10)
    assert job.fitted(A100, V100) == ElasticSpec.parse("1-4")
    assert asked == [(f"{job.path}:make_step", 8)]
    assert job.told == []


def test_classes_that_are_too_small_are_left_out_by_their_type_and_that_is_said(job: Job, traced: Traced) -> None:
    traced(40)
    assert job.fitted(A100, V100, CPU, spec="1-4,without=k80").format() == "1-4,without=k80:v100"
    [line] = job.told
    assert line == (
        wording("cli.worker_memory.need", bytes="a worker takes 42.4 GiB", batch="8: too small are v100x2 (31.2 GiB)")
        + wording("cli.worker_memory.left_out", told="", out="v100")
    )


def test_a_job_whose_worker_fits_no_gpu_is_refused_in_one_line_that_says_by_how_much(job: Job, traced: Traced) -> None:
    traced(100)
    with pytest.raises(UsageError) as caught:
        job.fitted(A100, V100, CPU)
    said = str(caught.value)
    assert "106.0 GiB" in said
    assert "a100x4 (78.7 GiB), v100x2 (31.2 GiB)" in said
    assert said.isprintable()


def test_workers_that_share_a_gpu_share_its_memory(job: Job, traced: Traced) -> None:
    traced(30)
    assert job.fitted(A100, V100, spec="1-4,workers=4").without == ("v100",)
    assert "for 2 workers" in job.told[0]
    assert job.fitted(A100, spec="1-4,workers=4").without == ()


def test_a_type_that_may_be_larger_is_told_and_not_left_out(job: Job, traced: Traced) -> None:
    traced(25)  # a v100 has 16 or 32 GB
    assert job.fitted(V100, A100).without == ()
    [line] = job.told
    assert says(line, "cli.worker_memory.may_be_too_small", name=fragment("v100x2"), note="v100 is taken for v100-")


def test_a_type_of_which_nothing_is_known_is_told_and_not_left_out(job: Job, traced: Traced) -> None:
    traced(40)
    assert job.fitted(gpu_class("oddx1", odd=1), V100).without == ("v100",)
    assert job.told[0] == wording("cli.worker_memory.unknown_gpus", name="oddx1")


def test_the_sites_own_words_come_before_the_catalogue(job: Job, traced: Traced) -> None:
    traced(10)
    small = replace(CATALOGUE["a100-sxm-80gb"], memory_bytes=4 * GIB)
    assert job.fitted(A100, V100, own={"a100": small}).without == ("a100",)


def test_types_that_are_called_the_same_cannot_be_left_out_by_their_name(job: Job, traced: Traced) -> None:
    traced(60)
    assert job.fitted(A100, gpu_class("a100x4-small", "a100_40gb", a100=4)).without == ()
    assert says(job.told[0], "cli.worker_memory.called_alike")


@pytest.mark.parametrize(
    ("source", "batch", "spec", "hint"),
    [
        (SCRIPT.replace("=8", ""), None, "1-4", "say --step-batch N"),
        (SCRIPT.replace("=8", "=0"), None, "1-4", "say --step-batch N"),
        (SCRIPT.replace("=8", "=True"), None, "1-4", "say --step-batch N"),
        (SCRIPT.replace(GUARD, ""), 4, "1-4", excerpt("cli.size_curve.would_train")),
        (SCRIPT, None, "1-4,container=/a.sif", excerpt("cli.worker_memory.torch_in_image")),
        (SCRIPT, 4, "1-4", "train.py:3: .item() needs a value"),
    ],
)
def test_what_cannot_be_traced_is_told_and_let_through(
    job: Job, traced: Traced, source: str, batch: int | None, spec: str, hint: str
) -> None:
    asked = traced(Untraceable("train.py:3: .item() needs a value"))
    assert job.fitted(V100, source=source, spec=spec, batch=batch) == ElasticSpec.parse(spec)
    [line] = job.told
    assert hint in line
    assert len(asked) == (".item()" in hint)


def test_the_batch_of_the_option_comes_before_the_default(job: Job, traced: Traced) -> None:
    asked = traced(1)
    job.fitted(V100, batch=3)
    assert asked == [(f"{job.path}:make_step", 3)]


@pytest.mark.parametrize("source", ["x = 1\n", "class A:\n    def make_step(self): ...\n", "def (\n", "\0"])
def test_a_script_without_a_step_is_not_judged_and_a_batch_for_it_is_refused(
    job: Job, traced: Traced, source: str
) -> None:
    asked = traced(1000)
    assert job.fitted(V100, source=source) == ElasticSpec.parse("1-4")
    with pytest.raises(UsageError, match="no function make_step"):
        job.fitted(V100, source=source, batch=4)
    assert (asked, job.told) == ([], [])


def test_nodes_without_gpus_are_not_judged(job: Job, traced: Traced) -> None:
    asked = traced(1000)
    assert job.fitted(CPU) == ElasticSpec.parse("1-4")
    assert asked == []


@pytest.mark.torch
def test_a_real_step_is_traced_in_a_child_and_the_scripts_own_training_does_not_run(job: Job) -> None:
    source = f"""
import torch
def make_step(batch_size=512):
    model = torch.nn.Linear(4096, 4096, device="cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(batch_size, 4096)
    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return step
{GUARD}"""
    tiny = replace(CATALOGUE["a100-sxm-80gb"], memory_bytes=GIB)
    assert job.fitted(A100, V100, source=source, own={"v100": tiny}).without == ("v100",)
    assert re.match(pattern("cli.worker_memory.need", bytes=fragment("a worker takes 1."), batch="512: "), job.told[0])
