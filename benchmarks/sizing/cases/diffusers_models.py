"""Denoising models of diffusers by class, small: "UNet2DConditionModel_bf16" is trained in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from training import DEVICE, Step, how_of, step_of
from with_torchvision import torchvision

assert torchvision  # which diffusers imports
import diffusers  # noqa: E402

_SIZES: dict[str, dict[str, Any]] = {
    "UNet2DConditionModel": {
        "sample_size": 32,
        "block_out_channels": (64, 128, 256, 256),
        "cross_attention_dim": 256,
        "attention_head_dim": 8,
    },
    "DiTTransformer2DModel": {"num_attention_heads": 6, "attention_head_dim": 64, "num_layers": 6, "sample_size": 32},
    "AutoencoderKL": {
        "block_out_channels": (32, 64, 128),
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
    },
}


def _inputs(name: str, batch: int) -> tuple[Tensor, ...]:
    """What the model's forward takes."""
    if name == "AutoencoderKL":
        return (torch.randn(batch, 3, 128, 128, device=DEVICE),)
    noisy = torch.randn(batch, 4, 32, 32, device=DEVICE)
    times = torch.randint(1000, (batch,), device=DEVICE)
    if name == "DiTTransformer2DModel":
        return noisy, times, torch.randint(1000, (batch,), device=DEVICE)
    return noisy, times, torch.randn(batch, 77, 256, device=DEVICE)


def _squares(model: nn.Module, wanted: Tensor, *inputs: Tensor) -> Tensor:
    made = model(*inputs).sample
    return nn.functional.mse_loss(made[:, : wanted.shape[1]].float(), wanted)


def _step(name: str, batch_size: int) -> Step:
    name, how = how_of(name)
    model = getattr(diffusers, name)(**_SIZES[name]).train().to(DEVICE)
    inputs = _inputs(name, batch_size)
    return step_of(model, (torch.randn_like(inputs[0]), *inputs), _squares, **how)


def __getattr__(name: str) -> Callable[[int], Step]:
    if name.startswith("__"):
        raise AttributeError(name)
    return functools.partial(_step, name)
