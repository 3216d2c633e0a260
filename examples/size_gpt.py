"""A training step as `bft size` reads it: a small GPT in plain torch, with mixed precision on a GPU.

    bft size mem examples/size_gpt.py:make_step --global-batch 8
    bft size fit examples/size_gpt.py:make_step --global-batch 64

The same function can be what a script trains with: bft runs it on tensors without contents, and needs no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, LENGTH, WORDS = 12, 12, 768, 1024, 50257


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, length, width) the same."""
        q, k, v = (
            part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Gpt(nn.Module):
    """A decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of (batch, length) tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.last(self.blocks(self.words(tokens) + self.places(places))))


def make_step(batch_size: int) -> Callable[[], None]:
    """A function that trains one step on `batch_size` sequences of this rank."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: nn.Module = Gpt().to(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(WORDS, (batch_size, LENGTH + 1), device=device)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
