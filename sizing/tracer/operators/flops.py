"""Counts the floating point operations of a forward pass and of its backward pass, from the forward pass alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sizing.tracer import torch_internals
from sizing.tracer.operators import products

_ATTENTION = "_scaled_dot_product_"
_OTHERS = {"transformers::grouped_mm_fallback": products.grouped}
_KNOWN = ("aten", "prim", "prims", "bft", "c10d", "_c10d_functional", "_c10d_functional_autograd", "higher_order")
_SUMMED = frozenset({"addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"})  # the first argument is added


class Counter(torch_internals.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that counts the products of all operators that run in it.

    The forward pass counts by torch's own formulas (torch.utils.flop_counter). The backward pass counts as much again
    for each operand that needs a gradient: twice the forward pass for a layer within a model, once for the first one.
    Attention recomputes its scores: 2.5 times. Recomputation of layers (checkpoint) is not counted, because the plan
    decides on it. `unknown` holds operators without a formula: those of other packages, and a few of torch's.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.quiet = False
        self.unknown: set[str] = set()
        self._formulas = products.formulas()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind not in torch_internals.PLAIN for kind in types):
            return NotImplemented  # its operators run again, on the tensors that it wraps
        out = func(*args, **kwargs)
        self.seen(args, kwargs, out)
        if self.quiet:
            return out
        packet, name = func._overloadpacket, func._schema.name
        formula = self._formulas.get(packet) or _OTHERS.get(name)
        if formula is None:
            if func.namespace not in _KNOWN or products.uncounted(name):
                self.unknown.add(name)
        else:
            forward = int(formula(*args, **kwargs, out_val=out))
            self.flops += forward + _backward(name if name in _OTHERS else packet.__name__, args, forward)
        return out

    def seen(self, args: Any, kwargs: Any, out: Any) -> None:
        """Hook that is called with each operator's arguments and results."""

    @contextlib.contextmanager
    def without_products(self) -> Iterator[None]:
        """Return a context in which operators are seen but not counted."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before


def _backward(name: str, args: Any, forward: int) -> int:
    if not torch.is_grad_enabled() and name not in _OTHERS:  # gradients are always off within a package's operator
        return 0
    tensors = torch_internals.tensors_in(args)
    if name.startswith(_ATTENTION):
        return forward * 5 // 2 if any(each.requires_grad for each in tensors[:3]) else 0
    if name in products.RECURRENT:  # states need gradients if weights do; the input does if an earlier layer learns
        given = products.matrices(args)
        if not any(each.requires_grad for each in (args[0], *given)):
            return 0
        tokens = int(args[0].numel()) // max(1, int(args[0].shape[-1]))
        return 2 * forward - (0 if args[0].requires_grad else 2 * tokens * int(given[0].numel()))
    operands = tensors[1:3] if name in _SUMMED else tensors[: 3 if name == "_trilinear" else 2]
    return forward * sum(bool(each.requires_grad) for each in operands)


def attention(query: Any, key: Any, value: Any) -> int:
    """Count scaled dot product attention forward and backward, by the kernel that keeps no scores (flash).

    There are two products forward. Backward there are three of queries with keys (the scores once more, and two
    gradients) and two with values. A causal mask does not halve the count.
    """
    scores = 2 * int(query.numel()) * int(key.shape[-2])
    weighed = scores * int(value.shape[-1]) // max(1, int(query.shape[-1]))
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    return scores + weighed + (3 * scores + 2 * weighed if learns else 0)


class Attention(TorchFunctionMode):
    """A mode that counts scaled dot product attention as flash, whichever kernel this machine's CPU uses."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value")
        given = [*args[:3], *(kwargs[name] for name in names[len(args) :])]
        if not self.counter.quiet:
            self.counter.flops += attention(*given)
        with self.counter.without_products():
            return func(*args, **kwargs)
