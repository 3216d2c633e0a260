"""The work of a step by operator (calls, floating point operations, bytes), and the bytes given to collectives."""

from __future__ import annotations

from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.operators import products

COLLECTIVES = (
    ("all_reduce", ("all_reduce", "allreduce")),
    ("all_gather", ("all_gather", "allgather")),
    ("reduce_scatter", ("reduce_scatter",)),
    ("all_to_all", ("all_to_all", "alltoall")),
    ("broadcast", ("broadcast",)),
)

_PRECISIONS = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}
_CUDNN = ("convolution", *products.RECURRENT)


def _precision(name: str, given: Any) -> str:
    """Return the precision of an operator's products on a GPU; types below 16 bits count as 16 bits (bf16).

    Products of fp32 are tf32 if the script allows it: off by default for matrices, on by default in cuDNN.
    """
    kinds = (each.dtype for each in given if each.is_floating_point() or each.is_complex())
    found = _PRECISIONS.get(next(kinds, torch.bfloat16), "bf16")
    if found != "fp32":
        return found
    if name.startswith(_CUDNN):
        return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _bytes(tensors: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _handed(namespace: str, kind: str, args: Any) -> Any:
    """Return the argument that is sent: torch's older collectives take their output before their input."""
    return args[1 if namespace == "c10d" and kind not in ("all_reduce", "broadcast") else 0]


class WorkCounter:
    """The counters of a step's work; they count while `counting`, in the second step, after all set-up."""

    def __init__(self) -> None:
        self.counting = False
        self.operators: dict[tuple[str, str], list[int]] = {}
        self.collectives: dict[str, tuple[int, int]] = {}
        self.upper_bounds = 0
        self._flops = products.formulas()

    def bound(self) -> None:
        """Count an operator for whose result only an upper bound is known."""
        self.upper_bounds += self.counting

    def hand(self, kind: str, size: int) -> None:
        """Count a call of a kind of collective, and the bytes given to it."""
        if self.counting:
            calls, bytes_ = self.collectives.get(kind, (0, 0))
            self.collectives[kind] = calls + 1, bytes_ + size

    def count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count one call of an operator."""
        if not self.counting:
            return
        given = torch_internals.tensors_in((args, kwargs))
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            name = func._schema.name.split("::")[1]
            for kind, words in COLLECTIVES:
                if any(word in name for word in words):
                    self.hand(kind, _bytes(torch_internals.tensors_in(_handed(func.namespace, kind, args))))
                    return
        packet = func._overloadpacket
        formula = self._flops.get(packet)
        name = str(packet).replace("aten.", "", 1)
        row = self.operators.setdefault((name, _precision(name, given) if formula else ""), [0, 0, 0])
        row[0] += 1
        row[1] += int(formula(*args, **kwargs, out_val=out)) if formula else 0
        row[2] += 0 if func.is_view else _bytes(given) + _bytes(torch_internals.tensors_in(out))
