"""A mixture of experts, written out: each goes through two experts of eight, which take no more than their share."""

from __future__ import annotations

import gpt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import DEVICE, Step, step_of, tokens

EXPERTS = 8
SPARE = 1.25
"""An expert takes so many times its even share of the tokens; what is beyond passes it by."""


class Experts(nn.Module):
    """Feed-forward layers side by side, with a router before them (GShard)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, hidden, 2 * hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * hidden, hidden) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, seq, hidden)."""
        flat = x.flatten(0, 1)
        places = int(SPARE * 2 * len(flat) / EXPERTS)
        shares, chosen = self.router(flat).float().softmax(-1).topk(2, -1)
        picked = F.one_hot(chosen, EXPERTS)
        turn = picked.flatten(0, 1).cumsum(0).view_as(picked) * picked
        place = turn.sum(-1) - 1
        kept = place < places
        # Where the tokens of an expert lie; those beyond its places share a place that is left out.
        slot = torch.where(kept, chosen * places + place, EXPERTS * places).flatten()
        inner = flat.new_zeros(EXPERTS * places + 1, flat.shape[1]).index_copy(0, slot, flat.repeat_interleave(2, 0))
        inner = inner[:-1].view(EXPERTS, places, -1)
        found = torch.bmm(F.gelu(torch.bmm(inner, self.up.to(inner.dtype))), self.down.to(inner.dtype)).flatten(0, 1)
        found = torch.cat((found, found.new_zeros(1, found.shape[1])))[slot].view(len(flat), 2, -1)
        return (found * shares.to(found.dtype).unsqueeze(-1)).sum(1).view_as(x)


def train(batch: int, sizes: gpt.Sizes, *, dropout: float = 0.0, recompute: bool = False, **how: object) -> Step:
    """A step of a GPT whose every other layer has experts; `how` is what `step_of` takes."""
    model = gpt.GPT(sizes, dropout, recompute=recompute)
    for block in list(model.blocks)[1::2]:
        block.up, block.down = Experts(sizes.hidden), nn.Identity()
    model = model.to(DEVICE)
    texts = tokens(batch, sizes.seq, sizes.vocab), tokens(batch, sizes.seq, sizes.vocab)
    return step_of(model, texts, gpt.next_word, **how)


SMALL = gpt.Sizes(hidden=192, heads=6, layers=4, seq=128, vocab=4096)


def fp32(batch_size: int) -> Step:
    """As simple as can be."""
    return train(batch_size, SMALL)


def recompute(batch_size: int) -> Step:
    """Layers are computed anew in the backward pass."""
    return train(batch_size, SMALL, recompute=True)
