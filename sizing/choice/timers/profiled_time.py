"""The time of a step on a cell whose stages were profiled on that very type of GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sizing.base.errors import DoesNotFit, NoProfile, UsageError
from sizing.base.estimate import Estimate
from sizing.cells.cell import Cell
from sizing.cells.comm.protocol import Communication
from sizing.cells.plan_estimate import Assembly, assembly, fastest, name_of
from sizing.cells.shards import ShardProfile, StageShard
from sizing.cells.stages import stages as cut
from sizing.choice.layout import Layout, TimedLayout
from sizing.inventory.shapes import GpuShape
from sizing.model.graph import Graph

Profiles = Callable[[Cell], Mapping[StageShard, ShardProfile]]
"""A function that returns all profiles of a cell's stages on its type of GPU; it raises NoProfile."""


@dataclass(frozen=True)
class ProfiledTime:
    """A Timer by profiles and communication tables."""

    graph: Graph
    profiles: Profiles
    comm: Communication
    global_batch: int
    _cells: dict[tuple[str, int, int], Cell] = field(default_factory=dict)

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        """Return the fastest plan of the profiled splits; raise DoesNotFit, NoProfile and NoTable."""
        try:
            found = fastest(self._assembly(shape, stages))
        except UsageError as error:
            raise DoesNotFit(str(error)) from None
        if found.best is None:
            raise DoesNotFit("; ".join(found.dropped))
        best = found.best
        peak = max(best.peaks, key=lambda each: each.high)
        return TimedLayout(shape, best.splits, self.global_batch, best.micro_batches, step_s=best.step_s, peak=peak)

    def step_s(self, layout: Layout) -> Estimate:
        """Return the time of a step of one stage; raise DoesNotFit, NoProfile and NoTable."""
        try:
            whole = self._assembly(layout.shape, 1, layout.micro_batches)
            sample = whole.sample(0, layout.parallel)
        except UsageError as error:
            raise DoesNotFit(str(error)) from None
        if sample is None:
            raise NoProfile(f"{name_of(layout.parallel)} was not profiled on {whole.cell.gpu_type}")
        return whole.plan([sample]).step_s

    def _assembly(self, shape: GpuShape, stages: int, micro_batches: int | None = None) -> Assembly:
        """Return what plans of a cell are made of; raise UsageError if it cannot be cut so, and NoProfile."""
        kind = shape.pool.gpu.like or shape.pool.gpu.name  # profiles have the catalogue's name, taken from the driver's
        key = (kind, shape.gpus, stages)
        if key not in self._cells:
            self._cells[key] = Cell(kind, cut(self.graph, shape.gpus, stages))
        cell = self._cells[key]
        return assembly(
            cell,
            self.graph,
            self.profiles(cell),
            self.comm,
            global_batch=self.global_batch,
            per_node=shape.per_node,
            gpu_bytes=shape.pool.gpu_bytes,
            micro_batches=micro_batches,
        )
