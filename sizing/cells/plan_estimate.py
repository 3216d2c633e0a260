"""Assembles a cell's best sampled plan from profiles of single shards and communication tables.

Nothing runs here. Each stage has the splits that were profiled; those that do not fit its GPUs are dropped. The fastest
combination of the others is the cell's estimate (Crius, section 5.1: 2^Ns plans from two samples per stage, here up to
3^Ns from three).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sizing.base.errors import NoProfile, UsageError
from sizing.base.estimate import Estimate, Origin, worst
from sizing.base.parallel import Parallel
from sizing.cells import search
from sizing.cells.cell import Cell, CellEstimate, CellPlan, Stage
from sizing.cells.comm.protocol import Communication
from sizing.cells.pipeline_time import Hiding, StageTimes, iteration_s, reduce_s
from sizing.cells.placing import data_rings, tensor_link, usable_per_node
from sizing.cells.required import (
    CLOSE,
    extremes_of,
    hybrid_of,
    micro_batches_of,
    more_micro_batches,
    shard_of,
    splits_of,
)
from sizing.cells.shards import ShardProfile, StageShard
from sizing.cells.stage_transfers import NOTHING, times, total, transfer
from sizing.memory.peak import guarded_bytes
from sizing.model.graph import Graph

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's own default (bucket_cap_mb=25)."""

Schedule = Literal["gpipe", "1f1b"]
"""gpipe: all forward passes, then all backward passes; 1f1b: each backward pass as soon as possible."""


@dataclass(frozen=True, slots=True)
class ProfiledSplit:
    """One profiled split of a stage: its seconds, divided as in StageTimes, and its memory."""

    split: Parallel
    work_s: Estimate
    bucket_s: Estimate
    buckets: int
    update_s: Estimate
    peak: Estimate

    def times(self, which: str) -> StageTimes:
        """Return the times at `which` of "value", "low" and "high"."""
        return StageTimes(
            getattr(self.work_s, which),
            bucket_s=getattr(self.bucket_s, which),
            buckets=self.buckets,
            update_s=getattr(self.update_s, which),
        )

    @property
    def origin(self) -> Origin:
        """The worst origin of its times."""
        return worst(self.work_s.origin, self.bucket_s.origin, self.update_s.origin)


@dataclass(frozen=True)
class Assembly:
    """A cell with all the data that its plans are assembled from.

    `per_node` is the number of GPUs of one node, `gpu_bytes` the memory of one GPU. Raises UsageError if the global
    batch cannot be cut into `micro_batches`.
    """

    cell: Cell
    graph: Graph
    profiles: Mapping[StageShard, ShardProfile]
    comm: Communication
    global_batch: int
    per_node: int
    gpu_bytes: float
    micro_batches: int
    schedule: Schedule = "gpipe"
    bucket_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        if self.per_node < 1:
            raise UsageError(f"{self.per_node} GPUs a node: at least 1")
        micro_batches_of(self.cell, self.global_batch, self.micro_batches)

    @property
    def micro_batch(self) -> int:
        """The samples of one micro-batch, over all replicas."""
        return self.global_batch // self.micro_batches

    @property
    def hiding(self) -> Hiding:
        """The communication that overlaps with computation, for the value of an estimate.

        A GPU has separate engines for the two. gloo's threads compute on the same cores as the model.
        """
        return "none" if self.cell.gpu_type == "cpu" else "buckets"

    def sample(self, index: int, split: Parallel) -> ProfiledSplit | None:
        """Return the sample of a stage's split; None if it was not profiled.

        Raises NoTable, and NoProfile for a profile of another device.
        """
        stage = self.cell.stages[index]
        shard = shard_of(stage, split, self.micro_batch)
        profile = self.profiles.get(shard) if shard is not None else None
        if profile is None:
            return None
        if profile.device != self.cell.gpu_type:
            raise NoProfile(
                f"the profile of operators {stage.first} to {stage.last} was made on {profile.device}, "
                f"not on {self.cell.gpu_type}; run `bft size profile` on that type"
            )
        per_node = usable_per_node(self.per_node)
        link = tensor_link(self.cell, index, split, per_node)
        exchanges = [times(each.calls, self.comm.time_s(each.kind, each.bytes, link)) for each in profile.exchanges]
        bucket_s, buckets = NOTHING, 0
        moved = gradient_bytes(profile)
        if split.dp > 1 and moved:
            rings = data_rings(self.cell, index, split, per_node)
            buckets = math.ceil(moved / self.bucket_bytes)
            bucket_s = self.comm.time_s("all_reduce", moved / buckets * rings.at_once, rings.link)
        held = in_flight(self.schedule, self.micro_batches, len(self.cell.stages), index)
        return ProfiledSplit(
            split,
            total(profile.compute_s, *exchanges),
            bucket_s,
            buckets,
            profile.update_s,
            peak_of(profile, held, split.dp),
        )

    def transfer(self, index: int, before: Parallel, own: Parallel) -> Estimate:
        """Estimate the transfer of a micro-batch's activations into a stage and of their gradients back."""
        sent_bytes = self.cell.stages[index - 1].across_bytes * self.micro_batch / self.graph.batch
        return transfer(self.cell, index, sent_bytes, before, own, self.comm, usable_per_node(self.per_node))

    def plan(self, samples: Sequence[ProfiledSplit]) -> CellPlan:
        """Return the plan of one split per stage, whether it fits or not."""
        splits = tuple(sample.split for sample in samples)
        moves = [NOTHING, *(self.transfer(i, splits[i - 1], splits[i]) for i in range(1, len(splits)))]

        def step_s(which: str, hiding: Hiding) -> float:
            stages = [
                replace(sample.times(which), transfer_s=getattr(move, which))
                for sample, move in zip(samples, moves, strict=True)
            ]
            return iteration_s(stages, self.micro_batches, hiding)

        value = step_s("value", self.hiding)
        parts = worst(*(sample.origin for sample in samples), *(move.origin for move in moves))
        alone = self.cell.gpus == 1 and self.micro_batches == 1
        return CellPlan(
            self.cell,
            splits,
            self.micro_batches,
            Estimate(
                value,
                min(step_s("low", "all"), value),
                max(step_s("high", "none"), value),
                parts if alone else worst(parts, "formula"),
            ),
            tuple(sample.peak for sample in samples),
        )

    def dropped(self, index: int, sample: ProfiledSplit) -> str:
        """Return the reason why a split does not fit these GPUs, or "" if it fits."""
        if sample.peak.high <= self.gpu_bytes:
            return ""
        over = (sample.peak.high - self.gpu_bytes) / 2**30
        return (
            f"stage {index + 1}, {name_of(sample.split)}: needs {sample.peak.high / 2**30:.1f} GiB of "
            f"{self.gpu_bytes / 2**30:.1f} ({over:.1f} too many)"
        )

    def stage_s(self, index: int, sample: ProfiledSplit) -> float:
        """Return the seconds of a split's own part of an iteration, to compare the splits of one stage."""
        stage = sample.times("value")
        return self.micro_batches * stage.work_s + reduce_s(stage, self.hiding) + stage.update_s


def in_flight(schedule: Schedule, micro_batches: int, stages: int, stage: int) -> int:
    """Return the number of micro-batches whose activations a stage (from 0) holds at once.

    Without a pipeline, each micro-batch's backward pass follows its forward pass.
    """
    if stages == 1:
        return 1
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)


def gradient_bytes(profile: ShardProfile) -> int:
    """Return the bytes of gradients that replicas sum.

    A gradient has its weight's precision, at most fp32; buffers have none.
    """
    return min(profile.weight_bytes, 4 * profile.parameters)


def peak_of(profile: ShardProfile, held: int, replicas: int) -> Estimate:
    """Return the peak of one GPU with `held` micro-batches in flight; `high` is the memory that the GPU needs.

    `high` includes the guard band. DistributedDataParallel copies gradients into buckets as large as all of them; `low`
    excludes those.
    """
    stacked = profile.peak_bytes + (held - 1) * profile.activation_bytes
    buckets = gradient_bytes(profile) if replicas > 1 else 0
    peak = stacked + buckets
    measured = held == 1 and not buckets
    return Estimate(peak, stacked, guarded_bytes(peak), "measured" if measured else "formula")


def name_of(split: Parallel) -> str:
    """Return a split in words."""
    return f"dp {split.dp} x tp {split.tp}"


def assembly(
    cell: Cell,
    graph: Graph,
    profiles: Mapping[StageShard, ShardProfile],
    comm: Communication,
    *,
    global_batch: int,
    per_node: int,
    gpu_bytes: float,
    micro_batches: int | None = None,
    schedule: Schedule = "gpipe",
) -> Assembly:
    """Make an Assembly; without `micro_batches` their number is that of `micro_batches_of` (4 per stage)."""
    count = micro_batches_of(cell, global_batch, micro_batches)
    return Assembly(cell, graph, profiles, comm, global_batch, per_node, gpu_bytes, count, schedule)


def fastest(whole: Assembly) -> CellEstimate:
    """Return the fastest plan of the cell whose splits were all profiled and fit its GPUs.

    If none fits, a cell of one stage is tried with more micro-batches (with accumulated gradients), as far as these
    were profiled. Raises NoProfile if no split of a stage was profiled, NoTable if a link's times are unknown.
    """
    said: list[str] = []
    missing: NoProfile | None = None
    count: int | None = whole.micro_batches
    while count is not None:
        try:
            found = _fastest(replace(whole, micro_batches=count))
        except NoProfile as error:
            if missing is not None:
                raise missing from None
            if said:
                said.append(f"more micro-batches may fit: {count} were not profiled")
                break
            missing = error  # or profiling found every split too large
        else:
            said += [f"{why}, {count} micro-batches" if count > whole.micro_batches else why for why in found.dropped]
            if found.best is not None:
                return replace(found, dropped=tuple(said))
        count = more_micro_batches(whole.cell, whole.global_batch, count)
    if missing is not None and not said:
        raise missing
    return CellEstimate(whole.cell, None, 0, tuple(said))


def _fastest(whole: Assembly) -> CellEstimate:
    """Return the cell's fastest plan with the assembly's number of micro-batches."""
    cell = whole.cell
    found: list[list[ProfiledSplit]] = []
    said: list[str] = []
    for index, stage in enumerate(cell.stages):
        sampled = [sample for split in splits_of(stage) if (sample := whole.sample(index, split)) is not None]
        if not sampled:
            raise NoProfile(
                f"stage {index + 1} of {len(cell.stages)} (operators {stage.first} to {stage.last}) has no profile on "
                f"{cell.gpu_type} for micro-batches of {whole.micro_batch}: run `bft size profile` there; if it was, "
                "none of the splits fits that GPU"
            )
        reasons = {sample.split: whole.dropped(index, sample) for sample in sampled}
        said += [reason for reason in reasons.values() if reason]
        found.append([sample for sample in sampled if not reasons[sample.split]])
    if not all(found):
        return CellEstimate(cell, None, 0, tuple(said))
    moves: dict[tuple[int, int, int], float] = {}

    def move_s(index: int, before: int, own: int) -> float:
        key = (index, before, own)
        if key not in moves:
            moves[key] = whole.transfer(index, found[index - 1][before].split, found[index][own].split).value
        return moves[key]

    options = [[sample.times("value") for sample in of_stage] for of_stage in found]
    chosen = search.best(options, move_s, whole.micro_batches, whole.hiding)
    plan = whole.plan([of_stage[own] for of_stage, own in zip(found, chosen, strict=True)])
    return CellEstimate(cell, plan, math.prod(len(of_stage) for of_stage in found), tuple(said))


def hybrids(whole: Assembly) -> tuple[StageShard, ...]:
    """Return the third samples that are still missing, once the extremes of all stages are profiled.

    A stage needs one if an extreme does not fit or was not sampled, or if its extremes are within 15 % of each other.
    """
    found = []
    for index, stage in enumerate(whole.cell.stages):
        middle = hybrid_of(stage)
        shard = shard_of(stage, middle, whole.micro_batch) if middle else None
        if shard is None or shard in whole.profiles:
            continue
        if _is_open(whole, index, stage):
            found.append(shard)
    return tuple(found)


def _is_open(whole: Assembly, index: int, stage: Stage) -> bool:
    ends = [whole.sample(index, split) for split in extremes_of(stage)]
    if any(end is None or whole.dropped(index, end) for end in ends):
        return True
    took = sorted(whole.stage_s(index, end) for end in ends if end is not None)
    return took[-1] - took[0] <= CLOSE * took[-1]
