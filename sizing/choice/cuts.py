"""The division of a model into assumed stages: along its graph, as for profiled stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sizing.base.errors import DoesNotFit, UsageError
from sizing.cells.cell import Stage
from sizing.cells.stages import stages as cut
from sizing.choice.timers.datasheet_time import StagePart
from sizing.model.graph import Graph


@dataclass(frozen=True)
class ByGraph:
    """A model whose operators are known."""

    graph: Graph
    _cuts: dict[tuple[int, int], Sequence[Stage]] = field(default_factory=dict)

    def parts(self, gpus: int, stages: int) -> tuple[StagePart, ...]:
        """Return the stages that a cell would have; raise DoesNotFit."""
        try:
            if (gpus, stages) not in self._cuts:
                self._cuts[gpus, stages] = cut(self.graph, gpus, stages)
        except UsageError as error:
            raise DoesNotFit(str(error)) from None
        return tuple(
            StagePart(
                each.gpus,
                each.flops / max(1, self.graph.flops),
                each.parameters / max(1, self.graph.parameters),
                each.across_bytes / self.graph.batch,
            )
            for each in self._cuts[gpus, stages]
        )
