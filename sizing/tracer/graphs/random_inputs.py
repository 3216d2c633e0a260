"""Real tensors in place of those without contents: random, but without overflows or indices out of bounds."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sizing.tracer import torch_internals


def weight(fake: Any, name: str, device: str) -> torch.Tensor:
    """Make a parameter or buffer: matrices are small and random, scales and variances one, biases and means zero."""
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=device)
    if not fake.is_floating_point():
        return made.zero_()  # as an index, 0 is always in bounds
    if fake.dim() > 1:
        return made.normal_(0.0, 0.02)
    last = name.rpartition(".")[2]
    return made.zero_() if "bias" in last or "mean" in last else made.fill_(1.0)


def like(fake: Any, device: str, *, learns: bool = False, rows: int = 0) -> torch.Tensor:
    """Make a tensor of the same form; whole numbers are random below `rows`, or 0 if `rows` is not given."""
    if fake.is_floating_point() or fake.is_complex():
        made = torch.randn(fake.shape, dtype=fake.dtype, device=device)
        return made.requires_grad_() if learns else made
    if rows > 1 and fake.dtype in (torch.int64, torch.int32):
        return torch.randint(0, rows, fake.shape, dtype=fake.dtype, device=device)
    return torch.zeros(fake.shape, dtype=fake.dtype, device=device)


class Filled(TorchFunctionMode):
    """A mode that replaces arguments without contents by real tensors, for example the targets that a loss holds."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self._known: dict[int, tuple[Any, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # a tensor without contents does not override torch's functions, and is not among the types
        args, kwargs = torch_internals.mapped(self._real, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _real(self, value: Any) -> Any:
        if not isinstance(value, torch_internals.FakeTensor):
            return value
        if id(value) not in self._known:
            with torch_internals.without_modes():
                self._known[id(value)] = value, like(value, self.device)
        return self._known[id(value)][1]
