"""How a model is cut into stages: along its graph, or by its layers where only its sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sizing.cells.cell import Stage
from sizing.cells.graph import Graph
from sizing.choosing.assumed import Part
from sizing.errors import DoesNotFit, UsageError
from sizing.model.config import ModelConfig, parameters, step_flops


@dataclass(frozen=True)
class ByGraph:
    """A model that was read; `stages` is sizing.cells.stages.stages."""

    graph: Graph
    stages: Callable[[Graph, int, int], Sequence[Stage]]
    _cut: dict[tuple[int, int], Sequence[Stage]] = field(default_factory=dict)

    def parts(self, gpus: int, stages: int) -> tuple[Part, ...]:
        """The stages that a cell would have."""
        try:
            if (gpus, stages) not in self._cut:
                self._cut[gpus, stages] = self.stages(self.graph, gpus, stages)
        except UsageError as error:
            raise DoesNotFit(str(error)) from None
        return tuple(
            Part(
                each.gpus,
                each.flops / max(1, self.graph.flops),
                each.parameters / max(1, self.graph.parameters),
                each.across_bytes / self.graph.batch,
            )
            for each in self._cut[gpus, stages]
        )


@dataclass(frozen=True)
class ByLayers:
    """A model by its sizes: equal numbers of layers, the embedding before them and the output matrix behind."""

    model: ModelConfig

    def parts(self, gpus: int, stages: int) -> tuple[Part, ...]:
        """Stages of as many GPUs each."""
        model = self.model
        if stages > model.layers:
            raise DoesNotFit(f"{model.layers} layers cannot be cut into {stages} stages")
        least, more = divmod(model.layers, stages)
        counts = [least + (at < more) for at in range(stages)]
        flops, weights = _linear(model, step_flops), _linear(model, parameters)
        sent = model.seq * model.hidden * (4 if model.precision in ("fp32", "tf32") else 2)
        last = stages - 1
        ends = weights[1] if model.tied else weights[1] / 2  # a tied matrix lies on the first stage and on the last
        return tuple(
            Part(
                gpus // stages,
                (count * flops[0] + (flops[1] if at == last else 0)) / (model.layers * flops[0] + flops[1]),
                (count * weights[0] + (ends if at in (0, last) else 0)) / (model.layers * weights[0] + weights[1]),
                0 if at == last else sent,
            )
            for at, count in enumerate(counts)
        )


def _linear(model: ModelConfig, count: Callable[[ModelConfig], float]) -> tuple[float, float]:
    """What one layer counts, and what all else does."""
    one, two = (float(count(replace(model, layers=layers))) for layers in (1, 2))
    return two - one, max(0.0, 2 * one - two)
