"""Tuning of a whole cell: finds each stage's fastest split, with profiles made as the tuner asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sizing.base.parallel import Parallel
from sizing.cells.cell import CellPlan
from sizing.cells.plan_estimate import Assembly, ProfiledSplit, name_of
from sizing.cells.required import shard_of, splits_of
from sizing.cells.shards import ShardProfile, StageShard
from sizing.cells.tune import Tuned, tune

Profiler = Callable[[StageShard], ShardProfile | str]
"""Profiles one shard on the cell's type of device, or returns a text why the device has no memory or no plan for it."""


@dataclass(frozen=True, slots=True)
class TunedCell:
    """A cell's plan of the fastest splits, or None if a stage has none that fits; `stages` are in order.

    `dropped` gives the reasons for splits that were tried and do not fit.
    """

    plan: CellPlan | None
    stages: tuple[Tuned, ...]
    dropped: tuple[str, ...]


def tune_cell(whole: Assembly, profiles: dict[StageShard, ShardProfile], profiler: Profiler) -> TunedCell:
    """Tune each stage by itself, because an iteration's time grows with every stage's time, whatever the others run.

    `profiles` are those of `whole`; new profiles are added to it. Splits whose replicas cannot share a micro-batch
    evenly are not candidates. Transfers between stages do not count in the comparison, only in the plan. Raises
    NoTable, with the command that measures a link, and any error of `profiler`.
    """
    samples: list[dict[Parallel, ProfiledSplit]] = []
    stages: list[Tuned] = []
    dropped: list[str] = []
    for index, stage in enumerate(whole.cell.stages):
        mine: dict[Parallel, ProfiledSplit] = {}

        def measure(
            split: Parallel, shard: StageShard, index: int = index, mine: dict[Parallel, ProfiledSplit] = mine
        ) -> float | None:
            if shard not in profiles:
                made = profiler(shard)
                if isinstance(made, str):
                    dropped.append(f"stage {index + 1}, {name_of(split)}: {made}")
                    return None
                profiles[shard] = made
            sample = whole.sample(index, split)
            assert sample is not None
            if why := whole.dropped(index, sample):
                dropped.append(why)
                return None
            mine[split] = sample
            return whole.stage_s(index, sample)

        shards = {split: shard_of(stage, split, whole.micro_batch) for split in splits_of(stage)}
        options = {
            split: lambda split=split, shard=shard, measure=measure: measure(split, shard)
            for split, shard in shards.items()
            if shard is not None
        }
        stages.append(tune(options))
        samples.append(mine)
    chosen = [mine[tuned.best] for mine, tuned in zip(samples, stages, strict=True) if tuned.best is not None]
    plan = whole.plan(chosen) if len(chosen) == len(stages) else None
    return TunedCell(plan, tuple(stages), tuple(dropped))
