"""A GPT-2-like model, written out: attention by SDPA or by its formula, recomputation, and three ways to spread it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint
from training import DEVICE, Spread, Step, in_replicas, in_shards, mesh_of, step_of, tokens


@dataclass(frozen=True)
class Sizes:
    """Of a model: width, layers, heads, words in a text and in the vocabulary."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    seq: int = 256
    vocab: int = 4096


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, sizes: Sizes, dropout: float, by_formula: bool) -> None:
        super().__init__()
        self.head_width = sizes.hidden // sizes.heads
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key = nn.Linear(sizes.hidden, sizes.hidden)
        self.value = nn.Linear(sizes.hidden, sizes.hidden)
        self.out = nn.Linear(sizes.hidden, sizes.hidden)
        self.dropout = dropout
        self.by_formula = by_formula

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, seq, hidden)."""
        batch, seq, _ = x.shape
        # The heads are as many as this rank's share of the matrices has.
        q, k, v = (
            each(x).view(batch, seq, -1, self.head_width).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        if self.by_formula:
            scores = q @ k.transpose(-2, -1) * self.head_width**-0.5
            ahead = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
            weights = F.dropout(scores.masked_fill(ahead, float("-inf")).softmax(-1), dropout)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


class Block(nn.Module):
    """One layer."""

    def __init__(self, sizes: Sizes, dropout: float, by_formula: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.hidden)
        self.attention = Attention(sizes, dropout, by_formula)
        self.norm2 = nn.LayerNorm(sizes.hidden)
        self.up = nn.Linear(sizes.hidden, 4 * sizes.hidden)
        self.down = nn.Linear(4 * sizes.hidden, sizes.hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, seq, hidden)."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """The whole model; with `recompute`, layers are computed anew in the backward pass."""

    def __init__(self, sizes: Sizes, dropout: float = 0.0, by_formula: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocab, sizes.hidden)
        self.places = nn.Embedding(sizes.seq, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes, dropout, by_formula) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        self.recompute = recompute

    def forward(self, text: Tensor) -> Tensor:
        """Logits (batch, seq, vocab) of a text (batch, seq)."""
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def next_word(model: nn.Module, text: Tensor, targets: Tensor) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(model(text).flatten(0, 1), targets.flatten())


def train(
    batch: int,
    sizes: Sizes,
    *,
    dropout: float = 0.0,
    attention: str = "sdpa",
    recompute: bool = False,
    dtype: torch.dtype = torch.float32,
    spread: Spread = None,
    tied: bool = True,
    **how: object,
) -> Step:
    """A step of a GPT; `how` is what `step_of` takes."""
    gpt = GPT(sizes, dropout, attention == "formula", recompute)
    if tied:
        gpt.head.weight = gpt.words.weight
    model: nn.Module = gpt.to(DEVICE, dtype)
    if spread is not None:
        model = spread(model)
    texts = tokens(batch, sizes.seq, sizes.vocab), tokens(batch, sizes.seq, sizes.vocab)
    return step_of(model, texts, next_word, **how)


SMALL = Sizes()
WIDE = Sizes(hidden=512, layers=4, heads=8, seq=128, vocab=8192)


def fp32(batch_size: int) -> Step:
    """As simple as can be."""
    return train(batch_size, SMALL)


def wide(batch_size: int) -> Step:
    """More of parameters than of activations; gradients are clipped."""
    return train(batch_size, WIDE, clip=1.0)


def autocast(batch_size: int) -> Step:
    """In bfloat16 where autocast says so."""
    return train(batch_size, SMALL, precision="bf16")


def autocast_fp16(batch_size: int) -> Step:
    """In float16 with a scaler of gradients."""
    return train(batch_size, SMALL, precision="fp16", clip=1.0)


def pure_bf16(batch_size: int) -> Step:
    """With weights in bfloat16 too."""
    return train(batch_size, SMALL, dtype=torch.bfloat16)


def dropout(batch_size: int) -> Step:
    """With dropout, of attention too."""
    return train(batch_size, SMALL, dropout=0.1)


def autocast_dropout(batch_size: int) -> Step:
    """With dropout in bfloat16."""
    return train(batch_size, SMALL, dropout=0.1, precision="bf16")


def formula_attention(batch_size: int) -> Step:
    """Attention by its formula, which keeps its scores."""
    return train(batch_size, SMALL, attention="formula")


def formula_attention_autocast_dropout(batch_size: int) -> Step:
    """The same in bfloat16 with dropout on the scores."""
    return train(batch_size, SMALL, attention="formula", precision="bf16", dropout=0.1)


def recompute(batch_size: int) -> Step:
    """Layers are computed anew in the backward pass."""
    return train(batch_size, SMALL, recompute=True)


def recompute_autocast_dropout(batch_size: int) -> Step:
    """The same in bfloat16 with dropout."""
    return train(batch_size, SMALL, recompute=True, precision="bf16", dropout=0.1)


def accumulation(batch_size: int) -> Step:
    """Four micro-batches a step."""
    return train(batch_size, SMALL, micro_batches=4)


def accumulation_kept_gradients(batch_size: int) -> Step:
    """Two micro-batches, and gradients that are set to zero and not freed."""
    return train(batch_size, SMALL, micro_batches=2, precision="bf16", set_to_none=False)


def sgd(batch_size: int) -> Step:
    """Without state of an optimizer."""
    return train(batch_size, WIDE, optimizer="sgd")


def momentum(batch_size: int) -> Step:
    """With one state of a parameter."""
    return train(batch_size, WIDE, optimizer="momentum")


def adamw_loop(batch_size: int) -> Step:
    """Updated parameter by parameter."""
    return train(batch_size, WIDE, optimizer="adamw-loop")


def adamw_fused(batch_size: int) -> Step:
    """Updated by one kernel."""
    return train(batch_size, WIDE, optimizer="adamw-fused")


def adafactor(batch_size: int) -> Step:
    """With states of rows and columns."""
    return train(batch_size, WIDE, optimizer="adafactor")


def untied(batch_size: int) -> Step:
    """A matrix of its own makes the logits, of a larger vocabulary."""
    return train(batch_size, Sizes(hidden=192, layers=2, heads=6, seq=128, vocab=32000), tied=False)


def ddp(batch_size: int, *, dp: int = 1) -> Step:
    """Replicas with DistributedDataParallel."""
    return train(batch_size, WIDE, spread=in_replicas(dp))


def ddp_autocast_accumulation(batch_size: int, *, dp: int = 1) -> Step:
    """Replicas in bfloat16, two micro-batches a step."""
    spread = in_replicas(dp, gradient_as_bucket_view=True)
    return train(batch_size, WIDE, precision="bf16", micro_batches=2, spread=spread)


def in_columns(tp: int) -> Spread:
    """Cuts the matrices of each layer over `tp` ranks."""
    plan = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }

    def cut(model: nn.Module) -> nn.Module:
        mesh = mesh_of(tp)
        for block in model.blocks:  # type: ignore[union-attr]
            parallelize_module(block, mesh, plan)
        return model

    return cut if tp > 1 else None


def tensor_parallel(batch_size: int, *, tp: int = 1) -> Step:
    """The matrices of a layer cut over ranks, embeddings and logits not."""
    return train(batch_size, WIDE, spread=in_columns(tp))


def tensor_parallel_autocast(batch_size: int, *, tp: int = 1) -> Step:
    """The same in bfloat16, with layers computed anew."""
    return train(batch_size, SMALL, precision="bf16", recompute=True, spread=in_columns(tp))


def sharded(batch_size: int, *, fsdp: int = 1) -> Step:
    """Parameters, gradients and states in shards (FSDP2)."""
    return train(batch_size, WIDE, spread=in_shards(fsdp))


def sharded_recompute(batch_size: int, *, fsdp: int = 1) -> Step:
    """The same with layers computed anew."""
    return train(batch_size, SMALL, recompute=True, spread=in_shards(fsdp))


def gpt2_350m(batch_size: int) -> Step:
    """GPT-2 medium in bfloat16, as large as it is trained."""
    sizes = Sizes(hidden=1024, layers=24, heads=16, seq=1024, vocab=50257)
    return train(batch_size, sizes, dropout=0.1, precision="bf16", clip=1.0)
