"""The memory that a rank holds between steps: weights, gradients and optimizer state, as ZeRO and FSDP cut them.

Sources: Rajbhandari et al. 2020 (ZeRO; stages and their shares), Smith et al. 2022 (Megatron-Turing NLG: 20 bytes per
parameter), torch's own optimizers and DistributedDataParallel for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sizing.model.counts import Parameters
from sizing.model.transformer import ModelConfig


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes of one element by its role.

    `weight` and `gradient` as the step keeps them; `compute` for the inputs and outputs of matrix products; `residual`
    for the stream between layers; `cast` for a weight's copy for a product, if autocast makes one.
    """

    weight: int
    gradient: int
    compute: int
    residual: int
    cast: int
    optimizer: float


def _moments(model: ModelConfig, element: int) -> float:
    """Return the bytes of the optimizer's own state of a parameter, for elements of `element` bytes.

    Adam has two moments, momentum one, plain SGD none. Adafactor (Shazeer and Stern 2018) has a row and a column of
    each matrix: 1/h of it and less, left out. Adam of 8 bits (Dettmers et al. 2022) has two bytes and two fp32 scales
    for each block of 256.
    """
    return {
        "adam": 2.0 * element,
        "adamw": 2.0 * element,
        "momentum": 1.0 * element,
        "sgd": 0.0,
        "adafactor": 0.0,
        "adam8bit": 2.0 + 2 * 4 / 256,
    }[model.optimizer]


def bytes_of(model: ModelConfig) -> Bytes:
    """Return the bytes of an element under the model's precision.

    fp32: 4 each, 16 per parameter with Adam. Autocast: the same, with products in 16 bits (a weight's cast lives until
    its backward), and layer normalisation, softmax and the residual stream in fp32, as in torch's list of operators.
    Masters: 2 + 2 for weights and gradients, 4 for gradients in fp32, 4 for the master and 8 for Adam: 20. bf16-pure: 2
    each, 8 with Adam.
    """
    if model.precision in ("fp32", "tf32"):
        return Bytes(4, 4, 4, 4, 0, _moments(model, 4))
    if model.autocast:
        return Bytes(4, 4, 2, 4, 2, _moments(model, 4))
    if model.master:
        return Bytes(2, 2 + 4, 2, 2, 0, 4 + _moments(model, 4))
    return Bytes(2, 2, 2, 2, 0, _moments(model, 2))


@dataclass(frozen=True, slots=True)
class States:
    """The state of one rank, in bytes. `gradients` are all of them; `kept` those present already in forward.

    `buckets` are copies for the sum over replicas; `step` is the optimizer's temporary memory while it steps.
    """

    parameters: int
    gradients: int
    kept: int
    optimizer: int
    buckets: int
    step: int


def states_of(model: ModelConfig, counts: Parameters) -> States:
    """Return the weights, gradients and optimizer state of one rank.

    ZeRO cuts the optimizer's state (1), gradients too (2) and weights too (3, FSDP) over the replicas, and `fsdp` all
    three over its GPUs. Gradients are dropped after a step (`set_to_none`, torch's default), so they are present in
    forward only if micro-batches accumulate, or a framework with masters keeps a buffer. DistributedDataParallel copies
    gradients into buckets as large as all of them. torch's Adam processes all parameters at once (`foreach`) and holds
    the square roots of all second moments meanwhile: one more element each.
    """
    size = bytes_of(model)
    spread = model.parallel
    over = {stage: spread.fsdp * (spread.dp if model.zero >= stage else 1) for stage in (1, 2, 3)}
    count = counts.total

    def share(each: float, stage: int) -> int:
        return math.ceil(each * count / over[stage])

    gradients = share(size.gradient, 2)
    foreach = model.optimizer in ("adam", "adamw") and not model.master
    return States(
        parameters=share(size.weight, 3),
        gradients=gradients,
        kept=gradients if model.accumulation > 1 or model.master else 0,
        optimizer=share(size.optimizer, 1),
        buckets=share(size.gradient, 3) if spread.dp > 1 and model.zero < 2 and not model.master else 0,
        step=share(size.weight, 1) if foreach else 0,
    )


def gathered_bytes(model: ModelConfig, counts: Parameters) -> int:
    """Return the bytes of weights and gradients that FSDP and ZeRO 3 hold whole for a moment.

    They are two layers (one is fetched ahead), the gradients of one, and embedding and output matrix, which belong to
    the root and stay from forward to backward.
    """
    if model.parallel.fsdp == 1 and not (model.zero == 3 and model.parallel.dp > 1):
        return 0
    size = bytes_of(model)
    root = counts.embedding + counts.output + counts.rest
    return size.compute * (3 * counts.layer + root)
