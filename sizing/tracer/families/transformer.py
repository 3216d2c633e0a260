"""Transformers: GPT, BERT-like encoders, and LLaMA with grouped queries and SwiGLU, cut as Megatron-LM cuts them.

Queries, keys and values and the first feed-forward matrix are cut by columns, the others by rows, which takes two
all-reduces per layer and direction. Embedding and output matrix are cut along the vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sizing.tracer.families import Chain, Part, moe, parallel

DROPOUT = 0.1


class Embedding(nn.Module):
    """The token embedding, with its rows cut over ranks, and the learned positions, if any."""

    def __init__(self, sizes: dict[str, Any], tp: int) -> None:
        super().__init__()
        self.tp = tp
        self.vocab = _padded(sizes["vocab"], tp)
        cut = (0, (self.vocab,))
        self.weight = parallel.parameter([self.vocab // tp, sizes["hidden"]], cut)
        rows = sizes["position_rows"] or sizes["seq"]
        self.positions = parallel.parameter([rows, sizes["hidden"]], None) if sizes["positions"] else None
        self.dropout = DROPOUT if sizes["dropout"] else 0.0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map (batch, seq) ids to (batch, seq, hidden)."""
        if self.tp == 1:
            out = functional.embedding(ids, self.weight)
        else:
            rows = self.weight.shape[0]
            at = ids - dist.get_rank() * rows
            away = (at < 0) | (at >= rows)
            found = functional.embedding(at.masked_fill(away, 0), self.weight)
            out = parallel.summed(found.masked_fill(away[..., None], 0.0), self.tp)
        if self.positions is not None:
            out = out + self.positions[: ids.shape[1]]
        return functional.dropout(out, self.dropout, self.training)


class Attention(nn.Module):
    """Self-attention with this rank's heads."""

    def __init__(self, sizes: dict[str, Any], tp: int) -> None:
        super().__init__()
        self.tp = tp
        kv = sizes["kv_heads"] or sizes["heads"]
        self.head = sizes["head_size"] or sizes["hidden"] // sizes["heads"]
        self.heads = sizes["heads"] // tp
        self.kv = max(1, kv // tp)
        query, key = sizes["heads"] * self.head, self.kv * tp * self.head
        attention_bias, ffn_bias = sizes["biased"]
        self.qkv = parallel.Columns(sizes["hidden"], (query, key, key), attention_bias, tp)
        self.out = parallel.Rows(query, sizes["hidden"], attention_bias and ffn_bias, tp)
        self.causal = not sizes["encoder"]
        self.flash = sizes["attention"] == "flash"
        self.dropout = DROPOUT if sizes["dropout"] else 0.0
        self.rotary = not sizes["positions"] and not sizes["encoder"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply attention to (batch, seq, hidden)."""
        batch, seq, _ = x.shape
        widths = [self.heads * self.head, self.kv * self.head, self.kv * self.head]
        query, key, value = (
            each.view(batch, seq, -1, self.head).transpose(1, 2)
            for each in self.qkv(parallel.copied(x, self.tp)).split(widths, -1)
        )
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        if self.kv != self.heads:
            key, value = (each.repeat_interleave(self.heads // self.kv, 1) for each in (key, value))
        dropout = self.dropout if self.training else 0.0
        if self.flash:
            out = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(self.head)
            if self.causal:
                scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -math.inf)
            out = functional.dropout(scores.softmax(-1), dropout) @ value
        made: torch.Tensor = self.out(out.transpose(1, 2).reshape(batch, seq, -1))
        return made


class FeedForward(nn.Module):
    """A feed-forward layer of two matrices, or three (SwiGLU)."""

    def __init__(self, sizes: dict[str, Any], width: int, tp: int) -> None:
        super().__init__()
        self.tp = tp
        self.gated = sizes["gated"]
        bias = sizes["biased"][1]
        self.up = parallel.Columns(sizes["hidden"], (width, width) if self.gated else (width,), bias, tp)
        self.down = parallel.Rows(width, sizes["hidden"], bias, tp)
        self.written_out = sizes["gelu_new"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (..., hidden)."""
        up = self.up(parallel.copied(x, self.tp))
        if self.gated:
            gate, up = up.chunk(2, -1)
            up = functional.silu(gate) * up
        else:
            up = functional.gelu(up, approximate="tanh" if self.written_out else "none")
        made: torch.Tensor = self.down(up)
        return made


class Block(nn.Module):
    """A layer: attention and feed-forward, each after a normalisation and added to the residual stream."""

    def __init__(self, sizes: dict[str, Any], tp: int) -> None:
        super().__init__()
        hidden = sizes["hidden"]
        self.first, self.second = parallel.Norm(hidden, sizes["norm"]), parallel.Norm(hidden, sizes["norm"])
        self.attention = Attention(sizes, tp)
        width = sizes["ffn_hidden"] or 4 * hidden
        many = sizes["experts"] > 1
        self.feed: nn.Module = moe.Experts(sizes, width, tp) if many else FeedForward(sizes, width, tp)
        self.shared = FeedForward(sizes, sizes["shared_ffn"], tp) if sizes["shared_ffn"] else None
        self.dropout = DROPOUT if sizes["dropout"] else 0.0
        self.recompute = sizes["recompute"] == "full"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (batch, seq, hidden)."""
        if self.recompute:
            return checkpoint(self._layer, x, use_reentrant=False)  # type: ignore[no-any-return]
        return self._layer(x)

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        x = x + functional.dropout(self.attention(self.first(x)), self.dropout, self.training)
        inner = self.second(x)
        out = self.feed(inner)
        if self.shared is not None:
            out = out + self.shared(inner)
        return x + functional.dropout(out, self.dropout, self.training)


class Head(nn.Module):
    """The last normalisation, the output matrix and the loss."""

    def __init__(self, sizes: dict[str, Any], tp: int) -> None:
        super().__init__()
        self.tp = tp
        vocab = _padded(sizes["vocab"], tp)
        self.norm = parallel.Norm(sizes["hidden"], sizes["norm"])
        self.weight = parallel.parameter([vocab // tp, sizes["hidden"]], (0, (vocab,)))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of (batch, seq) targets."""
        logits = functional.linear(parallel.copied(self.norm(x), self.tp), self.weight)
        return parallel.entropy(logits.flatten(0, 1), targets.flatten(), self.tp)


def _padded(vocab: int, tp: int) -> int:
    """Return the rows of the vocabulary, rounded up to a multiple of tp."""
    return -(-vocab // tp) * tp


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions (Su et al. 2021)."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x[..., :half], x[..., half : 2 * half]
    return torch.cat((one * cos - two * sin, two * cos + one * sin, x[..., 2 * half :]), -1)


def chain(sizes: dict[str, Any], tp: int) -> Chain:
    """Return the chain of the embedding, the layers, and the head with its loss."""
    seq, vocab, hidden = sizes["seq"], sizes["vocab"], sizes["hidden"]

    def inner(batch: int) -> tuple[int, ...]:
        return batch, seq, hidden

    def words(batch: int) -> torch.Tensor:
        return torch.randint(0, vocab, (batch, seq))

    layers = [Part(f"layers.{at}", partial(Block, sizes, tp), inner) for at in range(sizes["layers"])]
    embedding = Part("embedding", partial(Embedding, sizes, tp), lambda batch: (batch, seq))
    head = Part("head", partial(Head, sizes, tp), inner)
    return Chain((embedding, *layers, head), words, words, tied=sizes["tied"])
