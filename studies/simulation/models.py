"""Models that a simulated job trains: the computation, traffic and memory of one GPU of a pipeline stage.

Transformers are computed by sizing.model and sizing.memory, as Alpa trains them: fp16 with master weights, Adam with
its state cut over the replicas (ZeRO 1), full recomputation, attention written out. Wide ResNets have a closed form
here, in fp32 with Adam. Sizes are those of Alpa's public benchmark, as in Crius's Table 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.memory import activations, formula
from sizing.memory.peak import guarded_bytes
from sizing.model import config
from sizing.model.config import ModelConfig

_PASSES = 6.0
"""Number of times that a layer's saved tensors pass through memory.

They are written and read in forward, both again when recomputed, and read in backward, where a gradient of their size
is written.
"""
_WEIGHT_READS = 4
"""Reads of a weight in each micro-batch: forward, forward again, and in backward for both gradients."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """The load of one GPU of the slowest stage. All but the last three fields are for one micro-batch.

    `moved_bytes` pass through its memory besides the products' operands, `weight_bytes` are the weights that its
    products read. `tensor_bytes` are summed over the tensor-parallel group, `across_bytes` go to the next stage.
    `data_bytes` are the traffic of a ring of all replicas, without its factor (n - 1) / n, and `update_bytes` that of
    the optimizer, both once per iteration. `peak_bytes` is the memory that the GPU needs, guard band included. `even`
    is the work of all stages over that of this one.
    """

    flops: float
    moved_bytes: float
    weight_bytes: float
    tensor_bytes: float
    across_bytes: float
    data_bytes: float
    update_bytes: float
    peak_bytes: float
    even: float


class TrainedModel(Protocol):
    """A model with its global batch."""

    @property
    def global_batch(self) -> int:
        """Samples of an iteration."""

    @property
    def layers(self) -> int:
        """The largest number of stages that it can be cut into."""

    @property
    def precision(self) -> str:
        """The precision of its products, as GpuType.flops names it."""

    @property
    def parameters(self) -> int:
        """Number of trainable elements."""

    def stage(self, stages: int, dp: int, tp: int, micro_batches: int) -> StageLoad | None:
        """Return its load with these replicas, tensor-parallel GPUs and micro-batches; None if it cannot be cut so."""


@dataclass(frozen=True)
class Transformer:
    """BERT or a mixture of experts given by its sizes; cut into stages of equally many layers."""

    model: ModelConfig
    global_batch: int

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return self.model.layers

    @property
    def precision(self) -> str:
        """The precision of its products."""
        return self.model.flops_precision

    @property
    def parameters(self) -> int:
        """Number of trainable elements."""
        return config.parameters(self.model)

    def stage(self, stages: int, dp: int, tp: int, micro_batches: int) -> StageLoad | None:
        """Return the load of the last stage, with the most memory: it has the output matrix and the loss.

        All micro-batches are in flight at once (GPipe): each layer's saved tensors are held for each of them.
        """
        micro, rest = divmod(self.global_batch, dp * micro_batches)
        if rest or stages > self.model.layers or self.model.layers % stages:
            return None
        try:
            whole = replace(self.model, batch=micro, parallel=Parallel(dp, tp))
        except UsageError:
            return None
        part = replace(whole, layers=whole.layers // stages, accumulation=micro_batches)
        layer = activations.layer_of(whole)
        kept = layer.boundary if whole.recompute == "full" else layer.saved
        waiting = (micro_batches - 1) * (part.layers * kept + activations.once_of(whole)) if stages > 1 else 0
        weights = config.parameters_of_rank(part)
        tensor = config.collective_bytes(replace(whole, parallel=Parallel(tp=tp)))
        data = config.collective_bytes(part)
        summed = data["all_reduce"] - config.collective_bytes(replace(part, parallel=Parallel(tp=tp)))["all_reduce"]
        return StageLoad(
            flops=config.step_flops(whole) / stages,
            moved_bytes=_PASSES * part.layers * layer.saved,
            weight_bytes=_WEIGHT_READS * (4 if whole.precision in ("fp32", "tf32") else 2) * weights.total,
            tensor_bytes=tensor["all_reduce"] / stages,
            across_bytes=layer.boundary,
            data_bytes=float(data["reduce_scatter"] + data["all_gather"] + 2 * summed),
            update_bytes=weights.total * (6 + 2 * 12 / dp),
            peak_bytes=guarded_bytes(formula.peak_of(part).peak.value + waiting),
            even=stages,
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """A bottleneck block of a wide ResNet, for one image: parameters, forward FLOPs, output and saved elements."""

    parameters: int
    flops: int
    given: int
    saved: int


@dataclass(frozen=True)
class WideResNet:
    """A ResNet-50 whose first blocks have `channels` filters and whose 3x3 convolutions are `width` times as wide.

    224 x 224 pixels, 1,024 classes, fp32 (TF32 if a GPU has it). Tensor parallelism cuts a block's first two
    convolutions by output and input channels, and sums the block's output.
    """

    channels: int
    width: int
    global_batch: int
    layers: int = 16
    precision: str = "tf32"

    @property
    def parameters(self) -> int:
        """Number of trainable elements: the first convolution, all blocks and the last layer."""
        return sum(block.parameters for block in self._blocks) + self._ends()

    def _ends(self) -> int:
        return 3 * 49 * self.channels + 2 * self.channels + 32 * self.channels * 1024 + 1024

    @cached_property
    def _blocks(self) -> Sequence[_Block]:
        blocks = []
        arriving, side = self.channels, 56
        for level, count in enumerate((3, 4, 6, 3)):
            filters = self.channels * 2**level
            inner, given = filters * self.width, filters * 4
            for index in range(count):
                before = side
                if level and not index:
                    side //= 2
                first, second, third = arriving * filters, 9 * filters * inner, inner * given
                shortcut = arriving * given if arriving != given else 0
                flops = 2 * (first * before**2 + (second + third + shortcut) * side**2)
                norms = 2 * (filters + inner + given + (given if shortcut else 0))
                # outputs of each convolution and each normalisation
                saved = 2 * (filters * before**2 + (inner + given + (given if shortcut else 0)) * side**2)
                blocks.append(_Block(first + second + third + shortcut + norms, flops, given * side**2, saved))
                arriving = given
        return blocks

    def stage(self, stages: int, dp: int, tp: int, micro_batches: int) -> StageLoad | None:
        """Return the load of the slowest stage and the memory of the largest; stages are cut at equal FLOPs."""
        micro, rest = divmod(self.global_batch, dp * micro_batches)
        if rest or stages > self.layers or self.channels % tp:
            return None
        blocks = self._blocks
        total = sum(block.flops for block in blocks)
        groups: list[list[_Block]] = [[] for _ in range(stages)]
        before = 0.0
        for block in blocks:
            middle = before + block.flops / 2
            groups[min(int(middle / total * stages), stages - 1)].append(block)
            before += block.flops
        if not all(groups):
            return None
        slowest = max(sum(block.flops for block in group) for group in groups)
        in_flight = micro_batches if stages > 1 else 1
        peak = most_moved = most_weights = most_given = most_summed = 0.0
        for index, group in enumerate(groups):
            weights = (sum(block.parameters for block in group) + (self._ends() if index == stages - 1 else 0)) / tp
            kept = sum(block.given for block in group)
            inside = max(block.saved / tp + block.given for block in group)
            held = weights * (8 + 8 / dp) + 4 * micro * (in_flight * kept + 2 * inside)
            peak = max(peak, held)
            most_moved = max(most_moved, _PASSES * 4 * micro * sum(block.saved / tp + block.given for block in group))
            most_weights = max(most_weights, weights)
            most_given = max(most_given, group[-1].given)
            # forward, forward again, and backward
            most_summed = max(most_summed, 3.0 * 4 * micro * kept)
        return StageLoad(
            flops=4 * slowest * micro / tp,
            moved_bytes=most_moved,
            weight_bytes=_WEIGHT_READS * 4 * most_weights,
            tensor_bytes=most_summed if tp > 1 else 0.0,
            across_bytes=4.0 * micro * most_given,
            data_bytes=8 * most_weights,
            update_bytes=most_weights * (8 + 2 * 8 / dp),
            peak_bytes=guarded_bytes(peak),
            even=total / slowest,
        )


_TRAINED = "precision=fp16,optimizer=adam,recompute=full,attention=math,zero=1"
_WIDE = {"0.5b": (224, 2), "1b": (320, 2), "2b": (448, 2), "4b": (640, 2), "6.8b": (320, 16)}
_BERT = {
    "0.76b": "h=1536,l=24,a=16",
    "1.3b": "h=2048,l=24,a=32",
    "2.6b": "h=2560,l=32,a=32",
    "6.7b": "h=4096,l=32,a=32",
}
_MOE = {
    "0.69b": "h=768,l=8,a=16,experts=16",
    "1.3b": "h=768,l=16,a=16,experts=16",
    "2.4b": "h=1024,l=16,a=16,experts=16",
    "10b": "h=1536,l=16,a=16,experts=32",
    "27b": "h=2048,l=16,a=16,experts=48",
}
FAMILIES: Mapping[str, Sequence[str]] = {
    "wresnet": tuple(f"wresnet-{size}" for size in _WIDE),
    "bert": tuple(f"bert-{size}" for size in _BERT),
    "moe": tuple(f"moe-{size}" for size in _MOE),
}
"""The models of Table 2 without their batch, from small to large."""
BATCHES: Mapping[str, Sequence[int]] = {
    "wresnet": (256, 512, 1024),
    "bert": (128, 256, 512),
    "moe": (256, 512, 1024),
}


def table2() -> dict[str, TrainedModel]:
    """Return all models of Crius's Table 2, by name and global batch: "bert-1.3b/256"."""
    found: dict[str, TrainedModel] = {}
    for size, (channels, width) in _WIDE.items():
        for batch in BATCHES["wresnet"]:
            found[f"wresnet-{size}/{batch}"] = WideResNet(channels, width, batch)
    for family, sizes, vocabulary in (("bert", _BERT, 51200), ("moe", _MOE, 32000)):
        for size, text in sizes.items():
            model = config.parse(f"{family}:{text},s=1024,V={vocabulary},{_TRAINED}")
            for batch in BATCHES[family]:
                found[f"{family}-{size}/{batch}"] = Transformer(model, batch)
    return found
