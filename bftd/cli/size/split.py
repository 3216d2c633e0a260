"""`bft size split`: finds the fastest split of each stage of a cell while measuring only a few."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options
from bftd.cli.size import cells, comm, profile
from bftd.cli.size.shared import inventory, size_options

if TYPE_CHECKING:
    from sizing.cells.plan_estimate import Assembly
    from sizing.cells.shards import ShardProfile, StageShard
    from sizing.cells.tune_cell import Profiler, TunedCell
    from sizing.profiles.profile import Setting, Source

_CPU = "cpu"


@click.command()
@click.argument("model", required=False, metavar="[MODULE.py:make_model]")
@size_options.model_sizes
@click.option("--gpus", type=int, metavar="N", help="GPUs of the cell: 1, 2, 4, 8, ...")
@click.option("--stages", type=int, default=1, metavar="N", help="Pipeline stages of the cell; default 1.")
@click.option("--global-batch", type=int, metavar="B", help="Samples of a step on all GPUs together.")
@click.option("--micro-batches", type=int, metavar="N", help="Parts of it; default 4 a stage, 1 without a pipeline.")
@click.option("--type", "gpu_type", default=_CPU, metavar="TYPE", help="What is here: cpu (default), or a GPU's type.")
@click.option("--per-node", type=int, metavar="N", help="GPUs of one node; processes of a CPU are all on one.")
@click.option("--optimizer", default="adam", metavar="NAME", help="As in bft size profile; default adam.")
@click.option("--precision", metavar="P", help="As in bft size profile.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=10, metavar="N", help="Of each profile; default 10.")
@click.option("--extrapolate", is_flag=True, help="Allow tensors larger than the tables of collectives reach.")
@click.option("--python", default="", metavar="P", help="The Python to profile with; it must have torch.")
@size_options.timeout(900.0, "A profile's; default 900 s.")
@options.as_json
def split(as_json: bool, **given: Any) -> None:
    """Find the fastest split of each stage's GPUs into data and tensor parallelism.

    Profiles single shards on the device at hand, one after another, as the tuner asks for them; what collectives take
    is read from tables (bft size comm).
    """
    from sizing.cells import plan_estimate, stages
    from sizing.cells.required import micro_batches_of
    from sizing.cells.tune_cell import tune_cell
    from sizing.model import request
    from sizing.model.graph import GRAPH_BATCH
    from sizing.profiles.profile import Setting

    if given["model"] is None and given["text"] is None:
        raise UsageError("name a model (MODULE.py:make_model) or --config")
    if given["gpus"] is None or given["global_batch"] is None:
        raise UsageError("say how many GPUs the cell has and what they train on: --gpus 8 --global-batch 64")
    gpus, timeout_s = given["gpus"], given["timeout_s"]
    stages.refuse_gpus(gpus)
    request.refuse_batch(given["global_batch"])
    gpu_type, per_node, gpu_bytes = _device(given["gpu_type"], given["per_node"], gpus)
    model, text, python = given["model"], given["text"], given["python"]
    # the same batch as in bft size profile, so that stages are cut alike and its profiles can be used
    graph = cells.graph_of(model, text, min(given["global_batch"], GRAPH_BATCH), 1, python, timeout_s)
    source = profile.source_of(model, text)
    (cell,) = stages.cells(graph, gpus, gpu_type, [given["stages"]])
    profiles: dict[StageShard, ShardProfile] = {}
    whole = plan_estimate.assembly(
        cell,
        graph,
        profiles,
        comm.found(extrapolate=given["extrapolate"]),
        global_batch=given["global_batch"],
        per_node=per_node,
        gpu_bytes=gpu_bytes,
        micro_batches=micro_batches_of(cell, given["global_batch"], given["micro_batches"]),
    )
    setting = Setting(given["optimizer"], given["precision"] or profile.precision_of(source), 1, given["rounds"])
    found = tune_cell(whole, profiles, _profiler(source, whole, setting, python, timeout_s))
    if as_json:
        common.echo_json(_to_json(whole, found))
    else:
        common.echo(_lines(whole, found))
    if found.plan is None:
        raise BftError("no split of a stage fits its GPUs: take more GPUs, more stages or a smaller batch")


def _device(named: str, per_node: int | None, gpus: int) -> tuple[str, int, float]:
    """Return the type of device, the number per node, and the memory of one in bytes."""
    from sizing.inventory.gpus import CATALOGUE, recognise

    if per_node is not None and per_node < 1:
        raise UsageError(f"--per-node {per_node}: at least 1")
    if named == _CPU:
        return _CPU, gpus, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / gpus
    own = inventory.own_types()
    known = own.get(named) or CATALOGUE.get(named)
    if known is None:
        recognised = recognise(named)
        if recognised is None:
            raise UsageError(f"--type {named}: no known type of GPU; write cpu, or a type such as h100-sxm-80gb")
        known = recognised.type
    if per_node is None:
        raise UsageError(f"say how many {known.name} a node has: --per-node 8")
    return known.name, per_node, known.memory_bytes


def _profiler(source: Source, whole: Assembly, setting: Setting, python: str, timeout_s: float) -> Profiler:
    """Return a function that profiles a shard or takes its profile from the cache."""
    from sizing.base.errors import SizingError
    from sizing.base.errors import UsageError as CannotBe
    from sizing.profiles import store
    from sizing.profiles.profile import Result, Unfit, profiled

    cache = store.Store()
    cache.prepare()
    kind = whole.cell.gpu_type

    def one(shard: StageShard) -> ShardProfile | str:
        model = cache.model(source)
        known: Result | None = cache.get(model, kind, setting, shard) if model is not None else None
        if known is None:
            if model is not None and shard.tp > 1 and (why := cache.refused(model, shard.tp)):
                return why
            try:
                made = profiled(
                    source,
                    [shard],
                    setting,
                    graph=whole.graph if isinstance(source, str) else None,
                    device="cpu" if kind == _CPU else "cuda",
                    python=python,
                    timeout_s=timeout_s,
                )
            except SizingError as error:
                if shard.tp == 1:
                    raise
                if model is not None and isinstance(error, CannotBe):
                    cache.refuse(model, shard.tp, str(error))
                return str(error)  # the model has no plan for so many tensor-parallel ranks
            (known,) = made.results
            model = store.by_files(source, made.files) if isinstance(source, str) else store.by_sizes(source)
            cache.put(model, setting, [known])
        return known.why if isinstance(known, Unfit) else known

    return one


def _to_json(whole: Assembly, found: TunedCell) -> dict[str, Any]:
    plan = found.plan
    return {
        "gpu_type": whole.cell.gpu_type,
        "gpus": whole.cell.gpus,
        "micro_batches": whole.micro_batches,
        "step_s": plan and plan.step_s.value,
        "step_low_s": plan and plan.step_s.low,
        "step_high_s": plan and plan.step_s.high,
        "origin": plan and plan.step_s.origin,
        "stages": [
            {
                "first": stage.first,
                "last": stage.last,
                "gpus": stage.gpus,
                "dp": tuned.best and tuned.best.dp,
                "tp": tuned.best and tuned.best.tp,
                "tried": [
                    {"dp": split.dp, "tp": split.tp, "stage_s": seconds} for split, seconds in tuned.times.items()
                ],
                "candidates": tuned.candidates,
            }
            for stage, tuned in zip(whole.cell.stages, found.stages, strict=True)
        ],
        "dropped": list(found.dropped),
    }


def _lines(whole: Assembly, found: TunedCell) -> Iterable[str]:
    """Yield the splits tried for each stage, and the plan."""
    from bftd.base.tables import Column
    from sizing.cells.plan_estimate import name_of

    columns = [Column("STAGE", right=True), Column("GPUS", right=True), Column("SPLIT"), Column("S", right=True)]
    rows: list[Sequence[str]] = []
    for at, (stage, tuned) in enumerate(zip(whole.cell.stages, found.stages, strict=True), 1):
        for split, seconds in tuned.times.items():
            shown = "not possible" if seconds is None else f"{seconds:.4g}{' <' if split == tuned.best else ''}"
            rows.append((str(at), str(stage.gpus), name_of(split), shown))
    yield from common.table([*columns], rows)
    for why in found.dropped:
        yield f"note: {why}"
    tried, there = sum(each.tried for each in found.stages), sum(each.candidates for each in found.stages)
    yield f"{tried} of {there} splits profiled; S is a stage's part of an iteration"
    if found.plan is not None:
        step = found.plan.step_s
        yield (
            f"an iteration of {whole.global_batch} samples in {whole.micro_batches} micro-batches: "
            f"{step.value:.4g} s ({step.low:.3g}-{step.high:.3g}, {step.origin})"
        )
