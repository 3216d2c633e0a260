"""A model that is given by its sizes alone, as a chain of operators: embedding, layers, head."""

from __future__ import annotations

from dataclasses import replace

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.memory.states import bytes_of
from sizing.model.config import ModelConfig, parameters_of_rank, step_flops
from sizing.model.graph import Graph, Operator
from sizing.model.wide_resnet import WideResNet


def chain(model: ModelConfig | WideResNet, batch: int | None = None) -> Graph:
    """Return the operators of a model on one GPU, for `batch` samples (default: the model's own batch).

    Profiles cut the model by them: their indices and names are those of sizing.tracer.families. FLOPs of a
    transformer are those of `step_flops`.
    """
    if batch is not None and batch < 1:
        raise UsageError(f"a batch of {batch}: at least 1")
    if isinstance(model, WideResNet):
        return _wide_resnet(model, batch or 1)
    return _transformer(replace(model, batch=batch or model.batch, accumulation=1, parallel=Parallel()))


def _transformer(model: ModelConfig) -> Graph:
    """Return the chain of a transformer; the tensor between layers is the residual stream."""
    one, two = (step_flops(replace(model, layers=layers)) for layers in (1, 2))
    layer, head = two - one, 2 * one - two
    weights = parameters_of_rank(model)
    before = model.hidden * (model.position_rows or model.seq) if model.positions else 0
    before += 2 * model.hidden if model.encoder else 0  # segments
    across = model.tokens * model.hidden * bytes_of(model).residual
    layers = (Operator(f"layers.{at}", f"layers.{at}", layer, across, weights.layer) for at in range(model.layers))
    return Graph(
        model.name,
        model.batch,
        (
            Operator("embedding", "embedding", 0, across, weights.embedding + before),
            *layers,
            Operator("head", "head", head, 0, weights.output + weights.rest - before),
        ),
        "formula",
    )


def _wide_resnet(model: WideResNet, batch: int) -> Graph:
    """Return the chain of a wide ResNet.

    A convolution counts three times its forward pass, the first one twice, because its input needs no gradient.
    """
    size, inputs = model.image, model.channels
    first = 9 * 3 * inputs
    operators = [Operator("stem", "stem", 4 * batch * size**2 * first, 4 * batch * inputs * size**2, first)]
    for group in range(3):
        outputs = model.channels * model.width * 2**group
        for at in range(model.blocks):
            stride = 2 if group > 0 and at == 0 else 1
            size = -(-size // stride)
            beside = inputs * outputs if inputs != outputs or stride > 1 else 0
            products = 9 * inputs * outputs + 9 * outputs**2 + beside
            name = f"blocks.{len(operators) - 1}"
            flops, across = 6 * batch * size**2 * products, 4 * batch * outputs * size**2
            operators.append(Operator(name, name, flops, across, products + 2 * inputs + 2 * outputs))
            inputs = outputs
    head = inputs * model.classes
    operators.append(Operator("head", "head", 6 * batch * head, 0, head + 2 * inputs))
    return Graph("wresnet", batch, tuple(operators), "formula")
