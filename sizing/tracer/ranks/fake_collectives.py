"""Records the collectives of tensor-parallel ranks, and performs them in one rank alone at almost no cost.

torch.distributed's functions are replaced before the user's code is loaded; functional collectives and DTensor's are
seen as operators. Data from other ranks has the right shape, but this rank's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.operators.work import COLLECTIVES

_GROWS = frozenset({"all_gather"})
_OWN = ("bft",)  # operators of sizing.tracer.ranks.collectives
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", *_OWN)


class CollectiveRecorder(torch_internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that counts collectives by (kind, bytes, place); `place()` is the step's current position in the model."""

    def __init__(self, place: Callable[[], str] = str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place = place
        self.found: dict[tuple[str, int, str], int] = {}

    def add(self, kind: str, size: int) -> None:
        """Count one collective of `size` bytes."""
        if size:
            key = kind, size, self.place()
            self.found[key] = self.found.get(key, 0) + 1

    def __enter__(self) -> Any:
        _recorders.append(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        _recorders.remove(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in torch_internals.PLAIN for kind in types):
            return NotImplemented  # a DTensor's operators run again, on its local tensors
        out = func(*args, **(kwargs or {}))
        # our own operators call torch.distributed, which counts; on tensors without contents they do not run
        alike = torch_internals.tensors_in(args) or [None]
        if func.namespace in _NAMESPACES and (
            func.namespace not in _OWN or isinstance(alike[0], torch_internals.FakeTensor)
        ):
            name = func._schema.name.split("::")[1]
            for kind, words in COLLECTIVES:
                if any(word in name for word in words):
                    self.add(
                        kind, max(_bytes(torch_internals.tensors_in(args)), _bytes(torch_internals.tensors_in(out)))
                    )
                    break
        return out


_recorders: list[CollectiveRecorder] = []


def _bytes(tensors: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _tell(kind: str, *tensors: Any) -> None:
    size = _bytes(torch_internals.local(each) for each in tensors)
    for each in _recorders:
        each.add(kind, size)


class _Done:
    """The handle of an asynchronous collective, which is done already."""

    def wait(self, *_: Any, **__: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _handle(asynchronous: bool) -> Any:
    return _Done() if asynchronous else None


def alone() -> None:
    """Replace the collectives of torch.distributed by ones that a rank performs alone."""
    from torch import distributed

    everything: Any = distributed

    def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        _tell("all_reduce", tensor)
        return _handle(async_op)

    def broadcast(tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, **_: Any) -> Any:
        _tell("broadcast", tensor)
        return _handle(async_op)

    def all_gather_into_tensor(out: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        _tell("all_gather", out)
        out.view(-1, tensor.numel()).copy_(tensor.reshape(1, -1))
        return _handle(async_op)

    def all_gather(outs: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        _tell("all_gather", *outs)
        for each in outs:
            each.copy_(tensor)
        return _handle(async_op)

    def reduce_scatter_tensor(out: Any, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        _tell("reduce_scatter", tensor)
        out.copy_(tensor.reshape(-1)[: out.numel()].view(out.shape))
        return _handle(async_op)

    def reduce_scatter(out: Any, tensors: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        _tell("reduce_scatter", *tensors)
        out.copy_(tensors[0])
        return _handle(async_op)

    def all_to_all_single(
        out: Any, tensor: Any, out_sizes: Any = None, sizes: Any = None, group: Any = None, async_op: bool = False
    ) -> Any:
        _tell("all_to_all", tensor)
        count = min(out.numel(), tensor.numel())
        out.view(-1)[:count].copy_(tensor.reshape(-1)[:count])
        return _handle(async_op)

    def all_to_all(outs: Any, tensors: Any, group: Any = None, async_op: bool = False) -> Any:
        _tell("all_to_all", *tensors)
        for out, tensor in zip(outs, tensors, strict=True):
            count = min(out.numel(), tensor.numel())
            out.view(-1)[:count].copy_(tensor.reshape(-1)[:count])
        return _handle(async_op)

    for function in (
        all_reduce,
        broadcast,
        all_gather_into_tensor,
        all_gather,
        reduce_scatter_tensor,
        reduce_scatter,
        all_to_all_single,
        all_to_all,
    ):
        setattr(everything, function.__name__, function)
    everything._all_gather_base = all_gather_into_tensor
    everything._reduce_scatter_base = reduce_scatter_tensor


def listed(found: dict[tuple[str, int, str], int]) -> list[list[Any]]:
    """Return sorted rows of kind, bytes and calls, added up over all places."""
    together: dict[tuple[str, int], int] = {}
    for (kind, size, _), calls in found.items():
        together[kind, size] = together.get((kind, size), 0) + calls
    return [[kind, size, calls] for (kind, size), calls in sorted(together.items())]


def seen_by(place: Callable[[], str], run: Callable[[], None]) -> dict[tuple[str, int, str], int]:
    """Return the collectives of `run`, by place."""
    with CollectiveRecorder(place) as recorder:
        run()
    assert isinstance(recorder, CollectiveRecorder)
    return recorder.found


def groups_of(size: int) -> bool:
    """Whether this process is in a group of `size` ranks."""
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() == size
