"""From a model's sizes to a cell's estimate, with the real profiler and the real measurement of gloo."""

from __future__ import annotations

import pytest

from bftd.cli.size.cells import graph_of
from sizing.base.parallel import Parallel
from sizing.cells import stages
from sizing.cells.comm.bench import bench
from sizing.cells.comm.table import CommTables
from sizing.cells.plan_estimate import assembly, fastest
from sizing.cells.required import wanted
from sizing.model.config import parse
from sizing.profiles.profile import profile

pytestmark = pytest.mark.slow

SIZES = "gpt:h=64,l=4,a=4,s=32,V=128"


@pytest.mark.torch
def test_cells_of_two_cpu_ranks_are_estimated_from_profiles_and_gloo_alone() -> None:
    graph = graph_of(None, SIZES, 8, 1, "", 60.0)
    cells = stages.cells(graph, 2, "cpu")
    assert [len(cell.stages) for cell in cells] == [1, 2]
    shards = {shard: None for cell in cells for shard in wanted(cell, 16)}
    profiles = {each.shard: each for each in profile(parse(SIZES), list(shards), device="cpu", rounds=3)}
    tables, _ = bench(2, day="", rounds=2, max_bytes=2**20, kinds=("all_reduce", "send_recv"))
    comm = CommTables(tables)
    for cell in cells:
        found = fastest(assembly(cell, graph, profiles, comm, global_batch=16, per_node=2, gpu_bytes=2**36))
        assert found.best is not None
        assert found.best.step_s.value > 0
        assert found.best.step_s.origin in ("interpolated", "formula")
        if len(cell.stages) == 1:
            assert found.tried == 2
            assert found.best.splits[0] in (Parallel(2, 1), Parallel(1, 2))
        else:
            assert found.best.micro_batches == 8
            slowest = max(profiles[shard].compute_s.value for shard in wanted(cell, 16))
            assert found.best.step_s.value > 8 * slowest
