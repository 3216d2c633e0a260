"""Models of timm by name, with random weights: "mixer_s16_224_bf16" is trained in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from training import DEVICE, Step, how_of, step_of
from with_torchvision import torchvision

assert torchvision  # which timm imports
import timm  # noqa: E402


def _step(name: str, batch_size: int) -> Step:
    name, how = how_of(name)
    model = timm.create_model(name, num_classes=100, drop_path_rate=0.1).train().to(DEVICE)
    pictures = torch.randn(batch_size, *model.default_cfg["input_size"], device=DEVICE)
    labels = torch.randint(100, (batch_size,), device=DEVICE)
    return step_of(
        model, (pictures, labels), lambda net, inputs, labels: nn.functional.cross_entropy(net(inputs), labels), **how
    )


def __getattr__(name: str) -> Callable[[int], Step]:
    if name.startswith("__"):
        raise AttributeError(name)
    return functools.partial(_step, name)
