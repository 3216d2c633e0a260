"""Small tensors whose numbers are known although a step computes nothing: made of numbers alone, or said to be finite.

A step that decides on them is followed: rates of stochastic depth, `if not torch.isfinite(loss)`. torch carries such
numbers along with a tensor without contents, through whatever is done to known ones alone, until it is written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sizing.model.child import private

_MADE = """
arange arange.start arange.start_step linspace logspace full zeros ones eye eye.m scalar_tensor
"""
"""Operators that make tensors of numbers alone."""


def factories() -> frozenset[Any]:
    """Those that this torch has."""
    found = set()
    for name in _MADE.split():
        packet, _, overload = name.partition(".")
        known = getattr(torch.ops.aten, packet, None)
        if known is not None and (overload or "default") in known.overloads():
            found.add(getattr(known, overload or "default"))
    return frozenset(found)


def keep(fake: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Note the numbers of a small tensor that a factory has made."""
    if isinstance(out, private.FakeTensor) and out.constant is None and out.numel() <= private.MOST_KNOWN:
        with private.without_modes():
            private.know(fake, out, func(*args, **{**kwargs, "device": torch.device("cpu")}))


def finite(fake: Any) -> dict[Any, Callable[..., Any]]:
    """Functions of torch that ask whether numbers are finite, and what is made of the answers; all are taken to be."""
    tensor: Any = torch.Tensor

    def say(out: Any, same: Any) -> Any:
        if isinstance(out, private.FakeTensor):
            setattr(out, "same", same)  # noqa: B010  (it is one of ours)
            if out.numel() <= private.MOST_KNOWN:
                with private.without_modes():
                    private.know(fake, out, torch.full(out.shape, same, dtype=out.dtype))
        return out

    def said(same: bool) -> Callable[..., Any]:
        return lambda func, args, kwargs: say(func(*args, **kwargs), same)

    def follows(of: Callable[[Any, int], Any]) -> Callable[..., Any]:
        def call(func: Any, args: Any, kwargs: Any) -> Any:
            out, same = func(*args, **kwargs), getattr(args[0], "same", None)
            return out if same is None else say(out, of(same, args[0].numel() // max(1, getattr(out, "numel", int)())))

        return call

    same = follows(lambda value, _: value)
    opposite = follows(lambda value, _: not value)
    count = follows(lambda value, of: int(value) * of)
    return {
        **dict.fromkeys((torch.isfinite, tensor.isfinite), said(True)),
        **dict.fromkeys((torch.isnan, tensor.isnan, torch.isinf, tensor.isinf), said(False)),
        **dict.fromkeys((torch.all, tensor.all, torch.any, tensor.any), same),
        **dict.fromkeys((torch.logical_not, tensor.logical_not, tensor.__invert__), opposite),
        **dict.fromkeys((torch.sum, tensor.sum, torch.count_nonzero, tensor.count_nonzero), count),
    }
