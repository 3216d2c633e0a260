"""Parameters and buffers that get their shape in the first forward pass (nn.LazyLinear), without contents."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import parameter

from sizing.tracer import torch_internals

_parameter: Any = parameter
_MIXIN: Any = _parameter.UninitializedTensorMixin


def is_lazy(tensor: Any) -> bool:
    """Whether the tensor has no shape yet."""
    return isinstance(tensor, _MIXIN)


def without_contents() -> None:
    """Let lazy tensors become tensors without contents; in torch they would keep their original storage.

    Until they have a shape, they are real tensors without elements; conversions by their module are applied later.
    """
    for kind in (parameter.UninitializedParameter, parameter.UninitializedBuffer):
        lazy: Any = kind
        lazy.__new__ = staticmethod(_maker(kind.__new__))
    made: Any = parameter.UninitializedParameter
    made.__deepcopy__ = _copied  # only for parameters: torch cannot copy an uninitialized buffer either
    _MIXIN.materialize = _materialize


def _maker(usual: Any) -> Any:
    def make(cls: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        with torch_internals.without_modes():
            made = usual(cls, requires_grad, dtype=dtype, **kwargs)
        made.born = {"device": device or torch_internals.default_device(), "dtype": made.dtype}
        made.later = []
        return made

    return make


def _copied(self: Any, memo: Any) -> Any:
    if id(self) not in memo:
        copy = memo[id(self)] = type(self)(self.requires_grad, **self.born)
        copy.later = list(self.later)
    return memo[id(self)]


def _materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    new = torch.empty(shape, device=device or self.born["device"], dtype=dtype or self.born["dtype"])
    for function in self.later:
        new = function(new)
    torch_internals.swap(
        self, torch.nn.Parameter(new, self.requires_grad) if isinstance(self, torch.nn.Parameter) else new
    )
