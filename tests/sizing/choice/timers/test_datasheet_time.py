"""The assumed time and memory of pipelines, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sizing.base.errors import DoesNotFit
from sizing.base.parallel import Parallel
from sizing.cells.size_graph import chain
from sizing.choice.by_formula import Formula
from sizing.choice.layout import Spread
from sizing.choice.run_timers import ByGraph
from sizing.choice.timers.datasheet_time import Assumed
from sizing.inventory.shapes import GpuShape
from sizing.model.config import parse
from sizing.model.graph import Graph, Operator
from sizing.step_time import datasheet
from tests.sizing.choice.cells_of import pool
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

GPT = parse("gpt:h=1024,l=24,a=16,s=1024,V=50257,precision=bf16,recompute=full")
CUT = ByGraph(chain(GPT, 8))


def timer(global_batch: int = 64, tensor: bool = False) -> Assumed:
    return Assumed(Formula(GPT), Formula(GPT), global_batch, Spread(tensor=tensor, heads=16), CUT)


def test_one_stage_takes_what_part_1_says() -> None:
    shape = GpuShape(pool(), 1, 4)
    found = timer().time(shape, 1)
    work = Formula(GPT).work(Parallel(4), 16)
    assert work is not None
    plain = datasheet.step_s(work, Parallel(4), shape.pool.gpu, 1, 1.25e10, "bf16")
    assert found.step_s.value == pytest.approx(plain.value)
    assert found.step_s.low == pytest.approx(plain.low)
    assert found.step_s.high == pytest.approx(plain.high)
    assert found.peak == Formula(GPT).peak(Parallel(4), 16)
    assert found.micro_batches == 1


def test_a_pipeline_takes_its_stages_and_their_bubble() -> None:
    shape = GpuShape(pool(), 1, 4)
    found = timer().time(shape, 4)
    assert (len(found.splits), found.micro_batches) == (4, 16)
    work = Formula(GPT).work(Parallel(), 64)
    assert work is not None
    whole = datasheet.step_s(work, Parallel(), shape.pool.gpu, 1, 1.25e10, "bf16").value
    parts = [part.flops for part in CUT.parts(4, 4)]
    sent_s = 3 * 2 * 1024 * 1024 * 2 * 64 / shape.pool.gpu.link_bytes_s / 0.7
    bubble = (whole * sum(parts) + sent_s + 15 * (whole * max(parts))) / 16
    assert found.step_s.value == pytest.approx(bubble, rel=0.01)
    assert found.step_s.origin == "assumed"


def test_what_stages_send_on_takes_its_time_on_the_link_and_between_nodes_on_the_network() -> None:
    def step_s(link_bytes_s: float, nodes: int) -> float:
        there = pool()
        slow = replace(there, gpu=replace(there.gpu, link_bytes_s=link_bytes_s))
        return timer().time(GpuShape(slow, nodes, 4 // nodes), 4).step_s.value

    sent = CUT.parts(4, 4)[0].sent_bytes * 2 * 64
    assert sent > 0
    # three cuts over the whole batch, and the slowest stage's for all micro-batches but one
    sends = (3 + 15) / 16 * sent / 0.7
    assert step_s(1e9, 1) - step_s(1e12, 1) == pytest.approx(sends / 1e9, rel=0.01)
    assert step_s(1e12, 2) - step_s(1e12, 1) == pytest.approx(sends / 1.25e10, rel=0.1)


def test_stages_share_memory() -> None:
    shape = GpuShape(pool(), 1, 4)
    alone = Formula(GPT).peak(Parallel(), 64)
    assert alone is not None
    found = timer().time(shape, 4)
    assert found.peak.value < alone.value / 2
    assert found.peak.origin == "assumed"


def test_the_parts_of_layers_are_the_whole() -> None:
    for count in (2, 4, 8):
        parts = CUT.parts(8, count)
        assert sum(part.flops for part in parts) == pytest.approx(1)
        assert sum(part.gpus for part in parts) == 8
        assert parts[-1].sent_bytes == 0
    with pytest.raises(DoesNotFit, match=pattern("sizing.cells_stages.too_few_operators", n_stages=32)):
        CUT.parts(32, 32)


def test_a_batch_that_cannot_be_cut_is_told() -> None:
    with pytest.raises(DoesNotFit, match=pattern("sizing.assumed.batch_not_cut", global_batch=6)):
        timer(6).time(GpuShape(pool(), 1, 4), 1)


def test_a_model_that_is_too_large_for_a_gpu_says_by_how_much() -> None:
    small = replace(pool(), gpu_bytes=2**30)
    with pytest.raises(DoesNotFit, match=pattern("sizing.assumed.too_large", gpu_bytes="1.0")) as raised:
        timer(8).time(GpuShape(small, 1, 4), 1)
    assert 1 < raised.value.times < 100


def test_tensor_parallelism_stays_on_a_node_and_divides_the_heads() -> None:
    found = timer(4, tensor=True).time(GpuShape(pool(), 2, 4), 1)
    assert found.splits[0].tp in (2, 4)


def test_a_model_of_unknown_operators_is_one_stage() -> None:
    alone = Assumed(Formula(GPT), Formula(GPT), 64, Spread())
    with pytest.raises(DoesNotFit, match="not known"):
        alone.time(GpuShape(pool(), 1, 4), 2)


def test_a_graph_is_cut_by_its_stages() -> None:
    operators = tuple(Operator(f"op{at}", "", 100 * (at + 1), 64, 10) for at in range(4))
    graph = Graph("model", 8, operators, "export")
    cut = ByGraph(graph)
    first, last = cut.parts(4, 2)
    assert (first.flops, first.weights, first.sent_bytes) == (0.6, 0.75, 8)
    assert (last.flops, last.gpus) == (0.4, 2)
    with pytest.raises(DoesNotFit, match=pattern("sizing.cells_stages.too_few_operators", n_stages=8)):
        cut.parts(8, 8)
