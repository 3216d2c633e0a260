"""`import sizing` as a notebook does: the functions, without a command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sizing
from sizing.base.errors import Untraceable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel, RankBatch
from sizing.child import tracing
from sizing.cpu import profiler
from sizing.cpu.profiler import Profile, ProfileCost, ProfileRequest
from sizing.cpu.runs.measurement import PointProgress, PointResult
from sizing.cpu.sensitivity.matrix import Matrix
from sizing.inventory.inventory import Inventory, PartitionOffer
from sizing.model.trace import StepTrace
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from tests.sizing.plans_of import GIB, Step, group, inventory
from tests.support.messages import pattern, says

GPT = "gpt:h=1024,l=24,a=16,s=1024,V=50257,precision=bf16"
HUGE = "gpt:h=16384,l=96,a=128,s=2048,V=50257,b=1"
ROOT = Path(__file__).parents[3]
OURS = {"bftd", "elastic", "milp", "click", "torch", "highspy"}


@pytest.fixture
def centre() -> Inventory:
    return inventory(PartitionOffer("new", (group(),)), PartitionOffer("old", (group("h", kind="v100", gpus=2),)))


@pytest.fixture
def site(tmp_path: Path) -> sizing.Site:
    """A centre without files and without Slurm."""

    def slurm() -> SlurmClient:
        return SlurmClient(commands_dir=tmp_path / "none")

    return sizing.Site(tmp_path, slurm)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Step], str]:
    """Let every step be a made-up one; the name of a step."""

    def let(step: Step) -> str:
        def trace(name: str, batch: int, parallel: Parallel, **_: object) -> StepTrace:
            (result,) = step.measure([RankBatch(parallel, batch)])
            if isinstance(result, Untraceable):
                raise result
            return result

        monkeypatch.setattr(tracing, "trace", trace)
        (tmp_path / "train.py").write_text("def make_step(batch_size): ...\n")
        return f"{tmp_path}/train.py:make_step"

    return let


def test_neither_the_import_nor_a_fit_loads_a_command_line_a_daemon_or_torch(tmp_path: Path) -> None:
    """A fit by formula needs no numpy either; the import loads nothing but its own module."""
    types = {"types": {"a100": {"like": "a100-sxm-80gb"}}}
    groups = [{"nodes": "n[1-4]", "gpu_type": "a100", "gpus": 4, "cpus": 64, "memory_bytes": 2**39}]
    (tmp_path / "centre.json").write_text(json.dumps({**types, "partitions": [{"partition": "new", "groups": groups}]}))
    script = f"""
import sys
import sizing
print(sorted(name for name in sys.modules if name.startswith("sizing")))
found = sizing.fit(config="{GPT}", global_batch=64, inventory="centre.json", asks_start=False)
assert found.plans[0].fits and found.plans[0].sbatch[0] == "#SBATCH --partition=new"
sizing.estimate(config="{GPT}", gpu="a100-sxm-80gb")
sizing.choose(config="{GPT}", global_batch=64, steps=10, inventory="centre.json", asks_start=False)
sizing.profile_cpu
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {OURS!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["['sizing']", "[]"]


def test_every_name_of_the_library_is_there_and_no_other() -> None:
    assert all(getattr(sizing, name).__doc__ for name in sizing.__all__)
    assert set(sizing.__all__) <= set(dir(sizing))
    with pytest.raises(AttributeError, match="fitt"):
        sizing.fitt  # type: ignore[attr-defined]  # noqa: B018


def test_a_fit_has_plans_with_their_lines_and_tells_its_progress(
    centre: Inventory, site: sizing.Site, traced: Callable[[Step], str]
) -> None:
    told: list[tuple[str, float]] = []
    step = traced(Step(10, 0.5))
    found = sizing.fit(
        step, global_batch=64, inventory=centre, site=site, progress=lambda name, part: told.append((name, part))
    )
    assert {plan.peak.origin for plan in found.plans} == {"traced", "interpolated"}
    assert [plan.fits for plan in found.best] == [True] * 3
    assert found.best[0] == found.plans[0]
    assert (found.inventory, found.advice) == (centre, "")
    assert any(says(note, "cli.size_fit.slurm_not_asked") for note in found.notes)
    assert {name for name, _ in told} == {f"tracing {step}"}
    assert (told[0][1], told[-1][1]) == (0.0, 1.0)
    assert all(0 <= part < 1 for at, (_, part) in enumerate(told[:-1]) if told[at + 1][1])
    (only,) = sizing.fit(
        step, global_batch=64, inventory=centre, site=site, partitions=["old"], max_gpus=1, asks_start=False
    ).plans
    assert (only.partition, only.gpus, only.start) == ("old", 1, None)


def test_a_model_that_fits_nowhere_is_no_error_and_has_advice(centre: Inventory, site: sizing.Site) -> None:
    found = sizing.fit(config=HUGE, global_batch=64, inventory=centre, site=site)
    assert found.plans
    assert found.best == ()
    assert says(found.advice, "sizing.advice.fits_nowhere")


def test_an_impossible_request_is_an_error_of_the_library(
    centre: Inventory, site: sizing.Site, traced: Callable[[Step], str]
) -> None:
    with pytest.raises(UsageError, match=pattern("cli.size_model.step_missing")):
        sizing.fit(global_batch=64, inventory=centre, site=site)
    with pytest.raises(UsageError):
        sizing.fit(config=GPT, global_batch=64, inventory=centre, site=site, gpu="zzz")
    with pytest.raises(SlurmError):
        sizing.fit(config=GPT, global_batch=64, site=site)
    step = traced(Step(10, 0.5, lambda point: True))
    with pytest.raises(Untraceable, match="--config"):
        sizing.estimate(step)
    assert sizing.fit(step, config=GPT, global_batch=64, inventory=centre, site=site).plans[0].peak.origin == "formula"


def test_an_estimate_has_memory_and_on_a_gpu_time_each_with_its_origin(
    site: sizing.Site, traced: Callable[[Step], str]
) -> None:
    step = traced(Step(10, 0.5))
    found = sizing.estimate(step, global_batch=8, site=site)
    assert (found.memory.peak.origin, found.memory.batch, found.step_s) == ("traced", 8, None)
    slow, fast = (sizing.estimate(step, global_batch=8, gpu=gpu, site=site) for gpu in ("v100-sxm2-32gb", "h100-sxm"))
    assert slow.memory == fast.memory == found.memory
    assert slow.step_s is not None
    assert fast.step_s is not None
    assert slow.step_s.origin == "assumed"
    assert slow.step_s.value > fast.step_s.value
    assert fast.gpu is not None
    assert fast.gpu.name.startswith("h100")
    formula = sizing.estimate(config=f"{GPT},b=4", gpu="h100-sxm", site=site)
    assert (formula.memory.peak.origin, formula.memory.batch) == ("formula", 4)
    assert formula.step_s is not None
    apart = sizing.estimate(config=GPT, global_batch=8, dp=4, nodes=2, gpu="h100-sxm", site=site)
    assert apart.memory.batch == 2
    with pytest.raises(UsageError, match=pattern("sizing.estimate.uneven", gpus=4, nodes=3)):
        sizing.estimate(config=GPT, global_batch=8, dp=4, nodes=3, gpu="h100-sxm", site=site)


def test_a_plan_and_an_estimate_of_the_same_step_agree(
    centre: Inventory, site: sizing.Site, traced: Callable[[Step], str]
) -> None:
    step = traced(Step(10, 0.5))
    for given in ((step, None), (None, GPT)):
        found = sizing.fit(given[0], config=given[1], global_batch=64, inventory=centre, site=site, asks_start=False)
        plan = next(each for each in found.plans if each.gpu_type == "a100" and each.parallel == Parallel(2))
        alone = sizing.estimate(
            given[0], config=given[1], global_batch=64, dp=2, gpu=centre.types["a100"], nodes=plan.nodes, site=site
        )
        assert (alone.memory.peak, alone.step_s) == (plan.peak, plan.step_s)


def test_a_choice_has_a_winner_and_the_reason_or_says_why_there_is_none(centre: Inventory, site: sizing.Site) -> None:
    found = sizing.choose(config=GPT, global_batch=64, steps=1000, inventory=centre, site=site, asks_start=False)
    assert found.winner is found.ordered[0]
    assert found.why
    assert found.failure == ""
    assert found.winner.lines()[0].text == "#SBATCH --partition=new"
    late = sizing.choose(
        config=GPT, global_batch=64, steps=10**9, inventory=centre, site=site, asks_start=False, deadline_s=2e9
    )
    assert (late.winner, late.why) == (None, "")
    assert late.failure
    none = sizing.choose(config=HUGE, global_batch=64, steps=9, inventory=centre, site=site, asks_start=False)
    assert (none.winner, none.found) == (None, ())
    assert none.failure
    assert none.out


def test_a_profile_gives_the_need_and_the_matrix_and_tells_each_run(
    tmp_path: Path, site: sizing.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cost = ProfileCost(2, 20.0, 0, 600.0)
    asked: list[ProfileRequest] = []

    def profile(ask: ProfileRequest, *, heard: Any, done: Any) -> Profile:
        asked.append(ask)
        rates = {cpus: Estimate(rate, rate, rate, "measured") for cpus, rate in {1: 50.0, 4: 100.0}.items()}
        points = {
            cpus: PointResult(cpus, rate, "samples/s", (rate.value,), 60, 5.4, 14.0, 4.0, "affinity", 4e9, GIB)
            for cpus, rate in rates.items()
        }
        for point in points.values():
            done(point)
        heard(PointProgress(4, "measuring", 3.0, 20.0, 10, None))
        matrix = Matrix(1, (1.0, 4.0), (float(GIB),), ((50.0,), (100.0,)), searched=4.0)
        return Profile(ask, points, matrix, "here", "affinity", 4, GIB, False)

    monkeypatch.setattr(profiler, "cost", lambda _: cost)
    monkeypatch.setattr(profiler, "profile", profile)
    told: list[object] = []
    found = sizing.profile_cpu(
        ["python", "train.py"],
        cpus=[1, 4],
        gpus=0,
        data=[str(tmp_path)],
        site=site,
        expected=told.append,
        progress=told.append,
        done=told.append,
    )
    (ask,) = asked
    assert (ask.command, ask.cpus, ask.data) == (("python", "train.py"), (1, 4), (tmp_path,))
    assert told[0] is cost
    assert [type(each) for each in told[1:]] == [PointResult, PointResult, PointProgress]
    assert (found.need.demand.cpus, found.matrix.best) == (4, 100)
    assert found.need.lines()[0].text == "#SBATCH --cpus-per-task=4"


def test_nobody_who_refuses_the_cost_has_the_command_run(site: sizing.Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cost: ProfileCost) -> None:
        raise KeyboardInterrupt

    def profile(*_: Any, **__: Any) -> Sequence[object]:
        pytest.fail("it was run")

    monkeypatch.setattr(profiler, "cost", lambda _: ProfileCost(2, 20.0, 0, 600.0))
    monkeypatch.setattr(profiler, "profile", profile)
    with pytest.raises(KeyboardInterrupt):
        sizing.profile_cpu(["true"], gpus=0, site=site, expected=refuse)
