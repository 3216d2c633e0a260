"""The curve that an estimate gives: what more nodes bring, how sure that is, and what it follows from."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.child.stepping import RealStep
from sizing.choice import curves
from sizing.choice.curves import Curve, Nodes
from sizing.inventory.gpus import CATALOGUE
from sizing.model.trace import CATEGORIES, OperatorTotals, StepTrace
from sizing.step_time import datasheet

A100 = CATALOGUE["a100-sxm-80gb"]
V100 = CATALOGUE["v100-sxm-32gb"]


def trace(flops: int = 10**13, parameters: int = 10**8, batch: int = 32) -> StepTrace:
    nothing = dict.fromkeys(CATEGORIES, 0)
    operators = (OperatorTotals("mm", 10, flops, 10**9),)
    return StepTrace(batch, Parallel(), "cuda", 0, nothing, parameters, operators, {}, "2.13", 1.0)


def values(curve: Curve) -> dict[int, float]:
    return {nodes: rate.value for nodes, rate in curve}


def test_one_worker_alone_makes_its_batch_in_the_time_of_the_rule_for_a_step() -> None:
    nodes = Nodes("a100x1", 1, A100, 1)
    [(size, rate)] = curves.on_gpus(trace(), nodes, [1], "bf16")
    step = datasheet.step_s(datasheet.traced(trace()), Parallel(), A100, 1, 1e10, "bf16")
    assert (size, rate.origin) == (1, "assumed")
    assert (rate.value, rate.low, rate.high) == pytest.approx((32 / step.value, 32 / step.high, 32 / step.low))


def test_without_anything_to_exchange_n_nodes_are_n_times_as_fast() -> None:
    found = values(curves.on_gpus(trace(parameters=0), Nodes("a100x4", 4, A100, 4), [1, 2, 8]))
    assert found[2] == pytest.approx(2 * found[1])
    assert found[8] == pytest.approx(8 * found[1])


def test_the_all_reduce_costs_what_does_not_hide_behind_the_backward_pass() -> None:
    slow = Nodes("a100x1", 1, A100, 1, network_bytes_s=1e10)
    one, two = curves.on_gpus(trace(parameters=10**8), slow, [1, 2], "bf16")
    step_s = 32 / one[1].value
    exchanged = datasheet.all_reduce_s(4 * 10**8, 2, 2, 1e10)
    assert 64 / two[1].value == pytest.approx(
        datasheet.beside(Estimate(step_s, 0.0, step_s, "assumed"), exchanged).value
    )
    assert exchanged.value > 4 * 10**8 / 1e10 / datasheet.LINKS.usual


def test_workers_that_share_a_gpu_take_turns() -> None:
    alone = values(curves.on_gpus(trace(parameters=0), Nodes("v100x2", 2, V100, 2), [1]))
    shared = values(curves.on_gpus(trace(parameters=0), Nodes("v100x2", 4, V100, 2), [1]))
    assert shared[1] == pytest.approx(alone[1])


def test_a_faster_gpu_and_a_node_with_more_of_them_are_faster() -> None:
    one = values(curves.on_gpus(trace(), Nodes("v100x1", 1, V100, 1), [1]))[1]
    assert values(curves.on_gpus(trace(), Nodes("a100x1", 1, A100, 1), [1]))[1] > one
    assert values(curves.on_gpus(trace(), Nodes("v100x4", 4, V100, 4), [1]))[1] > one


def test_on_cpus_a_measured_step_is_spread_over_the_cores_of_a_worker() -> None:
    ran = RealStep(16, 2.0, 0)
    whole = values(curves.on_cpus(ran, Nodes("cpu8", 1, cpus=8), [1]))[1]
    assert whole == pytest.approx(16 / 2.0 * 8 * curves.CORES.usual)
    assert values(curves.on_cpus(ran, Nodes("cpu8", 2, cpus=8), [1]))[1] == pytest.approx(whole)
    assert values(curves.on_cpus(ran, Nodes("cpu1", 1, cpus=1), [1]))[1] == pytest.approx(8.0), (
        "never slower than a core"
    )


@given(
    st.integers(10**6, 10**15),
    st.integers(0, 10**11),
    st.integers(1, 8),
    st.floats(1e6, 1e12),
    st.sets(st.integers(1, 1000), min_size=1, max_size=8),
)
def test_more_nodes_are_never_slower_never_more_than_in_proportion_and_every_value_lies_between_its_bounds(
    flops: int, parameters: int, workers: int, network_bytes_s: float, sizes: set[int]
) -> None:
    nodes = Nodes("c", workers, V100, 4, network_bytes_s=network_bytes_s)
    ran = RealStep(32, flops / 1e10, parameters)
    for made in (curves.on_gpus(trace(flops, parameters), nodes, sizes), curves.on_cpus(ran, nodes, sizes)):
        assert [size for size, _ in made] == sorted(sizes)
        for (before, slow), (after, fast) in itertools.pairwise(made):
            assert 0 < slow.value <= fast.value
            assert slow.low <= fast.low
            assert slow.high <= fast.high
            assert fast.value / after <= slow.value / before * (1 + 1e-9)


@pytest.mark.parametrize(
    ("low", "high", "only", "expected"),
    [
        (1, 1, (), (1,)),
        (1, 6, (), (1, 2, 4, 6)),
        (3, 20, (), (3, 4, 8, 16, 20)),
        (1, 64, (), (1, 2, 4, 8, 16, 32, 64)),
        (1, 64, (2, 3, 60), (2, 3, 60)),
        (5, 6, (5, 6), (5, 6)),
    ],
)
def test_a_curve_is_worked_out_at_both_ends_and_at_powers_of_two(
    low: int, high: int, only: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert curves.sizes_of(low, high, only) == expected


def test_however_many_nodes_there_are_the_curve_has_few_points() -> None:
    assert len(curves.sizes_of(1, 1_000_000)) <= 32
    assert len(curves.sizes_of(1, 4096, range(1, 4097))) <= 32
