"""The hybrid splits that `bft size profile` adds once it has timed the extremes of all stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sizing.base.errors import NoTable, UsageError
from sizing.cells.cell import Cell
from sizing.cells.comm.protocol import Communication
from sizing.cells.plan_estimate import assembly, hybrids
from sizing.cells.shards import ShardProfile, StageShard
from sizing.model.graph import Graph


def close(
    cells: Iterable[Cell], graph: Graph, profiles: Iterable[ShardProfile], comm: Communication, global_batch: int
) -> list[StageShard]:
    """Return the hybrids of stages whose extremes, with collectives, are within 15 % of each other on one node.

    Cells with links that have no communication table are skipped: they cannot be estimated at all.
    """
    known = {each.shard: each for each in profiles}
    found: dict[StageShard, None] = {}
    for cell in cells:
        for device in {each.device for each in known.values()}:
            here = replace(cell, gpu_type=device)
            try:
                whole = assembly(
                    here,
                    graph,
                    known,
                    comm,
                    global_batch=global_batch,
                    per_node=here.gpus,
                    gpu_bytes=float("inf"),
                )
                found.update(dict.fromkeys(hybrids(whole)))
            except (NoTable, UsageError):
                continue
    return list(found)
