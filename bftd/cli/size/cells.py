"""`bft size cells`: cuts a model into pipeline stages on a number of GPUs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import BftError, UsageError
from bftd.base.format import size
from bftd.cli import common, options
from bftd.cli.progress import meanwhile
from bftd.cli.size.shared import size_options
from sizing.model.graph import GRAPH_BATCH

if TYPE_CHECKING:
    from sizing.cells.cell import Cell
    from sizing.model.graph import Graph

_MOST_GPUS = 2**16


@click.command()
@click.argument("model", required=False, metavar="[MODULE.py:make_model]")
@size_options.model_sizes
@click.option("--gpus", type=int, required=True, metavar="N", help="GPUs of a cell: 1, 2, 4, 8, ...")
@click.option("--types", default="", metavar="TYPE[,TYPE...]", help="GPU types: a100,v100; default: any.")
@size_options.stages
@click.option("--batch", type=int, metavar="B", help=f"Samples that FLOPs and bytes are for; default {GRAPH_BATCH}.")
@click.option("--tp", type=int, default=1, metavar="T", help="Count one rank's part of T tensor-parallel ones.")
@click.option("--python", default="", metavar="P", help="The Python to read the model with; it must have torch.")
@size_options.timeout(180.0, "To read it; default 180 s.")
@options.as_json
def cells(
    model: str | None,
    text: str | None,
    gpus: int,
    types: str,
    counts: str,
    batch: int | None,
    tp: int,
    python: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Cut a model into pipeline stages on N GPUs.

    make_model(batch_size) returns (model, inputs). It is read in a process of its own, without a GPU and without
    computing anything. Each stage has a power of two of the GPUs; cuts are balanced first, and small.
    """
    from sizing.cells import stages

    refuse_gpus(gpus)
    if batch is not None:
        _refuse_batch(batch)
    named = _types(types)
    wanted = counts_of(counts)
    graph = graph_of(model, text, batch, tp, python, timeout_s)
    found = stages.cells(graph, gpus, "", wanted)
    if as_json:
        common.echo_json(_to_json(graph, named, found))
    else:
        common.echo(_shown(graph, named, found))


def refuse_gpus(gpus: int) -> None:
    """Raise UsageError for a number of GPUs that no cell has."""
    from sizing.cells import stages

    stages.refuse_gpus(gpus)
    if gpus > _MOST_GPUS:
        raise UsageError(f"--gpus {gpus}: at most {_MOST_GPUS}")


def _refuse_batch(batch: int) -> None:
    if not 1 <= batch <= 2**20:
        raise UsageError(f"--batch {batch}: from 1 to {2**20}")


def _types(text: str) -> dict[str, str]:
    """Map each type as typed to its name in the catalogue; raises UsageError for an unknown type."""
    from sizing.inventory import gpus

    found: dict[str, str] = {}
    for name in filter(None, (part.strip() for part in text.split(","))):
        known = gpus.recognise(name)
        if known is None:
            near = difflib.get_close_matches(name.lower(), _short_names(), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(gpus.CATALOGUE)}"
            raise UsageError(f"no GPU type {name[:40]!r}: {hint}")
        found[name] = known.type.name
    if text and not found:
        raise UsageError("--types names none: write --types a100,v100")
    return found


def _short_names() -> list[str]:
    from sizing.inventory import gpus

    return list(dict.fromkeys(word for name in gpus.CATALOGUE for word in (name, name.split("-")[0])))


def counts_of(text: str) -> list[int] | None:
    """Return the numbers of stages in --stages, None if it is empty; raises UsageError."""
    if not text:
        return None
    words = [part.strip() for part in text.split(",") if part.strip()]
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise UsageError(f"--stages {text[:40]!r}: whole numbers, as in 1,2,4")
    return [int(word) for word in words]


def graph_of(model: str | None, text: str | None, batch: int | None, tp: int, python: str, timeout_s: float) -> Graph:
    """Return the model's operators: read from the user's module, or derived from the sizes in --config."""
    from sizing.base.errors import Untraceable
    from sizing.cells.size_graph import chain
    from sizing.child import graphing
    from sizing.model import request, wide_resnet

    if model is not None and text is not None:
        raise UsageError("name the model by MODULE.py:make_model or by --config, not both")
    if text is not None:
        if tp != 1:
            raise UsageError("--tp counts a part of MODULE.py:make_model; a --config is cut as a whole")
        if text.strip().partition(":")[0] == wide_resnet.FAMILY:
            return chain(wide_resnet.parse(text), batch or GRAPH_BATCH)
        named = request.asked(None, text)
        assert named.model is not None
        return chain(named.model, batch or named.micro_batch or GRAPH_BATCH)
    if model is None:
        raise UsageError("name a model (MODULE.py:make_model), or give --config gpt:h=1024,l=24,a=16,s=1024,V=50257")
    try:
        return meanwhile(
            f"tracing {model}",
            lambda: graphing.graph(model, batch or GRAPH_BATCH, tp=tp, python=python, timeout_s=timeout_s),
        )
    except Untraceable as error:
        raise BftError(f"{error}; give --config for a model by its sizes") from None


def _imbalance(cell: Cell, flops: int) -> float:
    """Return the slowest stage's time relative to evenly spread FLOPs, judged by FLOPs alone."""
    return max(stage.flops / stage.gpus for stage in cell.stages) * cell.gpus / max(1, flops)


def _to_json(graph: Graph, named: dict[str, str], found: Sequence[Cell]) -> dict[str, Any]:
    return {
        "model": graph.model,
        "batch": graph.batch,
        "origin": graph.origin,
        "note": graph.note,
        "operators": len(graph.operators),
        "flops": graph.flops,
        "parameters": graph.parameters,
        "cells": [
            {
                "gpu_type": name,
                "means": means,
                "gpus": cell.gpus,
                "imbalance": round(_imbalance(cell, graph.flops), 4),
                "stages": [_stage(graph, cell, at) for at in range(len(cell.stages))],
            }
            for name, means in (named or {"": ""}).items()
            for cell in found
        ],
    }


def _stage(graph: Graph, cell: Cell, at: int) -> dict[str, Any]:
    stage = cell.stages[at]
    first, last = graph.operators[stage.first], graph.operators[stage.last]
    return {
        "first": stage.first,
        "last": stage.last,
        "first_operator": first.name,
        "last_operator": last.name,
        "first_module": first.module,
        "last_module": last.module,
        "gpus": stage.gpus,
        "flops": stage.flops,
        "flops_share": round(stage.flops / graph.flops, 6),
        "across_bytes": stage.across_bytes,
        "parameters": stage.parameters,
    }


def _shown(graph: Graph, named: dict[str, str], found: Sequence[Cell]) -> Iterator[str]:
    from bftd.base.tables import Column

    if graph.note:
        yield graph.note
    how = {"export": "operators", "modules": "modules", "formula": "parts, by its sizes"}[graph.origin]
    yield f"{graph.model}: {len(graph.operators)} {how}, {graph.parameters:,} parameters"
    yield f"{graph.flops / 1e12:.4g} TFLOP forward and backward for a batch of {graph.batch}"
    for name, means in named.items():
        if name != means:
            yield f"{name} is taken for {means}"
    yield ""
    columns = [
        Column("TYPE"),
        Column("STAGES", right=True),
        Column("STAGE", right=True),
        Column("OPERATORS"),
        Column("GPUS", right=True),
        Column("FLOPS", right=True),
        Column("SENDS ON", right=True),
        Column("PARAMETERS", right=True, rank=1),
    ]
    rows = []
    for cell in found:
        for at, stage in enumerate(cell.stages):
            rows.append(
                (
                    ("any" if not named else ", ".join(named)) if at == 0 else "",
                    str(len(cell.stages)) if at == 0 else "",
                    str(at + 1),
                    _span(graph, stage.first, stage.last),
                    str(stage.gpus),
                    f"{100 * stage.flops / graph.flops:.1f} %",
                    "" if at == len(cell.stages) - 1 else size(stage.across_bytes),
                    f"{stage.parameters:,}",
                )
            )
    yield from common.table(columns, rows)
    yield ""
    for cell in found:
        if len(cell.stages) > 1:
            slower = _imbalance(cell, graph.flops) - 1
            yield f"{len(cell.stages)} stages: the slowest has {100 * slower:.1f} % more FLOPs a GPU than the mean"


def _span(graph: Graph, first: int, last: int) -> str:
    """Name the first and the last operator by module; add their own names if the model was exported."""
    one, two = graph.operators[first], graph.operators[last]
    if graph.origin != "export":
        return one.name if first == last else f"{one.name} .. {two.name}"
    return f"{_place(one.module, one.name)} .. {_place(two.module, two.name)}"


def _place(module: str, name: str) -> str:
    return f"{module} ({name})" if module else name
