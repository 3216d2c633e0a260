"""Experts with a fixed capacity: shapes do not depend on the routing, so the model exports and its time is constant.

A token goes to its best `experts_used` experts; each expert takes at most an even share of all tokens (Lepikhin et al.
2020, GShard, with capacity factor 1). Tensor-parallel ranks split tokens and experts; two all-to-alls in each direction
bring them together.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sizing.tracer.families import parallel


class Experts(nn.Module):
    """Feed-forward experts behind a router; an expert takes at most `capacity` times an even share of the tokens."""

    def __init__(self, sizes: dict[str, Any], width: int, tp: int, capacity: float = 1.0) -> None:
        super().__init__()
        self.tp, self.capacity = tp, sizes.get("capacity", capacity)
        self.experts, self.used, self.gated = sizes["experts"], sizes["experts_used"], sizes["gated"]
        if self.experts % tp:
            raise ValueError(f"{self.experts} experts cannot be cut over tp={tp}")
        hidden, cut = sizes["hidden"], (0, (self.experts,))
        self.router = parallel.parameter([self.experts, hidden], None)
        self.up = parallel.parameter([self.experts // tp, hidden, (2 if self.gated else 1) * width], cut)
        self.down = parallel.parameter([self.experts // tp, width, hidden], cut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the experts to (batch, seq, hidden)."""
        tokens = parallel.scattered(x.flatten(0, -2), self.tp)
        count, hidden = tokens.shape
        weights, chosen = (tokens @ parallel.copied(self.router, self.tp).t()).float().softmax(-1).topk(self.used, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(tokens.dtype).flatten()
        chosen = chosen.flatten()
        places = max(1, math.ceil(self.capacity * self.used * count / self.experts))
        # each token's place in its expert's row; tokens over the capacity go to one extra place, which is not read
        place = functional.one_hot(chosen, self.experts).cumsum(0).gather(1, chosen[:, None])[:, 0] - 1
        slot = torch.where(place < places, chosen * places + place, self.experts * places)
        sent = tokens.new_zeros(self.experts * places + 1, hidden).index_add(
            0, slot, tokens.repeat_interleave(self.used, 0)
        )
        rows = parallel.exchanged(sent[:-1], self.tp).view(self.tp, self.experts // self.tp, places, hidden)
        rows = rows.transpose(0, 1).reshape(self.experts // self.tp, self.tp * places, hidden)
        up = torch.bmm(rows, self.up)
        if self.gated:
            gate, up = up.chunk(2, -1)
            up = functional.silu(gate) * up
        else:
            up = functional.gelu(up)
        rows = torch.bmm(up, self.down).view(self.experts // self.tp, self.tp, places, hidden).transpose(0, 1)
        back = parallel.exchanged(rows.reshape(self.experts * places, hidden), self.tp)
        back = torch.cat((back, back.new_zeros(1, hidden)))
        out = (back[slot] * weights[:, None]).view(count, self.used, hidden).sum(1)
        return parallel.gathered(out, self.tp).view(x.shape)
