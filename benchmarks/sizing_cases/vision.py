"""A training step of one of torchvision's networks, named in the environment variable SIZING_NETWORK, on ImageNet."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

if not hasattr(torch.ops.torchvision, "nms"):
    # A torchvision that was built for CUDA cannot load its own operators here, and fails to describe them; no
    # network that classifies calls them.
    _LIBRARY = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        _LIBRARY.define(f"{_name}(Tensor x) -> Tensor")
        _LIBRARY.define(f"_{_name}_backward(Tensor x) -> Tensor")

import torchvision


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
