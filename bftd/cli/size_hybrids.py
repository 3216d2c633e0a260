"""Which hybrids `bft size profile` adds once it has timed the extremes of all stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sizing.cells.cell import Cell
    from sizing.cells.graph import Graph
    from sizing.cells.links import Communication
    from sizing.cells.shards import Shard, ShardProfile


def close(
    cells: Iterable[Cell], graph: Graph, profiles: Iterable[ShardProfile], comm: Communication, global_batch: int
) -> list[Shard]:
    """The hybrids of stages whose extremes are within 15 % of each other, collectives included, as on one node.

    None for links without a table: without one there is no estimate either.
    """
    from sizing.cells.assemble import assembly, hybrids
    from sizing.errors import NoTable, UsageError

    known = {each.shard: each for each in profiles}
    found: dict[Shard, None] = {}
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
