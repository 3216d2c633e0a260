"""Measures the bytes that tensors hold, and their peak, while real operators run."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from sizing.tracer import torch_internals


class Meter(torch_internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that counts each storage from the operator that makes it until it is freed.

    `began` is the bytes held before. Memory that a kernel takes for itself while it runs is not seen.
    """

    def __init__(self, began: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.peak = began
        self._sizes: dict[int, int] = {}

    def know(self, tensors: Any) -> None:
        """Do not count these tensors: they existed before and are part of `began`."""
        for each in tensors:
            self._sizes.setdefault(torch_internals.local(each).untyped_storage()._cdata, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in torch_internals.PLAIN for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for each in torch_internals.tensors_in(out):
            self._see(torch_internals.local(each))
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.held += storage.nbytes()
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._gone, key).atexit = False

    def _gone(self, key: int) -> None:
        self.held -= self._sizes.pop(key, 0)


def bytes_of(tensors: Any) -> int:
    """Return the bytes of the tensors' storages, counting each once."""
    found = {}
    for each in tensors:
        storage = torch_internals.local(each).untyped_storage()
        found[storage._cdata] = storage.nbytes()
    return sum(found.values())
