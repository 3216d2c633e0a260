"""Tensor parallelism by a model's own plan: its linear layers are cut by hand, as rank 0 of a group has them.

A plan is {"pattern of module paths": "colwise" | "rowwise" | ...}, as transformers has in `_tp_plan` and
`base_model_tp_plan`; `*` stands for one part of a path.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from sizing.model.child import collectives
from sizing.model.child.refusal import Refusal

_GATHERED = frozenset({"colwise_rep", "colwise_gather_output"})
_WHOLE = frozenset({"sequence_parallel", "gather", "replicate", "replicated", "embedding_rowwise", "rowwise_rep"})


def plan_of(model: nn.Module) -> dict[str, str]:
    """Module patterns to the way that they are cut; {} where the model has no plan."""
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
    """Replace what the model's plan names by rank 0's part of it; returns a note. Raises Refusal where there is none.

    Columns are cut evenly and each takes the whole input, whose gradient is summed over ranks; rows take a part of it,
    and their sum over ranks is the output. Embeddings stay whole.
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
        if way in _GATHERED:  # the vocabulary, which may be any number, stays whole
            return None
        raise Refusal(f"tp={tp} does not divide the {size} {way[:3]}s of {path}: choose a tp that does", True)
    return Rows(module, tp) if way == "rowwise" else Columns(module, tp, gathers=way in _GATHERED)


def _own(tensor: Tensor | None, dim: int, tp: int) -> Any:
    if tensor is None:
        return None
    return nn.Parameter(tensor.detach().narrow(dim, 0, tensor.shape[dim] // tp).clone(), tensor.requires_grad)


class Columns(nn.Module):
    """Rank 0's outputs of a linear layer."""

    def __init__(self, whole: nn.Linear, tp: int, gathers: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = whole.in_features, whole.out_features // tp
        self.weight = _own(whole.weight, 0, tp)
        self.bias = _own(whole.bias, 0, tp)
        self.tp, self.gathers = tp, gathers

    def forward(self, x: Tensor) -> Tensor:
        """From (..., in) to (..., out / tp), or to (..., out) where it gathers."""
        y = nn.functional.linear(collectives.to_ranks(x), self.weight, self.bias)
        return collectives.gathered(y, self.tp) if self.gathers else y


class Rows(nn.Module):
    """Rank 0's inputs of a linear layer; it is the rank that adds the bias, so that the sum has it once."""

    def __init__(self, whole: nn.Linear, tp: int) -> None:
        super().__init__()
        self.in_features, self.out_features = whole.in_features // tp, whole.out_features
        self.weight = _own(whole.weight, 1, tp)
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """From (..., in / tp) to (..., out)."""
        return collectives.summed(nn.functional.linear(x, self.weight, self.bias))
