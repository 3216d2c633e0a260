"""Tuning a whole cell on profiles that are made up: what is profiled, what is dropped, and what plan comes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sizing.base.errors import NoTable
from sizing.base.parallel import Parallel
from sizing.cells import plan_estimate
from sizing.cells.cell import Cell
from sizing.cells.comm import table
from sizing.cells.plan_estimate import Assembly
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.cells.tune_cell import TunedCell, tune_cell
from tests.sizing.cells.made import GIB, Wires, cell_of, graph_of, profile_of
from tests.support.messages import says

pytestmark = pytest.mark.slow

Profiler = Callable[[StageShard], ShardProfile | str]


def tuned(
    cell: Cell, profiler: Profiler, *, batch: int = 32, gib: float = 80
) -> tuple[TunedCell, list[StageShard], Assembly]:
    """What comes of a cell, and which shards were profiled."""
    profiles: dict[StageShard, ShardProfile] = {}
    asked: list[StageShard] = []

    def noted(shard: StageShard) -> ShardProfile | str:
        asked.append(shard)
        return profiler(shard)

    whole = plan_estimate.assembly(
        cell, graph_of(cell), profiles, Wires(), global_batch=batch, per_node=8, gpu_bytes=gib * GIB, micro_batches=1
    )
    return tune_cell(whole, profiles, noted), asked, whole


def by_samples(shard: StageShard) -> ShardProfile:
    """Work that replicas share, and tensor parallelism that costs its exchanges."""
    exchanges = (Exchange("all_reduce", 2**24, 4),) if shard.tp > 1 else ()
    return profile_of(shard, shard.batch / 32 / shard.tp, exchanges=exchanges)


def test_only_what_the_tuner_asks_for_is_profiled() -> None:
    found, asked, _ = tuned(cell_of(8), by_samples)
    assert asked == [StageShard(0, 0, 4, 1), StageShard(0, 0, 32, 8), StageShard(0, 0, 8, 2)]
    assert found.plan is not None
    assert found.plan.splits == (Parallel(8, 1),)
    assert found.stages[0].candidates == 4


def test_the_plan_is_that_of_the_fastest_of_the_whole_grid() -> None:
    def one(shard: StageShard) -> ShardProfile:
        return profile_of(shard, {1: 3.0, 2: 2.0, 4: 1.0, 8: 4.0}[shard.tp])

    found, _, _ = tuned(cell_of(8, 8), one)
    assert found.plan is not None
    assert found.plan.splits == (Parallel(2, 4), Parallel(2, 4))


def test_stages_are_tuned_each_for_itself() -> None:
    def one(shard: StageShard) -> ShardProfile:
        return profile_of(shard, 1.0 * shard.tp if shard.first == 0 else 8.0 / shard.tp)

    found, _, whole = tuned(cell_of(4, 4), one)
    assert found.plan is not None
    assert found.plan.splits == (Parallel(4, 1), Parallel(1, 4))
    assert found.plan == whole.plan([whole.sample(0, Parallel(4, 1)), whole.sample(1, Parallel(1, 4))])  # type: ignore[list-item]


def test_a_stage_of_which_only_a_hybrid_fits_is_found() -> None:
    def one(shard: StageShard) -> ShardProfile:
        peaks = {1: 100, 2: 90, 4: 20, 8: 30, 16: 100}
        return profile_of(shard, 1.0, peak_bytes=peaks[shard.tp] * GIB)

    found, _, _ = tuned(cell_of(16), one)
    assert found.plan is not None
    assert found.plan.splits == (Parallel(4, 4),)
    assert says(found.dropped[0], "sizing.cells_assemble.stage_too_large", index=1, split="dp 16 x tp 1")


def test_a_cell_of_which_nothing_fits_has_no_plan_and_says_why() -> None:
    found, _, _ = tuned(cell_of(2), lambda shard: profile_of(shard, 1.0, peak_bytes=99 * GIB))
    assert found.plan is None
    assert len(found.dropped) == 2


def test_a_model_without_tensor_parallelism_is_tuned_by_what_it_has() -> None:
    found, _, _ = tuned(cell_of(4), lambda shard: "no plan" if shard.tp > 1 else profile_of(shard, 1.0))
    assert found.plan is not None
    assert found.plan.splits == (Parallel(4, 1),)
    assert found.dropped[0] == "stage 1, dp 1 x tp 4: no plan"


def test_replicas_that_cannot_share_the_samples_evenly_are_no_candidates() -> None:
    found, asked, _ = tuned(cell_of(8), by_samples, batch=4)
    assert found.stages[0].candidates == 3
    assert all(shard.batch >= 1 for shard in asked)


def test_a_link_that_was_not_measured_ends_it_with_the_command() -> None:
    cell = cell_of(4)
    profiles: dict[StageShard, ShardProfile] = {}
    whole = plan_estimate.assembly(
        cell, graph_of(cell), profiles, table.CommTables(), global_batch=32, per_node=8, gpu_bytes=80 * GIB
    )
    with pytest.raises(NoTable, match="all_reduce_perf"):
        tune_cell(whole, profiles, by_samples)
