"""How long a step takes: by hand, and what must hold of any."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel, RankBatch
from sizing.inventory.gpus import GpuType
from sizing.step_time import datasheet
from sizing.step_time.datasheet import StepWork
from tests.sizing.plans_of import gpu, trace

GPU = gpu()  # 312 TFLOPS, 2 TB/s, 300 GB/s


def test_an_operator_takes_as_long_as_its_arithmetic_or_its_traffic() -> None:
    work = StepWork({("mm", "bf16"): (156e12, 1e9), ("add", ""): (1e9, 1.4e12)})
    step = datasheet.step_s(work, Parallel(), GPU, 1, 1e10, "bf16")
    assert step.value == pytest.approx(1.0 + 1.0)  # half the peak; 70 % of the bandwidth
    assert step.low == pytest.approx(156 / (0.9 * 312) + 0.7)
    assert step.origin == "assumed"


def test_of_a_whole_step_only_the_flops_are_known() -> None:
    step = datasheet.step_s(StepWork({("step", ""): (312e12 * 0.35, None)}), Parallel(), GPU, 1, 1e10, "bf16-pure")
    assert step.value == pytest.approx(1.0)


def test_a_precision_that_a_gpu_lacks_runs_as_fp32() -> None:
    old = replace(GPU, flops={"fp32": 15e12, "fp16": 120e12})
    assert datasheet.peak_flops(old, "bf16") == 15e12
    assert datasheet.peak_flops(old, "fp16-amp") == 120e12


def test_replicas_on_several_nodes_reduce_over_the_network() -> None:
    work = StepWork({("mm", "bf16"): (0.0, 0.0)}, data={"all_reduce": 7e9})
    here = datasheet.step_s(work, Parallel(4), GPU, 1, 1e10, "bf16")
    apart = datasheet.step_s(work, Parallel(4), GPU, 2, 1e10, "bf16")
    hops_s = 2 * math.ceil(7e9 / datasheet.BUCKET_BYTES) * datasheet.HOP_S
    assert here.value == pytest.approx(2 * 3 / 4 * 7e9 / 3e11 / 0.7 + 2 * hops_s)
    across_s = hops_s * datasheet.NETWORK_HOP_S / datasheet.HOP_S
    assert apart.value == pytest.approx(2 * 3 / 4 * 7e9 / 1e10 / 0.7 + hops_s + across_s)
    # two tensor-parallel ranks of a node have a ring each, and one way out between them
    split = datasheet.step_s(work, Parallel(4, 2), GPU, 2, 1e10, "bf16")
    assert split.value == pytest.approx(2 * 3 / 4 * 7e9 / 5e9 / 0.7 + hops_s + across_s)


def test_shards_of_one_node_do_not_use_the_network() -> None:
    work = StepWork({("mm", "bf16"): (0.0, 0.0)}, sharded={"all_gather": 8e9, "reduce_scatter": 4e9})
    within = datasheet.step_s(work, Parallel(2, 1, 4), GPU, 2, 1e10, "bf16")
    across = datasheet.step_s(work, Parallel(1, 1, 8), GPU, 2, 1e10, "bf16")
    buckets = math.ceil(8e9 / datasheet.BUCKET_BYTES) + math.ceil(4e9 / datasheet.BUCKET_BYTES)
    assert within.value == pytest.approx(3 / 4 * 12e9 / 3e11 / 0.7 + buckets * 2 * datasheet.HOP_S)
    hops_s = 2 * datasheet.HOP_S + datasheet.NETWORK_HOP_S
    assert across.value == pytest.approx(7 / 8 * 12e9 / 1e10 / 0.7 + buckets * hops_s)


def test_regression_a_step_of_many_small_operators_took_less_than_they_take_to_start() -> None:
    work = StepWork({("mm", "bf16"): (1e6, 1e6)}, calls=519)
    step = datasheet.step_s(work, Parallel(), GPU, 1, 1e10, "bf16")
    assert (step.value, step.low, step.high) == pytest.approx((519 / 1e5, 519 / 2.5e5, 519 / 3.3e4))
    large = replace(work, operators={("mm", "bf16"): (312e12, 1e6)})
    assert datasheet.step_s(large, Parallel(), GPU, 1, 1e10, "bf16").value == pytest.approx(2.0)


def test_regression_small_collectives_of_many_gpus_cost_nothing() -> None:
    work = StepWork({("mm", "bf16"): (0.0, 0.0)}, tensor={"all_reduce": 96.0}, tensor_calls=96)
    step = datasheet.step_s(work, Parallel(1, 8), GPU, 1, 1e10, "bf16")
    assert step.value == pytest.approx(96 * 2 * 3 * datasheet.HOP_S, rel=1e-3)
    assert step.low > 0.4 * step.value


def test_an_all_reduce_hides_behind_a_part_of_the_last_backward_pass_alone() -> None:
    compute, exchange = Estimate(3.0, 2.0, 4.0, "assumed"), Estimate(1.5, 1.2, 5.0, "assumed")
    assert datasheet.beside(compute, exchange) == Estimate(3.0 + 1.5 - 1.0, 2.0, 9.0, "assumed")
    assert datasheet.beside(compute, exchange, 4).value == pytest.approx(3.0 + 1.5 - 0.25)


def test_a_convolution_in_fp32_may_take_fewer_products_than_it_is_defined_by() -> None:
    old = replace(GPU, flops={"fp32": 15e12, "tf32": 15e12, "fp16": 120e12})
    steps = [
        datasheet.step_s(StepWork({(name, "tf32"): (15e12, 1.0)}), Parallel(), old, 1, 1e10, "")
        for name in ("convolution", "mm")
    ]
    assert steps[0].value == steps[1].value
    assert steps[0].low == pytest.approx(steps[1].low / datasheet.WINOGRAD)


def test_the_gradients_of_a_trace_are_not_counted_as_tensor_parallel() -> None:
    point = RankBatch(Parallel(2), 4)
    work = datasheet.traced(trace(point, 1, parameters=1000, collectives={"all_reduce": 4000}))
    assert work.tensor == {}
    assert work.data == {"all_reduce": 4000}
    split = datasheet.traced(trace(RankBatch(Parallel(1, 2), 4), 1, parameters=1000, collectives={"all_reduce": 900}))
    assert (split.tensor, split.data) == ({"all_reduce": 900}, {})
    both = datasheet.traced(trace(RankBatch(Parallel(2, 2), 4), 1, parameters=1000, collectives={"all_reduce": 4900}))
    assert (both.tensor, both.data) == ({"all_reduce": 900}, {"all_reduce": 4000})


def test_cost_is_gpus_times_time_times_what_the_type_is_worth() -> None:
    step = datasheet.step_s(StepWork({("step", ""): (312e12 * 0.35, None)}), Parallel(), GPU, 1, 1e10, "bf16")
    assert datasheet.cost_of(step, 4, gpu(cost=2.5)).value == pytest.approx(10.0)


@given(
    st.floats(1e9, 1e16),
    st.floats(1e6, 1e13),
    st.floats(0, 1e11),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_a_step_lies_within_its_interval_and_more_work_takes_no_less(
    flops: float, moved: float, exchanged: float, dp: int, tp: int, nodes: int
) -> None:
    parallel = Parallel(dp * nodes, tp)
    work = StepWork({("a", "bf16"): (flops, moved)}, {"all_reduce": exchanged}, {}, {"all_reduce": exchanged})
    step = datasheet.step_s(work, parallel, GPU, nodes, 1e10, "bf16")
    assert 0 < step.low <= step.value <= step.high
    assert datasheet.step_s(work.scaled(2), parallel, GPU, nodes, 1e10, "bf16").value >= step.value
    halfway = datasheet.between(work, work.scaled(2), 0.5)
    assert step.value <= datasheet.step_s(halfway, parallel, GPU, nodes, 1e10, "bf16").value


def test_regression_all_arithmetic_was_timed_in_one_precision() -> None:
    """An operator takes what its own products take: fp32 is sixteen times slower here, and no bf16 has a V100."""
    flops = 1e12

    def took(own: str, gpu: GpuType, asked: str = "") -> float:
        return datasheet.step_s(StepWork({("mm", own): (flops, 1.0)}), Parallel(), gpu, 1, 1e10, asked).value

    old = replace(GPU, flops={"fp32": 15e12, "fp16": 120e12})
    assert took("bf16", GPU) == pytest.approx(flops / (GPU.flops["bf16"] * 0.5))
    assert took("fp32", GPU) == pytest.approx(flops / (GPU.flops["fp32"] * 0.5))
    assert took("fp64", GPU) == 2 * took("fp32", GPU)
    assert took("fp32", GPU, "bf16") == took("bf16", GPU)
    assert took("fp16", old) == took("bf16", old) / 8
    mixed = StepWork({("mm", "bf16"): (flops, 1.0), ("mm", "fp32"): (flops, 1.0)})
    assert datasheet.step_s(mixed, Parallel(), GPU, 1, 1e10, "").value == took("bf16", GPU) + took("fp32", GPU)
