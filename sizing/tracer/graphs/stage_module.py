"""Makes a stage's operators that run alone: only their own weights are allocated, and their inputs are random."""

from __future__ import annotations

from typing import Any

import torch

from sizing.tracer import families
from sizing.tracer.runs.measure import Slice, autocast


def dtype_of(precision: str) -> torch.dtype:
    """Return the type of weights and of tensors between stages."""
    return torch.bfloat16 if precision == "bf16-pure" else torch.float32


def of_chain(sizes: dict[str, Any], shard: tuple[int, int, int, int], device: str, precision: str) -> Slice:
    """Make parts `first` to `last` of a family's chain for `batch` samples on one of `tp` ranks."""
    first, last, batch, tp = shard
    chain = families.chain(sizes, tp)
    end = len(chain.parts) - 1
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype_of(precision))
    try:
        with torch.device(device):
            modules: list[Any] = [part.make() for part in chain.parts[first : last + 1]]
            if first == 0:
                x = chain.first(batch)
            else:
                x = torch.randn(chain.parts[first].input_shape(batch)).requires_grad_()
            targets = chain.targets(batch) if last == end else None
    finally:
        torch.set_default_dtype(usual)
    note = ""
    if chain.tied and first == 0 and last == end:
        modules[-1].weight = modules[0].weight
    elif chain.tied and (first == 0 or last == end):
        note = "the embedding is also the output matrix: the first and the last stage each have it and sum its gradient"

    def run(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        out = leaves[0]
        for module in modules if targets is None else modules[:-1]:
            out = module(out)
        return [out if targets is None else modules[-1](out, targets)]

    return of_modules(run, [x], modules, device, precision, note)


def of_modules(
    run: Any, leaves: list[torch.Tensor], modules: list[torch.nn.Module], device: str, precision: str, note: str = ""
) -> Slice:
    """Make a slice that runs whole modules."""
    weights: dict[int, torch.Tensor] = {}
    for module in modules:
        weights.update({id(each): each for each in (*module.parameters(), *module.buffers())})
    trained = [each for each in weights.values() if each.requires_grad]
    return Slice(run, leaves, list(weights.values()), trained, note, autocast(precision, device))
