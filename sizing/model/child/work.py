"""The work of a step by operator: calls, floating point operations, bytes; and what collectives are handed."""

from __future__ import annotations

from typing import Any

from sizing.model.child import private, products

COLLECTIVES = (
    ("all_reduce", ("all_reduce", "allreduce")),
    ("all_gather", ("all_gather", "allgather")),
    ("reduce_scatter", ("reduce_scatter",)),
    ("all_to_all", ("all_to_all", "alltoall")),
    ("broadcast", ("broadcast",)),
)


def _bytes(tensors: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _handed(namespace: str, kind: str, args: Any) -> Any:
    """The argument that travels: torch's older collectives name what they write before what they read."""
    return args[1 if namespace == "c10d" and kind not in ("all_reduce", "broadcast") else 0]


class Work:
    """Counts while `counting`: the second step, in which nothing is set up any more."""

    def __init__(self) -> None:
        self.counting = False
        self.operators: dict[str, list[int]] = {}
        self.collectives: dict[str, int] = {}
        self._flops = products.formulas()

    def hand(self, kind: str, size: int) -> None:
        """Count bytes that are handed to a kind of collective."""
        if self.counting:
            self.collectives[kind] = self.collectives.get(kind, 0) + size

    def count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count one call of an operator."""
        if not self.counting:
            return
        given = private.tensors_in((args, kwargs))
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            name = func._schema.name.split("::")[1]
            for kind, words in COLLECTIVES:
                if any(word in name for word in words):
                    self.hand(kind, _bytes(private.tensors_in(_handed(func.namespace, kind, args))))
                    return
        packet = func._overloadpacket
        formula = self._flops.get(packet)
        row = self.operators.setdefault(str(packet).replace("aten.", "", 1), [0, 0, 0])
        row[0] += 1
        row[1] += int(formula(*args, **kwargs, out_val=out)) if formula else 0
        row[2] += _bytes(given) + _bytes(private.tensors_in(out))
