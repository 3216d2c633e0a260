"""Parts that the training steps here share: device, precisions, optimizers, micro-batches and ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

Step = Callable[[], None]
Spread = Callable[[nn.Module], nn.Module] | None
"""How a model is spread over ranks; None where it is not."""

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

_CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_OPTIMIZERS = ("adamw", "adafactor", "momentum", "sgd")


def how_of(name: str) -> tuple[str, dict[str, Any]]:
    """A model's name and what `step_of` takes, of both together as in "resnet50_bf16_momentum"."""
    how = {}
    while (last := name.rpartition("_")[2]) in (*_CASTS, *_OPTIMIZERS):
        how["precision" if last in _CASTS else "optimizer"] = last
        name = name.removesuffix(f"_{last}")
    return name, how


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    """One of torch's optimizers by a short name; "-loop" updates parameter by parameter, which takes less memory."""
    parameters = list(model.parameters())
    kind, _, how = name.partition("-")
    foreach = False if how == "loop" else None
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=foreach, fused=True if how == "fused" else None)
    if kind == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-4, foreach=foreach)
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9 if kind == "momentum" else 0.0, foreach=foreach)


def step_of(
    model: nn.Module,
    samples: Sequence[Tensor],
    loss: Callable[..., Tensor],
    *,
    optimizer: str = "adamw",
    precision: str = "fp32",
    micro_batches: int = 1,
    clip: float | None = None,
    set_to_none: bool = True,
) -> Step:
    """A training step of a model: `loss(model, *samples)` forward and backward, then the optimizer.

    The samples are cut into `micro_batches` along their first dimension, whose gradients add up. `precision` is fp32,
    or bf16 or fp16 under autocast, fp16 with a scaler of gradients.
    """
    steps = optimizer_of(model, optimizer)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "fp16")
    parts = list(zip(*(each.chunk(micro_batches) for each in samples), strict=True))

    def step() -> None:
        for part in parts:
            casts = torch.autocast(DEVICE.type, _CASTS[precision]) if precision in _CASTS else contextlib.nullcontext()
            with casts:
                found = loss(model, *part) / micro_batches
            scaler.scale(found).backward()
        if clip is not None:
            scaler.unscale_(steps)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(steps)
        scaler.update()
        steps.zero_grad(set_to_none=set_to_none)

    return step


def tokens(batch: int, length: int, words: int) -> Tensor:
    """Random words of a text."""
    return torch.randint(words, (batch, length), device=DEVICE)


def mesh_of(ranks: int) -> DeviceMesh:
    """All ranks in a row, joined as torchrun has set them up."""
    if not dist.is_initialized():
        dist.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    if DEVICE.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return init_device_mesh(DEVICE.type, (ranks,))


def in_replicas(dp: int, **how: Any) -> Spread:
    """Makes `dp` replicas of a model (DistributedDataParallel)."""

    def copy(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, process_group=mesh_of(dp).get_group(), **how)

    return copy if dp > 1 else None


def in_shards(fsdp: int, layers: str = "blocks", **how: Any) -> Spread:
    """Cuts parameters, gradients and states of each of a model's `layers` over `fsdp` ranks (FSDP2)."""

    def cut(model: nn.Module) -> nn.Module:
        mesh = mesh_of(fsdp)
        for layer in model.get_submodule(layers).children():
            fully_shard(layer, mesh=mesh, **how)
        fully_shard(model, mesh=mesh, **how)
        return model

    return cut if fsdp > 1 else None
