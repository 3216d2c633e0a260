"""Small tensors whose numbers are known in a trace: they are made of plain numbers, or are tests for finite numbers.

A step may branch on them: rates of stochastic depth, `if not torch.isfinite(loss)`. torch keeps such numbers with a
tensor without contents, and computes results of operators on known tensors alone, until a tensor is written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sizing.tracer import torch_internals

_MADE = """
arange arange.start arange.start_step linspace logspace full zeros ones eye eye.m scalar_tensor
"""
"""Operators that make tensors of plain numbers."""


_DRAWN = "rand uniform_"
"""Operators that draw uniformly; a branch on one such number goes the likelier way, that of the mean."""


def factories() -> frozenset[Any]:
    """Return the operators of this torch that make tensors of plain numbers."""
    return _there(_MADE)


def drawing() -> frozenset[Any]:
    """Return the operators of this torch that draw uniformly."""
    return _there(_DRAWN)


def _there(names: str) -> frozenset[Any]:
    found = set()
    for name in names.split():
        packet, _, overload = name.partition(".")
        known = getattr(torch.ops.aten, packet, None)
        if known is not None and (overload or "default") in known.overloads():
            found.add(getattr(known, overload or "default"))
    return frozenset(found)


def keep(fake: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Record the numbers of a small tensor that a factory has made."""
    if (
        isinstance(out, torch_internals.FakeTensor)
        and out.constant is None
        and out.numel() <= torch_internals.MOST_KNOWN
    ):
        with torch_internals.without_modes():
            torch_internals.know(fake, out, func(*args, **{**kwargs, "device": torch.device("cpu")}))


def drawn(fake: Any, args: Any, out: Any) -> None:
    """Record the mean as the value of a single drawn number; `args` are a tensor and its bounds, or a shape."""
    if isinstance(out, torch_internals.FakeTensor) and out.numel() == 1:
        low, high = args[1] if len(args) > 1 else 0.0, args[2] if len(args) > 2 else 1.0
        with torch_internals.without_modes():
            torch_internals.know(fake, out, torch.full(out.shape, (low + high) / 2, dtype=out.dtype))


def finite(fake: Any) -> dict[Any, Callable[..., Any]]:
    """Return stand-ins for tests of finite numbers, and for functions of their results; unknown numbers are finite.

    The result of a test is known as long as nothing is written to its tensor.
    """
    tensor: Any = torch.Tensor

    def of(args: Any, kwargs: Any) -> Any:
        return args[0] if args else kwargs.get("input", kwargs.get("self"))

    def say(out: Any, same: Any) -> Any:
        if isinstance(out, torch_internals.FakeTensor):
            setattr(out, "same", (same, out._version))  # noqa: B010  (it is one of ours)
            if out.numel() <= torch_internals.MOST_KNOWN:
                with torch_internals.without_modes():
                    torch_internals.know(fake, out, torch.full(out.shape, same, dtype=out.dtype))
        return out

    def said(same: bool) -> Callable[..., Any]:
        def call(func: Any, args: Any, kwargs: Any) -> Any:
            known = getattr(of(args, kwargs), "constant", None) is not None
            return func(*args, **kwargs) if known else say(func(*args, **kwargs), same)

        return call

    def follows(made: Callable[[Any, int], Any]) -> Callable[..., Any]:
        def call(func: Any, args: Any, kwargs: Any) -> Any:
            given, out = of(args, kwargs), func(*args, **kwargs)
            same, version = getattr(given, "same", (None, 0))
            if same is None or version != given._version or not isinstance(out, torch_internals.FakeTensor):
                return out
            return say(out, made(same, given.numel() // max(1, out.numel())))

        return call

    same = follows(lambda value, _: value)
    opposite = follows(lambda value, _: not value)
    count = follows(lambda value, each: int(value) * each)
    return {
        **dict.fromkeys((torch.isfinite, tensor.isfinite), said(True)),
        **dict.fromkeys((torch.isnan, tensor.isnan, torch.isinf, tensor.isinf), said(False)),
        **dict.fromkeys((torch.all, tensor.all, torch.any, tensor.any), same),
        **dict.fromkeys((torch.logical_not, tensor.logical_not, tensor.__invert__), opposite),
        **dict.fromkeys((torch.sum, tensor.sum, torch.count_nonzero, tensor.count_nonzero), count),
    }
