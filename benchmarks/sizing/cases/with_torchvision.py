"""Imports torchvision beside a torch without CUDA: one that was built for CUDA cannot load its own operators there.

It then fails to describe them, and is given their names. No model here calls them while it trains.
"""

from __future__ import annotations

import torch

try:
    import torchvision
except RuntimeError:
    _LIBRARY = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        _LIBRARY.define(f"{_name}(Tensor x) -> Tensor")
        _LIBRARY.define(f"_{_name}_backward(Tensor x) -> Tensor")
    import torchvision

__all__ = ["torchvision"]
