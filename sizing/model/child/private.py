"""All that is taken from torch's private parts, in one place: a release of torch that moves them is mended here."""

from __future__ import annotations

import sys
from typing import Any, Tuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "tree_flatten",
]

PLAIN: Tuple[type, ...] = (
    (torch.Tensor, torch.nn.Parameter, FakeTensor, torch.nn.parameter.Buffer)
    if hasattr(torch.nn.parameter, "Buffer")
    else (torch.Tensor, torch.nn.Parameter, FakeTensor)
)
"""Types of tensors that hold their own storage; others (DTensor) wrap tensors, and their operators come again."""


def fake_mode() -> Any:
    """The mode in which tensors have a shape and no contents."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def local(tensor: Any) -> Any:
    """The tensor of this rank behind one that is spread over ranks."""
    return getattr(tensor, "_local_tensor", tensor)


def flop_formulas() -> Any:
    """Operators to functions that count their floating point operations."""
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def join_fake_group(size: int) -> None:
    """Stand as rank 0 of a process group in which nobody else is and collectives do nothing."""
    import torch.distributed as dist

    if "fake" not in getattr(dist.Backend, "backend_list", []):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    else:
        dist.init_process_group("fake", rank=0, world_size=size)


def collectives() -> Any:
    """Operators of collectives that need contents or a process group, to a function that stands in for them."""
    from torch.distributed._tools import fake_collectives

    return fake_collectives


def quiet_compile() -> None:
    """torch.compile leaves functions as they are."""

    def plain(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        return model if model is not None else (lambda function: function)

    torch.compile = plain  # type: ignore[assignment]
    torch.nn.Module.compile = lambda self, *args, **kwargs: None  # type: ignore[method-assign]
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].config.disable = True
