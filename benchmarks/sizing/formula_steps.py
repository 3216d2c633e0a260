"""A training step of the model that a `--config` text names, in plain torch: what the formula is held against.

Written the common way: attention by SDPA or written out, AdamW, gradients dropped before each step, torch.autocast
where the precision asks for it. Run by the tracer, which gives the text in the environment variable SIZING_CONFIG.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def _options() -> tuple[str, dict[str, str]]:
    family, _, rest = os.environ["SIZING_CONFIG"].partition(":")
    return family, dict(part.split("=", 1) for part in rest.split(","))


class Layer(nn.Module):
    """One layer: GPT's, or with `gated` Llama's."""

    def __init__(self, o: dict[str, str], gated: bool) -> None:
        super().__init__()
        h, self.heads = int(o["h"]), int(o["a"])
        self.kv = int(o.get("kv", self.heads))
        self.width = h // self.heads
        ffn = int(o.get("ffn", 4 * h))
        bias = not gated
        norm = RMSNorm if gated else nn.LayerNorm
        self.first, self.second = norm(h), norm(h)
        widths = [h, self.kv * self.width, self.kv * self.width]
        # GPT-2 has one matrix for the three, Llama one each
        self.into = nn.ModuleList(nn.Linear(h, width, bias=bias) for width in (widths if gated else [sum(widths)]))
        self.out = nn.Linear(h, h, bias=bias)
        self.gate = nn.Linear(h, ffn, bias=False) if gated else None
        self.up, self.down = nn.Linear(h, ffn, bias=bias), nn.Linear(ffn, h, bias=bias)
        self.dropout = float(o.get("dropout", 0))
        self.plain = o.get("attention") == "math"

    def forward(self, x: Tensor) -> Tensor:
        """From and to (batch, seq, hidden)."""
        batch, seq, _ = x.shape
        q, k, v = (each.view(batch, seq, -1, self.width).transpose(1, 2) for each in self._cut(self.first(x)))
        x = x + F.dropout(self.out(self._attend(q, k, v).transpose(1, 2).reshape(batch, seq, -1)), self.dropout)
        del q, k, v
        y = self.second(x)
        inner = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + F.dropout(self.down(inner), self.dropout)

    def _cut(self, y: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        made = [each(y) for each in self.into]
        return tuple(made) if len(made) > 1 else made[0].split(y.shape[-1], -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.plain:
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.dropout, is_causal=True, enable_gqa=self.kv < self.heads
            )
        if self.kv < self.heads:
            k, v = (each.repeat_interleave(self.heads // self.kv, 1) for each in (k, v))
        scores = (q * self.width**-0.5) @ k.transpose(-2, -1)
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return F.dropout(scores.masked_fill(ahead, float("-inf")).softmax(-1), self.dropout) @ v


class RMSNorm(nn.Module):
    """As models of the Llama family write it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and type."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Model(nn.Module):
    """Embedding, layers, output."""

    def __init__(self, o: dict[str, str], gated: bool) -> None:
        super().__init__()
        h = int(o["h"])
        self.words = nn.Embedding(int(o["V"]), h)
        self.places = None if gated else nn.Embedding(int(o["s"]), h)
        self.layers = nn.ModuleList(Layer(o, gated) for _ in range(int(o["l"])))
        self.norm = RMSNorm(h) if gated else nn.LayerNorm(h)
        self.head = nn.Linear(h, int(o["V"]), bias=False)
        if not gated:
            self.head.weight = self.words.weight
        self.again = o.get("recompute") == "full"
        self.dropout = float(o.get("dropout", 0))

    def forward(self, text: Tensor) -> Tensor:
        """Logits of every token."""
        x = self.words(text)
        if self.places is not None:
            x = x + self.places(torch.arange(text.shape[1], device=text.device))
        x = F.dropout(x, self.dropout)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, determinism_check="none") if self.again else layer(x)
        return self.head(self.norm(x))


def make_step(batch: int) -> Callable[[], None]:
    """The step of the model that SIZING_CONFIG names."""
    family, o = _options()
    precision, device = o.get("precision", "fp32"), "cuda"
    model = Model(o, family == "llama").to(device, torch.bfloat16 if precision == "bf16-pure" else torch.float32)
    kind = o.get("optimizer", "adamw")
    if kind in ("sgd", "momentum"):
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9 if kind == "momentum" else 0
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = torch.randint(0, int(o["V"]), (batch, int(o["s"])), device=device)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(int(o.get("accumulation", 1))):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                logits = model(texts)
                # in fp32, as the transformers package computes it
                loss = F.cross_entropy(logits.flatten(0, 1).float(), texts.flatten())
            loss.backward()
        optimizer.step()

    return step
