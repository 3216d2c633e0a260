"""Speeds by data sheets: models have the sizes of their names, and rates keep what any real rate keeps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.inventory.gpus import CATALOGUE, GIB
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer
from sizing.model import config
from sizing.step_time import datasheet
from studies.simulation.clusters import Pool, capacity, of_inventory, table1
from studies.simulation.models import StageLoad, Transformer, WideResNet, table2
from studies.simulation.reference import fastest, powers
from studies.simulation.speeds import FormulaSpeeds, with_error
from studies.simulation.types import Allocation

pytestmark = pytest.mark.slow

MODELS = table2()
POOLS = table1()
SPEEDS = FormulaSpeeds(MODELS, POOLS)
names = st.sampled_from(sorted(MODELS))
kinds = st.sampled_from(sorted(POOLS))
counts = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


@pytest.mark.parametrize("name", sorted({name.partition("/")[0] for name in MODELS}))
def test_a_model_has_as_many_parameters_as_its_name_says(name: str) -> None:
    model = next(model for key, model in MODELS.items() if key.startswith(f"{name}/"))
    said = float(name.rpartition("-")[2].removesuffix("b"))
    assert model.parameters / 1e9 == pytest.approx(said, rel=0.07)


def test_the_wide_resnet_is_counted_convolution_by_convolution() -> None:
    # ResNet-50 is the one of width 1 with 64 channels: 23.5 million parameters without its last layer, 4.1 GFLOPs
    plain = WideResNet(64, 1, 256)
    assert plain.parameters - (2048 * 1024 + 1024) == pytest.approx(23.508e6, rel=1e-3)
    load = plain.stage(1, 1, 1, 256)
    assert load is not None
    # forward, forward again and twice backward, two FLOPs a multiplication; the first convolution is left out
    assert load.flops / 4 / 2 == pytest.approx(4.1e9 - 0.12e9, rel=0.03)


def test_the_cluster_of_table_1_has_1280_gpus_of_4_types() -> None:
    assert sum(capacity(POOLS).values()) == 1280
    assert set(capacity(POOLS).values()) == {320}


def test_data_parallelism_fits_small_models_and_no_large_ones() -> None:
    assert SPEEDS.data_parallel_rate("bert-1.3b/256", "a100-sxm-40gb", 1) > 0
    assert SPEEDS.data_parallel_rate("bert-1.3b/256", "a10", 1) == 0
    assert not any(SPEEDS.data_parallel_rate("bert-6.7b/256", kind, 64) for kind in POOLS)
    assert all(fastest(SPEEDS, "bert-6.7b/256", kind, 64)[1] for kind in POOLS)


@given(names, kinds, counts)
@settings(max_examples=60, deadline=None)
def test_adaptive_parallelism_is_never_slower_than_data_parallelism(name: str, kind: str, gpus: int) -> None:
    assert SPEEDS.rate(name, Allocation(kind, gpus)) >= SPEEDS.data_parallel_rate(name, kind, gpus)


@given(names, kinds, counts)
@settings(max_examples=60, deadline=None)
def test_no_rate_beats_the_peak_of_the_gpus(name: str, kind: str, gpus: int) -> None:
    model, peak = MODELS[name], datasheet.peak_flops(POOLS[kind].gpu, MODELS[name].precision)
    whole = model.stage(1, 1, 1, 1)
    assert whole is not None
    rate = fastest(SPEEDS, name, kind, gpus)[1]
    assert rate * whole.flops <= 1.001 * gpus * peak * datasheet.ARITHMETIC.usual


@given(names, kinds, counts, counts)
@settings(max_examples=60, deadline=None)
def test_what_fits_a_gpu_fits_a_larger_one(name: str, kind: str, gpus: int, stages: int) -> None:
    if stages > gpus:
        assert SPEEDS.rate(name, Allocation(kind, gpus, stages)) == 0
        return
    large = {kind: Pool(CATALOGUE["h200-sxm-141gb"], 1024, POOLS[kind].per_node, POOLS[kind].network_bytes_s)}
    if SPEEDS.rate(name, Allocation(kind, gpus, stages)) > 0:
        assert FormulaSpeeds(MODELS, large).rate(name, Allocation(kind, gpus, stages)) > 0


class _Even:
    """A model whose stages are exactly alike, for arithmetic by hand."""

    global_batch, layers, precision, parameters = 16, 4, "fp16", 1

    def stage(self, stages: int, dp: int, tp: int, micro_batches: int) -> StageLoad | None:
        peak = CATALOGUE["a100-sxm-40gb"].memory_bytes if micro_batches == 16 // dp else 1e15
        return StageLoad(312e12 * 0.5 / stages / micro_batches / dp, 0, 0, 0, 0, 7e9, 0, peak, stages)


def test_a_pipeline_is_all_stages_once_and_the_slowest_for_each_further_micro_batch() -> None:
    pool = Pool(CATALOGUE["a100-sxm-40gb"], 8, 4, 1e10)
    speeds = FormulaSpeeds({"even": _Even()}, {"a": pool})
    # 16 micro-batches of 1/16 s on all, in 4 stages: 16/64 s of work, and 3 stages' time until the last is reached
    assert 1 / speeds.rate("even", Allocation("a", 4, 4)) == pytest.approx(16 / 64 + 3 / 64)
    # 8 replicas on two nodes: 1/8 s, and 7/8 of 7 GB over 70 % of 10 GB/s
    assert 1 / speeds.data_parallel_rate("even", "a", 8) == pytest.approx(1 / 8 + 7 / 8)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_replicas_pay_for_the_sum_of_their_gradients_with_and_without_zero(zero: int) -> None:
    model = config.parse(f"gpt:h=1024,l=24,a=16,s=1024,V=50257,precision=fp16,zero={zero}")
    load = Transformer(model, 64).stage(1, 8, 1, 1)
    assert load is not None
    # 4 bytes a gradient are passed on twice; ZeRO scatters them and gathers weights of 2
    assert load.data_bytes == pytest.approx((8 if zero == 0 else 6) * config.parameters(model))
    two = Transformer(model, 64).stage(2, 4, 2, 2)
    assert two is not None
    assert two.data_bytes == pytest.approx(load.data_bytes / 4, rel=0.2)


@given(names, kinds, counts, st.sampled_from([0.1, 0.3]), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_error_is_within_its_bound_and_stays_what_it_is(
    name: str, kind: str, gpus: int, share: float, seed: int
) -> None:
    wrong, again = with_error(SPEEDS, share, seed), with_error(SPEEDS, share, seed)
    allocation = Allocation(kind, gpus)
    true = SPEEDS.rate(name, allocation)
    assert (1 - share) * true <= wrong.rate(name, allocation) <= (1 + share) * true
    assert wrong.rate(name, allocation) == again.rate(name, allocation)
    told, known = wrong.data_parallel_rate(name, kind, gpus), SPEEDS.data_parallel_rate(name, kind, gpus)
    assert (1 - share) * known <= told <= (1 + share) * known


def test_errors_differ_by_allocation_and_by_seed_and_are_none_without_a_share() -> None:
    cells = [Allocation("a40", gpus, stages) for gpus in (8, 16) for stages in powers(8)]
    name = "bert-1.3b/256"
    ratios = {
        with_error(SPEEDS, 0.2, seed).rate(name, cell) / SPEEDS.rate(name, cell) for cell in cells for seed in (1, 2)
    }
    assert len(ratios) == 2 * len(cells)
    assert with_error(SPEEDS, 0.0, 1) is SPEEDS


def test_a_centres_own_cluster_counts_each_node_once() -> None:
    types = {name: CATALOGUE[name] for name in ("t4", "a40")}
    shared = GpuNodes(("n1", "n2"), "t4", 4, 64, 2**39)
    more = GpuNodes(("n2", "n3"), "t4", 4, 64, 2**39, network_bytes_s=1e9)
    other = GpuNodes(("n4",), "a40", 2, 64, 2**39)
    found = of_inventory(Inventory(types, (PartitionOffer("p", (shared, other)), PartitionOffer("q", (more,)))))
    assert capacity(found) == {"t4": 12, "a40": 2}
    assert (found["t4"].per_node, found["t4"].network_bytes_s) == (4, 1e9)
    assert found["a40"].gpu.memory_bytes > 40 * GIB
    with pytest.raises(UsageError, match="bft size inventory"):
        of_inventory(Inventory(types, ()))
