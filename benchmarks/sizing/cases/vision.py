"""A training step of one of torchvision's networks, named in the environment variable SIZING_NETWORK, on ImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from with_torchvision import torchvision


def make_step(batch: int) -> Callable[[], None]:
    """SGD with momentum in fp32."""
    model = getattr(torchvision.models, os.environ["SIZING_NETWORK"])(weights=None).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step
