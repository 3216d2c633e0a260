"""The collectives of tensor parallelism (Megatron-LM's f and g) as operators with a gradient, which torch can export.

Each calls torch.distributed on the default group, which has real ranks or one rank that stands for all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor


@torch.library.custom_op("bft::all_reduce", mutates_args=())
def all_reduce(x: Tensor) -> Tensor:
    """Return the sum over all ranks."""
    out = x.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(out)
    return out


@torch.library.custom_op("bft::all_gather", mutates_args=())
def all_gather(x: Tensor, ranks: int) -> Tensor:
    """Concatenate all ranks' parts in the last dimension."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ranks)]
    torch.distributed.all_gather(parts, x.contiguous())
    return torch.cat(parts, -1)


@torch.library.custom_op("bft::to_ranks", mutates_args=())
def _to_ranks(x: Tensor) -> Tensor:
    return x.clone()


@all_reduce.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@all_gather.register_fake
def _(x: Tensor, ranks: int) -> Tensor:
    return x.new_empty([*x.shape[:-1], x.shape[-1] * ranks])


@_to_ranks.register_fake
def _(x: Tensor) -> Tensor:
    return x.clone()


def _own_part(context: Any, gradient: Tensor) -> Any:
    return gradient.narrow(-1, 0, gradient.shape[-1] // context.ranks), None


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.ranks = inputs[1]


_ops: Any = torch.ops.bft
all_reduce.register_autograd(lambda context, gradient: gradient)
all_gather.register_autograd(_own_part, setup_context=_remember)
_to_ranks.register_autograd(lambda context, gradient: _ops.all_reduce(gradient))


def summed(x: Tensor) -> Tensor:
    """Return the sum over ranks; each rank gets its gradient unchanged."""
    return _ops.all_reduce(x)  # type: ignore[no-any-return]


def to_ranks(x: Tensor) -> Tensor:
    """Return the same value on each rank; its gradient is the sum of the ranks' gradients."""
    return _ops.to_ranks(x)  # type: ignore[no-any-return]


def gathered(x: Tensor, ranks: int) -> Tensor:
    """Concatenate the parts of all ranks; each rank gets its own part of the gradient."""
    return _ops.all_gather(x, ranks)  # type: ignore[no-any-return]
