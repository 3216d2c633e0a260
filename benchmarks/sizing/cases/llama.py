"""A Llama-like model, written out: rotary positions, keys and values shared by groups of heads, SwiGLU, RMS norms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from training import DEVICE, Spread, Step, in_shards, step_of, tokens


@dataclass(frozen=True)
class Sizes:
    """Of a model: width, layers, heads, heads of keys and values, width inside a feed-forward layer, words."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    inner: int = 688
    seq: int = 256
    vocab: int = 4096


class RMSNorm(nn.Module):
    """By the mean of squares, in single precision whatever comes in."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that ends with `hidden`."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys (batch, heads, seq, width), turned by their places."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Block(nn.Module):
    """One layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.hidden // sizes.heads
        self.norm1 = RMSNorm(sizes.hidden)
        self.query = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.key = nn.Linear(sizes.hidden, sizes.kv_heads * self.width, bias=False)
        self.value = nn.Linear(sizes.hidden, sizes.kv_heads * self.width, bias=False)
        self.out = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.norm2 = RMSNorm(sizes.hidden)
        self.gate = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """From and to (batch, seq, hidden)."""
        batch, seq, _ = x.shape
        y = self.norm1(x)
        q, k, v = (
            each(y).view(batch, seq, -1, self.width).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """The whole model; with `recompute`, layers are computed anew in the backward pass."""

    def __init__(self, sizes: Sizes, recompute: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocab, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        self.recompute = recompute
        width = sizes.hidden // sizes.heads
        angles = torch.outer(torch.arange(sizes.seq), 10000.0 ** -(torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Logits (batch, seq, vocab) of a text (batch, seq)."""
        x = self.words(text)
        turn = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, *turn, use_reentrant=False) if self.recompute else block(x, *turn)
        return self.head(self.norm(x))


def next_word(model: nn.Module, text: Tensor, targets: Tensor) -> Tensor:
    """The loss of a language model, in single precision."""
    return F.cross_entropy(model(text).float().flatten(0, 1), targets.flatten())


def train(
    batch: int,
    sizes: Sizes,
    *,
    recompute: bool = False,
    dtype: torch.dtype = torch.float32,
    spread: Spread = None,
    **how: object,
) -> Step:
    """A step of a Llama; `how` is what `step_of` takes."""
    model: nn.Module = Llama(sizes, recompute).to(DEVICE, dtype)
    if spread is not None:
        model = spread(model)
    texts = tokens(batch, sizes.seq, sizes.vocab), tokens(batch, sizes.seq, sizes.vocab)
    return step_of(model, texts, next_word, **how)


SMALL = Sizes()
WIDE = Sizes(hidden=512, heads=8, kv_heads=2, inner=1376, seq=128, vocab=8192)


def fp32(batch_size: int) -> Step:
    """As simple as can be."""
    return train(batch_size, SMALL)


def autocast(batch_size: int) -> Step:
    """In bfloat16 where autocast says so."""
    return train(batch_size, SMALL, precision="bf16")


def pure_bf16(batch_size: int) -> Step:
    """With weights in bfloat16 too; gradients are clipped."""
    return train(batch_size, WIDE, dtype=torch.bfloat16, clip=1.0)


def recompute_autocast(batch_size: int) -> Step:
    """Layers are computed anew in the backward pass, in bfloat16."""
    return train(batch_size, SMALL, recompute=True, precision="bf16")


def sharded(batch_size: int, *, fsdp: int = 1) -> Step:
    """Parameters, gradients and states in shards (FSDP2), products in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(batch_size, WIDE, spread=in_shards(fsdp, mp_policy=policy))
