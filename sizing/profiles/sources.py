"""Reads the profiles that an estimate needs from the cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sizing.base.errors import NoProfile
from sizing.cells.cell import Cell
from sizing.cells.shards import ShardProfile, StageShard
from sizing.model.graph import Graph
from sizing.profiles.profile import Setting, Source
from sizing.profiles.store import Store


def profiles_for(
    cells: Sequence[Cell],
    graph: Graph,
    source: Source,
    *,
    wanted: Collection[StageShard] | None = None,
    device: str = "",
    setting: Setting | None = None,
    store: Store | None = None,
) -> Mapping[StageShard, ShardProfile]:
    """Return the profiles of a model on one type of device, by shard, without shards that did not fit in its memory.

    `device` defaults to the cells' type. With `wanted`, none of these shards may be missing; without, each stage of
    each cell must have at least one. Raises NoProfile, with the command that makes them.
    """
    store, setting = store or Store(), setting or Setting()
    kinds = {device} if device else {cell.gpu_type for cell in cells}
    if len(kinds) != 1:
        raise NoProfile(f"profiles are of one type of GPU, and these cells are of {', '.join(sorted(kinds)) or 'none'}")
    kind = kinds.pop()
    model = store.model(source)
    name = source if isinstance(source, str) else "--config ..."
    how = f"run bft size profile {name} on {'this CPU' if kind == 'cpu' else f'one {kind} (--partition)'}"
    if model is None:
        raise NoProfile(f"{name} was not profiled as it is now: {how}")
    found = store.all(model, kind, setting)
    tried = {(shard.first, shard.last) for shard in found}
    if wanted is not None:
        missing = [shard for shard in wanted if shard not in found]
    else:
        spans = sorted({(stage.first, stage.last) for cell in cells for stage in cell.stages} - tried)
        missing = [StageShard(first, last, graph.batch, 1) for first, last in spans]
    if missing:
        others = [each for each in store.devices(model) if each != kind]
        elsewhere = f" (it was on {', '.join(others)})" if others and not found else ""
        raise NoProfile(f"{model.name} lacks {len(missing)} profiles on {kind}{elsewhere}: {how}")
    return {shard: result for shard, result in found.items() if isinstance(result, ShardProfile)}
