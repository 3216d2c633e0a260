"""What a GPU says of steps: which type it is, what that corrects, and how the site keeps it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import SizingError, UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.child.stepping import GpuStep
from sizing.inventory.file import parse
from sizing.inventory.gpus import CATALOGUE, Checked, GpuType
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import OperatorTotals, StepTrace
from sizing.step_time import checking, datasheet
from sizing.step_time.checking import ComparedStep
from sizing.step_time.datasheet import StepWork
from tests.support.messages import pattern

A100 = CATALOGUE["a100-sxm-80gb"]
GIB = 2**30


def row(seconds: float, precision: str = "bf16", calls: int = 1, *, within_guard: bool = True) -> ComparedStep:
    """A step of 0.1 s by the rule where products bound it."""
    flops = int(0.1 * datasheet.peak_flops(A100, precision) * datasheet.ARITHMETIC.usual)
    trace = StepTrace(
        8, Parallel(), "cuda", 4 * GIB, {}, 1, (OperatorTotals("mm", calls, flops, 1, precision),), {}, "2.11", 1.0
    )
    took = Estimate(seconds, seconds, seconds, "measured")
    return ComparedStep(
        precision, trace, GpuStep(8, took, GIB, GIB, 7 * GIB, 79 * GIB, within_guard, "GPU", "2.11"), A100
    )


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA H200 NVL", "h200-nvl-141gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
    ],
)
def test_a_gpu_is_known_by_what_its_driver_calls_it(device: str, name: str) -> None:
    assert checking.type_of(device, {}).name == name


def test_a_gpu_goes_by_the_sites_name_of_its_type() -> None:
    turbo = replace(A100, name="turbo", like="a100-sxm-80gb")
    device = "NVIDIA A100-SXM4-80GB"
    assert checking.type_of(device, {"turbo": turbo}) == turbo
    assert checking.type_of("anything", {"turbo": turbo}, "turbo") == turbo
    own = {"turbo": turbo, "slow": replace(turbo, name="slow")}
    with pytest.raises(UsageError, match=pattern("sizing.checking.any_of", device=device, mine="slow, turbo")):
        checking.type_of(device, own)
    with pytest.raises(UsageError, match=pattern("sizing.checking.several", device="NVIDIA GH200 480GB")):
        checking.type_of("NVIDIA GH200 480GB", {})
    with pytest.raises(UsageError, match=pattern("sizing.checking.another", named="t4", device=device)):
        checking.type_of(device, {}, "t4")
    with pytest.raises(UsageError, match=pattern("sizing.checking.not_known", named="a100")):
        checking.type_of(device, {}, "a100")  # of 40 or 80 GB?


def test_a_correction_is_the_median_of_each_kind_of_step_and_the_memory_that_the_guard_band_lacked() -> None:
    rows = [row(0.14), row(0.12), row(0.18), row(0.07, "fp32"), row(0.2, calls=10**5, within_guard=False)]
    gpu = checking.corrected(A100, rows)
    assert {kind: each.steps for kind, each in gpu.checked.items()} == {"bf16": 3, "fp32": 1, "host": 1}
    bf16 = gpu.checked["bf16"]
    assert (bf16.low, bf16.value, bf16.high) == pytest.approx((1.2, 1.4, 1.8))
    assert gpu.checked["host"].value == pytest.approx(0.2)
    assert gpu.memory_bytes == 79 * GIB - (7 * GIB - guarded_bytes(4 * GIB))
    assert "memory_bytes" not in gpu.assumed
    assert checking.corrected(A100, rows[:2]).memory_bytes == 79 * GIB


def test_a_type_that_was_checked_is_checked_anew_against_the_rule() -> None:
    once = replace(row(0.14), gpu=replace(A100, checked={"bf16": Checked(1, 2.0, 2.0, 2.0)}))
    assert once.ratio == row(0.14).ratio
    assert once.corrected_s.value == pytest.approx(0.2)


@given(st.lists(st.tuples(st.floats(1e-3, 10.0), st.sampled_from(["bf16", "fp32", "tf32"])), min_size=1, max_size=9))
def test_every_step_that_was_checked_lies_in_the_corrected_range(steps: list[tuple[float, str]]) -> None:
    rows = [row(seconds, precision) for seconds, precision in steps]
    gpu = checking.corrected(A100, rows)
    for each in rows:
        told = replace(each, gpu=gpu).corrected_s
        assert told.low * (1 - 1e-9) <= each.real.step_s.value <= told.high * (1 + 1e-9)
        assert told.origin == "interpolated"


def test_products_that_nobody_checked_go_by_those_of_other_precisions_and_a_model_by_its_sizes_by_none() -> None:
    gpu = checking.corrected(A100, [row(0.14), row(0.05, "fp32"), row(5.0, calls=10**5)])
    told = replace(row(0.1, "tf32"), gpu=gpu).corrected_s
    assert told.value == pytest.approx(0.1 * (1.4 + 0.5) / 2), "what the host takes says nothing of products"
    sizes = StepWork({("step", ""): (1e15, None)})
    assert datasheet.step_s(sizes, Parallel(), gpu, 1, 1.0, "bf16") == datasheet.step_s(
        sizes, Parallel(), A100, 1, 1.0, "bf16"
    )


@given(st.floats(0, 1e15), st.floats(0, 1e12), st.floats(0, 1e5), st.floats(1.0, 4.0))
def test_more_work_never_takes_less_for_being_of_another_kind(
    flops: float, moved: float, calls: float, more: float
) -> None:
    gpu = checking.corrected(A100, [row(0.14), row(0.07, "fp32"), row(0.9, calls=10**5)])

    def took(factor: float) -> float:
        work = StepWork({("mm", "fp32"): (flops * factor, moved), ("add", ""): (0.0, moved + 1)}, calls=calls)
        return datasheet.step_s(work, Parallel(), gpu, 1, 1.0, "").value

    assert took(1.0) <= took(more) * (1 + 1e-9)


def test_what_gpus_exchange_is_not_corrected() -> None:
    gpu: GpuType = replace(A100, checked={"bf16": Checked(1, 2.0, 2.0, 2.0)})
    work = replace(datasheet.traced(row(0.1).trace), data={"all_reduce": 1e12})
    told, assumed = (datasheet.step_s(work, Parallel(8), each, 1, 1.0, "") for each in (gpu, A100))
    assert told.origin == "assumed"
    hidden = datasheet.HIDDEN.usual * datasheet.BACKWARD
    assert told.value - assumed.value == pytest.approx(0.1 - hidden * 0.1)


def test_the_file_of_gpus_keeps_a_correction_beside_all_else() -> None:
    gpu = checking.corrected(A100, [row(0.14)])
    new = checking.kept_in("", gpu, "gpus.json")
    assert parse(new).types[A100.name].checked == gpu.checked
    turbo = checking.corrected(replace(A100, name="turbo", like=A100.name), [row(0.14)])
    assert parse(checking.kept_in("", turbo, "gpus.json")).types["turbo"].memory_bytes == 79 * GIB
    own = {
        "format": 1,
        "types": {A100.name: {"names": ["a100"], "cost": 2.5, "assumed": ["flops", "memory_bytes"]}, "t4": {}},
        "partitions": [],
    }
    kept = checking.kept_in(json.dumps(own), gpu, "gpus.json")
    read = parse(kept).types[A100.name]
    assert (read.cost, read.names, read.memory_bytes) == (2.5, ("a100",), 79 * GIB)
    assert read.assumed == {"flops"}
    assert set(parse(kept).types) == {A100.name, "t4"}
    again = checking.corrected(A100, [row(0.2)])
    assert parse(checking.kept_in(kept, again, "gpus.json")).types[A100.name].checked == again.checked
    with pytest.raises(UsageError, match=r"gpus\.json"):
        checking.kept_in('{"types": {"a100-sxm-80gb": {"cots": 1}}}', gpu, "gpus.json")


def test_a_gpu_without_units_for_a_precision_is_not_judged_by_steps_in_it() -> None:
    old = CATALOGUE["v100-sxm-16gb"]
    kinds = ("fp32", "tf32", "fp16", "bf16")
    has = {precision: checking.has_units(row(0.1, precision).trace, old) for precision in kinds}
    assert has == {"fp32": True, "tf32": True, "fp16": True, "bf16": False}


def test_a_correction_that_would_take_a_large_part_of_the_memory_is_a_fault_of_something_else() -> None:
    real = replace(row(0.1).real, in_use_bytes=60 * GIB, within_guard=False)
    with pytest.raises(SizingError, match=pattern("sizing.checking.greedy", name="bf16")):
        checking.corrected(A100, [replace(row(0.1), real=real)])
