"""Tensor parallelism by a model's own plan: its linear layers are replaced by the parts of rank 0.

A plan is {"pattern of module paths": "colwise" | "rowwise" | ...}, as transformers has in `_tp_plan` and
`base_model_tp_plan`; `*` stands for one part of a path.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from sizing.tracer.ranks import collectives
from sizing.tracer.refusal import Refusal

_GATHERED = frozenset({"colwise_rep", "colwise_gather_output"})
_WHOLE = frozenset({"sequence_parallel", "gather", "replicate", "replicated", "embedding_rowwise", "rowwise_rep"})


def plan_of(model: nn.Module) -> dict[str, str]:
    """Return the model's plan, a map from module patterns to ways of cutting; {} if the model has none."""
    own = getattr(model, "tp_plan", None)
    if isinstance(own, dict) and own:
        return dict(own)
    found: dict[str, str] = {}
    base = getattr(model, "base_model", model)
    for name, module in model.named_modules():
        plan = getattr(module, "_tp_plan", None)
        if not plan and module is base:
            plan = getattr(getattr(module, "config", None), "base_model_tp_plan", None)
        if isinstance(plan, dict):
            found.update({f"{name}.{key}" if name else key: way for key, way in plan.items()})
    return found


def cut(model: nn.Module, tp: int, function: str) -> str:
    """Replace the modules that the model's plan names by rank 0's part; returns a note.

    Columns are cut evenly; each rank takes the whole input, whose gradient is summed over ranks. With rows, each rank
    takes a part of the input, and the sum over ranks is the output. Embeddings stay whole. Raises Refusal if there is
    no plan or if it cannot be applied.
    """
    plan = plan_of(model)
    if not plan:
        raise Refusal(
            f"no tensor parallelism: write def {function}(batch_size, *, tp=1) and cut the model there, "
            "or give the model a tp_plan",
            True,
        )
    done = 0
    for path, module in list(model.named_modules()):
        way = _way(plan, path)
        if way is None or way in _WHOLE or isinstance(module, nn.Embedding):
            continue
        if not isinstance(module, nn.Linear) or not (way in ("colwise", "rowwise") or way in _GATHERED):
            raise Refusal(f"the model's tp_plan has {path} {way}, which is not known: cut it in {function} by tp", True)
        new = _cut(module, path, way, tp)
        if new is not None:
            model.set_submodule(path, new)
            done += 1
    if not done:
        raise Refusal(f"the model's tp_plan names no module of it: cut the model in {function} by tp", True)
    return f"{done} layers are cut by the model's own plan"


def _way(plan: dict[str, str], path: str) -> str | None:
    for pattern, way in plan.items():
        if re.fullmatch("[^.]+".join(map(re.escape, pattern.split("*"))), path):
            return str(way)
    return None


def _cut(module: nn.Linear, path: str, way: str, tp: int) -> nn.Module | None:
    size = module.in_features if way == "rowwise" else module.out_features
    if size % tp:
        if way in _GATHERED:  # the output matrix stays whole, because a vocabulary may have any size
            return None
        raise Refusal(f"tp={tp} does not divide the {size} {way[:3]}s of {path}: choose a tp that does", True)
    return Rows(module, tp) if way == "rowwise" else Columns(module, tp, gathers=way in _GATHERED)


def _own(tensor: Tensor | None, dim: int, tp: int) -> Any:
    if tensor is None:
        return None
    return nn.Parameter(tensor.detach().narrow(dim, 0, tensor.shape[dim] // tp).clone(), tensor.requires_grad)


class Columns(nn.Module):
    """Rank 0's part of a linear layer that is cut along its outputs."""

    def __init__(self, whole: nn.Linear, tp: int, gathers: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = whole.in_features, whole.out_features // tp
        self.weight = _own(whole.weight, 0, tp)
        self.bias = _own(whole.bias, 0, tp)
        self.tp, self.gathers = tp, gathers

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out / tp), or to (..., out) if the layer gathers."""
        y = nn.functional.linear(collectives.to_ranks(x), self.weight, self.bias)
        return collectives.gathered(y, self.tp) if self.gathers else y


class Rows(nn.Module):
    """Rank 0's part of a linear layer that is cut along its inputs; only rank 0 adds the bias, so it counts once."""

    def __init__(self, whole: nn.Linear, tp: int) -> None:
        super().__init__()
        self.in_features, self.out_features = whole.in_features // tp, whole.out_features
        self.weight = _own(whole.weight, 1, tp)
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in / tp) to (..., out)."""
        return collectives.summed(nn.functional.linear(x, self.weight, self.bias))
