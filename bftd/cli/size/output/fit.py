"""Output of `bft size fit`: a table of plans with the origin of each number, and the lines of the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bftd.cli import common

if TYPE_CHECKING:
    from sizing.base.estimate import Estimate
    from sizing.choice.fit import By, GpuPlan
    from sizing.inventory.pools import GpuPool

_GIB = 2**30
_ROWS = 12


def lines(
    plans: Sequence[GpuPlan],
    best: Sequence[GpuPlan],
    notes: Sequence[str],
    everything: Sequence[GpuPool],
    in_json: int,
    by: By,
) -> Iterator[str]:
    """Yield the table, then Slurm's message and the lines of each of the best plans.

    `in_json` is the number of plans in the JSON output. On a narrow screen the figure that the plans are ranked `by`
    stays, and those of the memory go first.
    """
    from bftd.base.tables import Column
    from sizing.sbatch import lines as emit

    shown = _rows(plans)
    mixed = any(plan.step_s.origin != "assumed" for plan in plans)
    columns = [
        Column("#", right=True),
        Column("PARTITION", least=10),
        Column("GPUS"),
        Column("SPREAD"),
        Column("BATCH", rank=2, right=True),
        Column("PEAK GIB", rank=3, right=True),
        Column("WITH GUARD", rank=4, right=True),
        Column("OF", rank=5, right=True),
        Column("FITS"),
        Column("STEP" if mixed else "STEP (assumed)", rank=0 if by == "time" else 1),
        Column("COST", rank=1 if by == "time" else 0, right=True),
    ]
    yield from common.table(columns, [_row(at, plan, mixed) for at, plan in shown])
    if len(plans) > len(shown):
        which = "them" if in_json == len(plans) else f"the best {in_json} in all"
        yield f"and {len(plans) - len(shown)} other plans (--json has {which})"
    yield "BATCH, PEAK GIB, WITH GUARD (assumed) and OF (data sheet or site) are of one GPU"
    whose = "which is assumed" if mixed else "all assumed"
    yield f"cost: GPUs x seconds of a step x what the type is worth, {whose}: good for ranking only"
    alike = sorted({pool.gpu.name for pool in everything if pool.mixed})
    if alike:
        yield f"{', '.join(alike)}: Slurm cannot tell them from others here: the smaller memory and the slower count"
    for note in notes:
        yield f"note: {note}"
    for plan in best:
        yield ""
        yield f"{plans.index(plan) + 1}. {plan.shape.name}" + (f": {plan.start}" if plan.start else "")
        yield from emit.commented(plan.sbatch, plan.why)


def _rows(plans: Sequence[GpuPlan]) -> list[tuple[int, GpuPlan]]:
    """Return the best plans and the best of each partition and type, with their ranks.

    The number of rows is bounded, but grows with the number of types of GPU.
    """
    first: dict[tuple[str, str], int] = {}
    for at, plan in enumerate(plans):
        first.setdefault((plan.partition, plan.gpu_type), at)
    firsts = sorted(first.values())[: 2 * _ROWS]
    more = [at for at in range(len(plans)) if at not in set(firsts)][: max(0, _ROWS - len(firsts))]
    return [(at + 1, plans[at]) for at in sorted([*firsts, *more])]


def _row(number: int, plan: GpuPlan, mixed: bool) -> tuple[str, ...]:
    parallel = plan.parallel
    where = f"{plan.gpus} x {plan.gpu_type}"
    nodes = f" on {plan.nodes} nodes" if plan.nodes > 1 else ""
    spread = " ".join(
        f"{name}{size}"
        for name, size in (("dp", parallel.dp), ("tp", parallel.tp), ("fsdp", parallel.fsdp))
        if size > 1
    )
    batch = str(plan.batch)
    if plan.micro_batches > 1:
        batch = f"{plan.micro_batches} x {plan.micro_batch}"
    return (
        str(number),
        plan.partition,
        where + nodes,
        spread or "one",
        batch,
        f"{plan.peak.value / _GIB:.1f} {plan.peak.origin}",
        f"{plan.peak.high / _GIB:.1f}",
        f"{plan.gpu_bytes / _GIB:.1f}",
        ("yes" if plan.fits else "no") + (f", {plan.runs} ran" if plan.runs else ""),
        f"{_time(plan.step_s)} {plan.step_s.origin}" if mixed else _time(plan.step_s),
        f"{plan.cost.value:.3g}",
    )


def _time(step: Estimate) -> str:
    return f"{step.value:.3g} s ({step.low:.2g}-{step.high:.2g})"
