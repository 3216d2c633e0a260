"""Memory that oneDNN takes for itself on a CPU: copies in its own layouts, and buffers to unfold or add up in.

oneDNN's choice of algorithm depends on the processor's instructions and is documented nowhere. So each form of an
operator is run once, alone and on zeros. This serves traces that are compared with a CPU; a GPU has other kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from sizing.tracer import autograd_internals, torch_internals

_ALWAYS = "convolution convolution_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward"
_OF_HALVES = "mm addmm bmm baddbmm"
"""Operators that oneDNN runs if their numbers have 16 bits."""


def take(tracker: Any) -> None:
    """Give these operators' results their real form, and count the memory that they take in addition."""
    for name in f"{_ALWAYS} {_OF_HALVES}".split():
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:
            asked = _Asked(name in _ALWAYS.split())
            tracker.stand_ins[packet.default] = asked.results
            tracker.scratch[packet.default] = asked.scratch


class _Asked:
    """An operator with the measurements of its forms: the bytes in addition to the results, and the results' forms."""

    def __init__(self, always: bool) -> None:
        self._always = always
        self._known: dict[str, tuple[int, Any]] = {}
        self._last_bytes = 0

    def results(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the operator's results, without contents."""
        self._last_bytes = 0
        if not (self._always or args[0].dtype in (torch.bfloat16, torch.float16)):
            return func(*args, **kwargs)
        given = torch_internals.mapped(lambda each: (each.shape, each.stride(), each.dtype), (args, kwargs))
        form = f"{given} {torch.is_grad_enabled()}"  # a recurrent layer keeps more if a backward pass may follow
        if form not in self._known:
            with torch_internals.without_modes(), torch.autocast("cpu", enabled=False):
                self._known[form] = _run(func, *torch_internals.mapped(_zeros, (args, kwargs)))
        self._last_bytes, made = self._known[form]
        return torch_internals.mapped(
            lambda each: torch.empty_strided(each.shape, each.stride(), dtype=each.dtype), made
        )

    def scratch(self, args: Any) -> int:
        """Return the bytes that the latest call took in addition to its results."""
        return self._last_bytes


def _zeros(tensor: Any) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


def _run(func: Any, args: Any, kwargs: Any) -> tuple[int, Any]:
    """Run a call; return the most bytes that it takes in addition to its results, and the results as meta tensors."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        made = func(*args, **kwargs)
    held_bytes = most_bytes = 0
    for size in autograd_internals.allocations(profile):
        held_bytes += size
        most_bytes = max(most_bytes, held_bytes)
    results = {
        each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in torch_internals.tensors_in(made)
    }
    return max(0, most_bytes - sum(results.values())), torch_internals.mapped(lambda each: each.to("meta"), made)
