"""Advice for a model that fits nowhere: the memory it lacks, and the changes that, when tried, made it fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sizing.choice.by_formula import Formula
from sizing.choice.fit import GpuPlan, fit
from sizing.choice.layout import Layout
from sizing.choice.sources import STATE, Source, Traces
from sizing.inventory.gpus import GIB
from sizing.model.trace import Category

_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "recompute=full": {"recompute": "full"},
    "attention=flash": {"attention": "flash"},
    "zero=3": {"zero": 3},
}
"""Changes of a configuration that reduce its memory and leave the model as it is."""


def sentence(source: Source, plans: Sequence[GpuPlan], others: Sequence[Layout]) -> str:
    """Return one line on plans (at least one), none of which fits. `others` are layouts the user has ruled out."""
    near = plans[0]
    lacks = near.peak.high - near.gpu_bytes
    told = (
        f"fits nowhere: the nearest, {_name(near)}, needs {near.peak.high / GIB:.1f} GiB a GPU with the guard band "
        f"({near.peak.origin}) and has {near.gpu_bytes / GIB:.1f}: {lacks / GIB:.1f} GiB too little"
    )
    help_ = list(_elsewhere(source, others))
    if isinstance(source, Formula):
        help_ += _changes(source, plans)
    elif isinstance(source, Traces):
        help_ += _of_step(source.categories(near.parallel, near.batch), near)
    nothing = "recomputation, ZeRO and micro-batches of one do not do it: it needs more or larger GPUs"
    return f"{told}; {'; '.join(help_) or nothing}"


def _name(plan: GpuPlan) -> str:
    spread = f"dp {plan.parallel.dp}, tp {plan.parallel.tp}, fsdp {plan.parallel.fsdp}"
    return f"{plan.gpus} x {plan.gpu_type} of partition {plan.partition} ({spread})"


def _elsewhere(source: Source, others: Sequence[Layout]) -> Iterator[str]:
    best = _best(source, others)
    if best is not None:
        yield f"{_name(best)} would fit"


def _changes(source: Formula, layouts: Sequence[Layout]) -> Iterator[str]:
    """Yield changes of the configuration that make it fit, each tried alone; if none does, all together."""
    changes: list[tuple[str, Formula]] = []
    together = source
    for name, fields in _FIELDS.items():
        changed = replace(source, model=replace(source.model, **fields))
        if changed != source:
            changes.append((name, changed))
            together = replace(together, model=replace(together.model, **fields))
    if source.fixed != 1:
        changes.append(("b=1", replace(source, fixed=1)))
        together = replace(together, fixed=1)
    helped = [f"{name} would make it fit {_name(best)}" for name, way in changes if (best := _best(way, layouts))]
    if helped:
        yield from helped
    elif changes and (best := _best(together, layouts)) is not None:
        yield f"{', '.join(name for name, _ in changes)} together would make it fit {_name(best)}"


def _best(source: Source, layouts: Sequence[Layout]) -> GpuPlan | None:
    """Return the best plan that fits."""
    return next((plan for plan in fit(source, layouts) if plan.fits), None)


def _of_step(parts: Mapping[Category, int], near: GpuPlan) -> Iterator[str]:
    """Yield changes of the step, by the largest part of its peak."""
    state = sum(parts.get(name, 0) for name in STATE)
    rest = sum(parts.values()) - state
    if state >= rest:
        yield (
            f"{state / GIB:.1f} GiB of it are weights, gradients and optimizer: "
            "a make_step that takes fsdp= or tp= can share them among GPUs"
        )
    else:
        batch = f" of {near.batch} samples" if near.batch > 1 else ""
        yield (
            f"{rest / GIB:.1f} GiB of it are activations{batch}: torch.utils.checkpoint, "
            "a smaller --global-batch with gradient accumulation, or a make_step that takes tp= would help"
        )
