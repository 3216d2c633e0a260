"""Layers cut over tensor-parallel ranks by hand, including their collectives (Shoeybi et al. 2019, Megatron-LM).

Each parameter has an attribute `cut`, (dimension, sizes of parts); a matrix of several parts (queries, keys and values
in one) is cut within each part. A parameter with `cut` None is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import nn


def part(whole: torch.Tensor, cut: tuple[int, Sequence[int]] | None, tp: int, rank: int) -> torch.Tensor:
    """Return the piece of a whole parameter that rank `rank` of `tp` holds; each part's size is a multiple of tp."""
    if cut is None or tp == 1:
        return whole
    dimension, sizes = cut
    uncut: Any = whole
    pieces = [piece.chunk(tp, dimension)[rank] for piece in uncut.split(list(sizes), dimension)]
    return torch.cat(pieces, dimension)


def parameter(shape: Sequence[int], cut: tuple[int, Sequence[int]] | None, value: float | None = None) -> nn.Parameter:
    """Make a parameter with its attribute `cut`; it is small and random, or `value` everywhere."""
    made: Any = nn.Parameter(torch.empty(*shape))
    made.cut = cut
    with torch.no_grad():
        if value is None:
            made.normal_(0.0, 0.02)
        else:
            made.fill_(value)
    return made  # type: ignore[no-any-return]


class Columns(nn.Module):
    """A linear layer whose output features are cut; `sizes` are the features of its parts over all ranks."""

    def __init__(self, inputs: int, sizes: Sequence[int], bias: bool, tp: int) -> None:
        super().__init__()
        if any(size % tp for size in sizes):
            raise ValueError(f"{sizes} cannot be cut over tp={tp}")
        cut = (0, tuple(sizes))
        self.weight = parameter([sum(sizes) // tp, inputs], cut)
        self.bias = parameter([sum(sizes) // tp], cut, 0.0) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's features."""
        return nn.functional.linear(x, self.weight, self.bias)


class Rows(nn.Module):
    """A linear layer whose input features are cut; the ranks' outputs are summed, and the bias is added once."""

    def __init__(self, inputs: int, outputs: int, bias: bool, tp: int) -> None:
        super().__init__()
        self.tp = tp
        self.weight = parameter([outputs, inputs // tp], (1, (inputs,)))
        self.bias = parameter([outputs], None, 0.0) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all features, the same on each rank."""
        if self.tp == 1:
            return nn.functional.linear(x, self.weight, self.bias)
        out = summed(nn.functional.linear(x, self.weight), self.tp)
        return out if self.bias is None else out + self.bias


class Norm(nn.Module):
    """LayerNorm or RMSNorm, whole on every rank."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.width = width
        self.weight = parameter([width], None, 1.0)
        self.bias = parameter([width], None, 0.0) if kind == "layer" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise over the last dimension."""
        if self.bias is not None:
            return nn.functional.layer_norm(x, (self.width,), self.weight, self.bias)
        return nn.functional.rms_norm(x, (self.width,), self.weight, 1e-5)


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x = x.contiguous()
        dist.all_reduce(x)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, tp: int) -> Any:
        ctx.tp = tp
        return x.chunk(tp)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _all_gather(grad, ctx.tp), None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, tp: int) -> Any:
        ctx.tp = tp
        return _all_gather(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.chunk(ctx.tp)[dist.get_rank()].contiguous(), None


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return _all_to_all(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _all_to_all(grad)


def _all_gather(x: torch.Tensor, tp: int) -> torch.Tensor:
    out = x.new_empty(tp * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous())
    return out


def _all_to_all(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


def copied(x: torch.Tensor, tp: int) -> torch.Tensor:
    """Pass on a tensor that is the same on all ranks; their gradients are summed."""
    return x if tp == 1 else _Copied.apply(x)  # type: ignore[no-untyped-call]


def summed(x: torch.Tensor, tp: int) -> torch.Tensor:
    """Sum over ranks in place; each rank gets the gradient of the sum."""
    return x if tp == 1 else _Summed.apply(x)  # type: ignore[no-untyped-call]


def scattered(x: torch.Tensor, tp: int) -> torch.Tensor:
    """Return this rank's part, along the first dimension, of a tensor that is the same on all ranks."""
    return x if tp == 1 else _Scattered.apply(x, tp)  # type: ignore[no-untyped-call]


def gathered(x: torch.Tensor, tp: int) -> torch.Tensor:
    """Concatenate all ranks' parts along the first dimension; the result is the same on all ranks."""
    return x if tp == 1 else _Gathered.apply(x, tp)  # type: ignore[no-untyped-call]


def exchanged(x: torch.Tensor, tp: int) -> torch.Tensor:
    """Send part i of the first dimension to rank i, and receive this rank's part from each (all-to-all)."""
    return x if tp == 1 else _Exchanged.apply(x)  # type: ignore[no-untyped-call]


class _SplitEntropy(torch.autograd.Function):
    """Cross-entropy of logits with cut columns; ranks exchange only maxima, sums and the targets' logits."""

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any, first: int) -> Any:
        logits = logits.float()
        top = logits.max(-1).values
        dist.all_reduce(top, dist.ReduceOp.MAX)
        shifted = logits - top[:, None]
        here = (targets >= first) & (targets < first + logits.shape[-1])
        at = torch.where(here, targets - first, 0)[:, None]
        own = torch.where(here, shifted.gather(1, at)[:, 0], 0.0)
        dist.all_reduce(own)
        powers = shifted.exp_()
        total = powers.sum(-1)
        dist.all_reduce(total)
        powers.div_(total[:, None])
        ctx.save_for_backward(powers, here, at)
        return (total.log() - own).mean()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        powers, here, at = ctx.saved_tensors
        powers = powers.scatter_add(1, at, -here[:, None].to(powers.dtype))
        return powers * (grad / len(here)), None, None


def entropy(logits: torch.Tensor, targets: torch.Tensor, tp: int) -> torch.Tensor:
    """Return the mean cross-entropy of (rows, this rank's words) logits against (rows,) targets."""
    if tp == 1:
        return nn.functional.cross_entropy(logits.float(), targets)
    first = dist.get_rank() * logits.shape[-1]
    split: Any = _SplitEntropy
    loss: torch.Tensor = split.apply(logits, targets, first)
    return loss
