"""How many bytes of tensors are held, and were at most, while real operators run."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from sizing.model.child import private


class Meter(private.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts each storage from the operator that makes it until nobody holds it; what was there before is `began`.

    What a kernel takes for itself while it runs is not seen.
    """

    def __init__(self, began: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.peak = began
        self._sizes: dict[int, int] = {}

    def know(self, tensors: Any) -> None:
        """Tensors that were there before, and are counted in `began`."""
        for each in tensors:
            self._sizes.setdefault(private.local(each).untyped_storage()._cdata, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in private.PLAIN for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for each in private.tensors_in(out):
            self._see(private.local(each))
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
    """Of the storages of tensors, each once."""
    found = {}
    for each in tensors:
        storage = private.local(each).untyped_storage()
        found[storage._cdata] = storage.nbytes()
    return sum(found.values())
