"""Wide residual networks (Zagoruyko and Komodakis 2016), cut over tensor-parallel ranks by hand.

The first convolution of a block is cut by its output channels, the second by its input channels and followed by an
all-reduce. The normalisation between them covers this rank's channels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sizing.tracer.families import Chain, Part, parallel


class Normed(nn.Module):
    """Batch normalisation of this rank's part of `channels`, which is all of them if tp is 1."""

    def __init__(self, channels: int, tp: int = 1) -> None:
        super().__init__()
        cut = (0, (channels,)) if tp > 1 else None
        self.weight = parallel.parameter([channels // tp], cut, 1.0)
        self.bias = parallel.parameter([channels // tp], cut, 0.0)
        self.register_buffer("mean", torch.zeros(channels // tp))
        self.register_buffer("variance", torch.ones(channels // tp))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (batch, channels, height, width)."""
        mean: Any = self.mean
        variance: Any = self.variance
        return functional.batch_norm(x, mean, variance, self.weight, self.bias, self.training)


class Block(nn.Module):
    """Two 3 x 3 convolutions, each after a normalisation, plus the input (through a 1 x 1 one if sizes change)."""

    def __init__(self, inputs: int, outputs: int, stride: int, tp: int) -> None:
        super().__init__()
        if outputs % tp:
            raise ValueError(f"{outputs} channels cannot be cut over tp={tp}")
        self.tp, self.stride = tp, stride
        self.first, self.second = Normed(inputs), Normed(outputs, tp)
        self.one = parallel.parameter([outputs // tp, inputs, 3, 3], (0, (outputs,)))
        self.two = parallel.parameter([outputs, outputs // tp, 3, 3], (1, (outputs,)))
        straight = inputs == outputs and stride == 1
        self.beside = None if straight else parallel.parameter([outputs, inputs, 1, 1], None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to (batch, channels, height, width)."""
        inner = functional.relu(self.first(x))
        beside = x if self.beside is None else functional.conv2d(inner, self.beside, stride=self.stride)
        out = functional.conv2d(parallel.copied(inner, self.tp), self.one, stride=self.stride, padding=1)
        out = functional.conv2d(functional.relu(self.second(out)), self.two, padding=1)
        return beside + parallel.summed(out, self.tp)


class Stem(nn.Module):
    """The first convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = parallel.parameter([channels, 3, 3, 3], None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the convolution to (batch, 3, height, width)."""
        return functional.conv2d(x, self.weight, padding=1)


class Head(nn.Module):
    """The mean over the image, the classifier and the loss."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = Normed(channels)
        self.weight = parallel.parameter([classes, channels], None)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of (batch,) targets."""
        seen = functional.relu(self.norm(x)).mean((-1, -2))
        return functional.cross_entropy(functional.linear(seen, self.weight).float(), targets)


def chain(sizes: dict[str, Any], tp: int) -> Chain:
    """Return the chain of the stem, the blocks of three groups, and the head with its loss."""
    image, base = sizes["image"], sizes["channels"]
    parts = [Part("stem", partial(Stem, base), lambda batch: (batch, 3, image, image))]
    inputs, size = base, image
    for group in range(3):
        outputs = base * sizes["width"] * 2**group
        for at in range(sizes["blocks"]):
            stride = 2 if group > 0 and at == 0 else 1
            shape = partial(_shape, inputs, size)
            parts.append(Part(f"blocks.{len(parts) - 1}", partial(Block, inputs, outputs, stride, tp), shape))
            inputs, size = outputs, -(-size // stride)
    parts.append(Part("head", partial(Head, inputs, sizes["classes"]), partial(_shape, inputs, size)))

    def images(batch: int) -> torch.Tensor:
        return torch.randn(batch, 3, image, image)

    def classes(batch: int) -> torch.Tensor:
        return torch.randint(0, sizes["classes"], (batch,))

    return Chain(tuple(parts), images, classes)


def _shape(channels: int, size: int, batch: int) -> tuple[int, ...]:
    return batch, channels, size, size
