"""Training steps of common kinds, written in torch alone; each takes at most 9 GiB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]

_HIDDEN, _LAYERS, _HEADS, _TOKENS, _WORDS = 1024, 12, 16, 1024, 32000


class Block(nn.Module):
    """A transformer layer with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(_HIDDEN, 3 * _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.up, self.down = nn.Linear(_HIDDEN, 4 * _HIDDEN), nn.Linear(4 * _HIDDEN, _HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (batch, tokens, hidden)."""
        query, key, value = (
            each.unflatten(2, (_HEADS, -1)).transpose(1, 2) for each in self.qkv(self.norms[0](x)).chunk(3, 2)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        made: torch.Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return made


class Language(nn.Module):
    """A language model of 0.18 billion parameters with tied embeddings."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.words, self.places = nn.Embedding(_WORDS, _HIDDEN), nn.Embedding(_TOKENS, _HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_HIDDEN)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the loss of (batch, tokens) words."""
        x = self.words(words) + self.places.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        logits = functional.linear(self.norm(x), self.words.weight)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *_convolved(inputs, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolved(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolved(width, 4 * width, 1, 1),
        )
        plain = inputs == 4 * width
        self.short = nn.Identity() if plain else nn.Sequential(*_convolved(inputs, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block to (batch, channels, height, width)."""
        return functional.relu(self.main(x) + self.short(x), inplace=True)


def _convolved(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


def _residual() -> nn.Module:
    """Make a ResNet-50."""
    layers: list[nn.Module] = [*_convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for at in range(count):
            width = 64 << stage
            layers.append(Bottleneck(inputs, width, 2 if stage and not at else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def _trained(
    model: nn.Module,
    losses: Sequence[Callable[[], Any]],
    dtype: torch.dtype | None = None,
    make: Callable[..., Any] = torch.optim.AdamW,
    **options: Any,
) -> Step:
    """Return a step: backward from each loss (a micro-batch), then an update; under autocast if `dtype` is given."""
    optimizer = make(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)

    def step() -> None:
        for loss in losses:
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                value = loss()
            scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _language(
    batch: int, dtype: torch.dtype | None, *, recomputes: bool = False, parts: int = 1, fused: bool = False
) -> Step:
    model = Language(recomputes).cuda()
    words = torch.randint(0, _WORDS, (batch, _TOKENS), device="cuda")
    losses = [lambda part=part: model(part) for part in words.chunk(parts)]
    return _trained(model, losses, dtype, fused=fused)


def _images(batch: int, dtype: torch.dtype | None) -> Step:
    model = _residual().cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    losses = [lambda: functional.cross_entropy(model(images), labels)]
    return _trained(model, losses, dtype, torch.optim.SGD, lr=0.1, momentum=0.9)


def language_fp32(batch: int) -> Step:
    """Train a language model with products in fp32, which most GPUs compute slowly."""
    return _language(batch, None)


def language_bf16(batch: int) -> Step:
    """Train a language model with large products in bf16."""
    return _language(batch, torch.bfloat16)


def language_recomputed(batch: int) -> Step:
    """Train a language model whose layers are recomputed in the backward pass."""
    return _language(batch, torch.bfloat16, recomputes=True)


def language_accumulated(batch: int) -> Step:
    """Train a language model with four micro-batches, and one kernel that updates all weights."""
    return _language(batch, torch.bfloat16, parts=4, fused=True)


def encoder_fp16(batch: int) -> Step:
    """Train torch's own encoder with dropout, in fp16 with a scaler."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
    x = torch.randn(batch, 512, 768, device="cuda")
    return _trained(model, [lambda: model(x).square().mean()], torch.float16)


def images_fp32(batch: int) -> Step:
    """Train a ResNet-50; torch rounds its convolutions to TF32 if the GPU supports it."""
    return _images(batch, None)


def images_bf16(batch: int) -> Step:
    """Train a ResNet-50 under autocast in bf16."""
    return _images(batch, torch.bfloat16)


def tables(batch: int) -> Step:
    """Train a recommender, with little arithmetic but much memory traffic."""
    bags = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(16)).cuda()
    top = nn.Sequential(nn.Linear(16 * 64, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    chosen = torch.randint(0, 200_000, (16, batch, 20), device="cuda")
    clicked = torch.rand(batch, 1, device="cuda").round()

    def loss() -> torch.Tensor:
        found = torch.cat([bag(ids) for bag, ids in zip(bags, chosen, strict=True)], 1)
        return functional.binary_cross_entropy_with_logits(top(found), clicked)

    return _trained(nn.ModuleList([bags, top]), [loss])


def deep(batch: int) -> Step:
    """Train a hundred thin layers, whose time is that of launching operators."""
    layers = [layer for _ in range(100) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(batch, 256, device="cuda")
    return _trained(model, [lambda: model(x).square().mean()])
