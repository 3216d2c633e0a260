"""Models of torchvision by name, with random weights: "resnet50_bf16_momentum" is trained in bfloat16 with momentum."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from training import DEVICE, Step, how_of, step_of
from with_torchvision import torchvision

_CLASSES = 100


def _classified(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs), labels)


def _segmented(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs)["out"], labels)


def _detected(model: nn.Module, inputs: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    targets = [{"boxes": box, "labels": label} for box, label in zip(boxes, labels, strict=True)]
    return torch.stack(list(model(list(inputs), targets).values())).sum()


def _step(name: str, batch_size: int) -> Step:
    name, how = how_of(name)
    video, detects = name.startswith("r3d"), name.startswith("retinanet")
    segments = name.startswith(("deeplab", "lraspp"))
    size = 112 if video else 224
    more: dict[str, int] = {"min_size": size, "max_size": size} if detects else {}
    if detects or segments:
        more["weights_backbone"] = None  # type: ignore[assignment]
    model = torchvision.models.get_model(name, weights=None, num_classes=_CLASSES, **more).train().to(DEVICE)
    inputs = torch.randn(batch_size, 3, *((8,) if video else ()), size, size, device=DEVICE)
    if detects:
        corners = torch.rand(batch_size, 4, 2, device=DEVICE) * size / 2
        boxes = torch.cat([corners, corners + size / 4], 2)
        labels = torch.randint(1, _CLASSES, (batch_size, 4), device=DEVICE)
        return step_of(model, (inputs, boxes, labels), _detected, **how)
    labels = torch.randint(_CLASSES, (batch_size, *((size, size) if segments else ())), device=DEVICE)
    return step_of(model, (inputs, labels), _segmented if segments else _classified, **how)


def __getattr__(name: str) -> Callable[[int], Step]:
    if name.startswith("__"):
        raise AttributeError(name)
    return functools.partial(_step, name)
