"""Buffers that gloo takes for collectives on CPUs; NCCL on GPUs has its buffers outside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sizing.tracer import torch_internals

_COPIES_INPUT = ("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")
_COPIES_OUTPUT = ("_allgather_base_", "allgather_into_tensor_coalesced_")


def buffers(ledger: Any) -> dict[Any, Callable[..., Any]]:
    """Map collectives to functions that call them and record the copy that gloo makes of the input or the output."""

    def copying(place: int) -> Callable[..., Any]:
        def call(func: Any, args: Any, kwargs: Any) -> Any:
            out = func(*args, **kwargs)
            copied = sum(each.numel() * each.element_size() for each in torch_internals.tensors_in(args[place]))
            ledger.scratch(copied, False)
            return out

        return call

    found: dict[Any, Callable[..., Any]] = {}
    for names, place in ((_COPIES_INPUT, 1), (_COPIES_OUTPUT, 0)):
        for name in names:
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                found[packet.default] = copying(place)
    return found
