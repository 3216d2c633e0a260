"""Transformer, MLP-mixer and wide ResNet, cut over tensor-parallel ranks by hand as Megatron-LM cuts them.

Written for these measurements alone: what is timed for real must not be the code that makes the estimate's shards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional


@dataclass
class Ranks:
    """Tensor-parallel ranks; with no group this process stands for one of them alone, and `seen` is what it skips."""

    size: int = 1
    group: Any = None
    seen: list[int] = field(default_factory=list)

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, in place."""
        if self.size > 1:
            self.seen.append(x.numel() * x.element_size())
            if self.group is not None:
                dist.all_reduce(x, group=self.group)
        return x


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, ranks: Ranks) -> Any:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.ranks.reduce(grad.contiguous()), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, ranks: Ranks) -> Any:
        ctx.mark_dirty(x)
        return ranks.reduce(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class Columns(nn.Linear):
    """Output features cut."""

    def __init__(self, inputs: int, outputs: int, ranks: Ranks) -> None:
        super().__init__(inputs, outputs // ranks.size)


class Rows(nn.Module):
    """Input features cut, outputs summed."""

    def __init__(self, inputs: int, outputs: int, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.inner = ranks, nn.Linear(inputs // ranks.size, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Summed.apply(self.inner(x), self.ranks) + self.bias


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.up, self.down = ranks, Columns(width, inner, ranks), Rows(inner, width, ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(_Copied.apply(x, self.ranks))))


class TransformerBlock(nn.Module):
    def __init__(self, hidden: int, heads: int, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, self.heads = ranks, heads // ranks.size
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = Columns(hidden, 3 * hidden, ranks), Rows(hidden, hidden, ranks)
        self.mlp = Mlp(hidden, 4 * hidden, ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(_Copied.apply(self.first(x), self.ranks)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Embedding(nn.Module):
    def __init__(self, vocab: int, seq: int, hidden: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, hidden), nn.Parameter(torch.zeros(seq, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x) + self.places


class WordsHead(nn.Module):
    """The loss of made-up targets, so that nothing but activations goes between stages."""

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.out(self.norm(x)).flatten(0, -2)
        return functional.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[-1])


def transformer(sizes: dict[str, int], ranks: Ranks) -> list[nn.Module]:
    hidden, vocab = sizes["hidden"], sizes["vocab"]
    inner = [TransformerBlock(hidden, sizes["heads"], ranks) for _ in range(sizes["layers"])]
    return [Embedding(vocab, sizes["seq"], hidden), *inner, WordsHead(vocab, hidden)]


class MixerBlock(nn.Module):
    """Tolstikhin et al. 2021: a perceptron across tokens, and one across channels."""

    def __init__(self, hidden: int, tokens: int, across: int, ranks: Ranks) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.tokens, self.channels = Mlp(tokens, across, ranks), Mlp(hidden, 4 * hidden, ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


class MeanHead(nn.Module):
    def __init__(self, hidden: int, classes: int = 100) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(hidden), nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.out(self.norm(x).mean(1))
        return functional.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[-1])


def mixer(sizes: dict[str, int], ranks: Ranks) -> list[nn.Module]:
    hidden, tokens = sizes["hidden"], sizes["tokens"]
    inner = [MixerBlock(hidden, tokens, sizes["across"], ranks) for _ in range(sizes["layers"])]
    return [nn.Linear(192, hidden), *inner, MeanHead(hidden)]


class WideBlock(nn.Module):
    """Zagoruyko and Komodakis 2016; the first convolution by output channels, the second by input channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, ranks: Ranks) -> None:
        super().__init__()
        self.ranks, own = ranks, outputs // ranks.size
        self.first, self.second = nn.BatchNorm2d(inputs), nn.BatchNorm2d(own)
        self.one = nn.Conv2d(inputs, own, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(own, outputs, 3, 1, 1, bias=False)
        straight = inputs == outputs and stride == 1
        self.beside = nn.Identity() if straight else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first(x))
        out = self.two(functional.relu(self.second(self.one(_Copied.apply(inner, self.ranks)))))
        return self.beside(x) + _Summed.apply(out, self.ranks)


class ImageHead(nn.Module):
    def __init__(self, channels: int, classes: int = 100) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.out(functional.relu(self.norm(x)).mean((-1, -2)))
        return functional.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[-1])


def wide_resnet(sizes: dict[str, int], ranks: Ranks) -> list[nn.Module]:
    inputs = sizes["channels"]
    found: list[nn.Module] = [nn.Conv2d(3, inputs, 3, 1, 1, bias=False)]
    for group in range(3):
        outputs = sizes["channels"] * sizes["width"] * 2**group
        for at in range(sizes["blocks"]):
            found.append(WideBlock(inputs, outputs, 2 if group and not at else 1, ranks))
            inputs = outputs
    return [*found, ImageHead(inputs)]


FAMILIES: dict[str, Callable[[dict[str, int], Ranks], list[nn.Module]]] = {
    "transformer": transformer,
    "mixer": mixer,
    "wide_resnet": wide_resnet,
}


def batch_of(family: str, sizes: dict[str, int], samples: int) -> torch.Tensor:
    """What the first block of a family takes."""
    if family == "transformer":
        return torch.randint(0, sizes["vocab"], (samples, sizes["seq"]))
    if family == "mixer":
        return torch.randn(samples, sizes["tokens"], 192)
    return torch.randn(samples, 3, sizes["image"], sizes["image"])
