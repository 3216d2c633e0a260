"""`bft size profile`: times of a model's stages on one device, stored for estimates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import BftError, UsageError
from bftd.base.format import size
from bftd.cli import common, options
from bftd.cli.size import cells as size_cells
from bftd.cli.size import comm
from bftd.cli.size.shared import allocation, size_options

if TYPE_CHECKING:
    from sizing.profiles.profile import Device, Result, Source
    from sizing.profiles.store import Store


@click.command()
@click.argument("model", required=False, metavar="[MODULE.py:make_model]")
@size_options.model_sizes
@click.option("--global-batch", type=int, metavar="B", help="Samples of a step on all GPUs together.")
@click.option("--gpus", type=int, metavar="N", help="GPUs of the cells whose stages are profiled: 1, 2, 4, 8, ...")
@size_options.stages
@click.option("--hybrids", is_flag=True, help="Also between data and tensor parallelism.")
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]), help="Default: a GPU if any.")
@click.option("--partition", "-p", default="", metavar="P", help="Run on one GPU of this partition, through srun.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=10, metavar="N", help="At least so many; default 10.")
@click.option("--optimizer", default="adam", metavar="O", help="adam (default), adamw, sgd, momentum, adafactor.")
@click.option(
    "--precision", metavar="P", help="fp32, tf32, bf16, fp16-amp or bf16-pure; default: that of --config, or fp32."
)
@click.option("--threads", type=click.IntRange(1, 1024), default=1, metavar="N", help="Of a rank on CPUs; default 1.")
@click.option("--again", is_flag=True, help="Profile also what is in the cache.")
@click.option("--list", "lists", is_flag=True, help="Show what is in the cache, and profile nothing.")
@click.option("--forget", metavar="NAME|all", help="Drop a model from the cache, and profile nothing.")
@click.option("--python", default="", metavar="P", help="The Python to run the model with; it must have torch.")
@size_options.timeout(900.0, "Of each process; default 900.")
@options.as_json
def profile(
    model: str | None,
    text: str | None,
    global_batch: int | None,
    gpus: int | None,
    counts: str,
    hybrids: bool,
    device: Device,
    partition: str,
    rounds: int,
    optimizer: str,
    precision: str | None,
    threads: int,
    again: bool,
    lists: bool,
    forget: str | None,
    python: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Time a model's stages on one device.

    Each stage of the cells of N GPUs is run alone, as one rank of data parallelism and as one of tensor parallelism has
    it: forward, backward and optimizer, on random numbers. Collectives are counted and not timed. Results are kept in
    ~/.cache/bft, where bft size cells, choose and fit find them.
    """
    from sizing.cells import stages
    from sizing.cells.hybrids import close
    from sizing.cells.shards import ShardProfile
    from sizing.model import request
    from sizing.model.graph import GRAPH_BATCH
    from sizing.profiles.profile import Setting
    from sizing.profiles.store import Store
    from sizing.profiles.work import ProfileWork, wanted_of

    store = Store()
    if lists:
        _list(store, as_json)
        return
    if forget is not None:
        gone = store.forget("" if forget == "all" else forget)
        click.echo(f"{gone} profile{'' if gone == 1 else 's'} forgotten")
        return
    if global_batch is None or gpus is None:
        raise UsageError("say --global-batch B (samples of a step) and --gpus N (1, 2, 4, 8, ...)")
    request.refuse_batch(global_batch)
    size_cells.refuse_gpus(gpus)
    if partition:
        answer = allocation.profiled(partition, device, threads)
        results, source = _stored(store, answer, model, text)
        _say(store.said)
        if as_json:
            common.echo_json(answer)
        else:
            common.echo(_table(results, answer["notes"], answer["model"]))
        return
    source, tables = source_of(model, text), comm.found()
    wanted_counts = size_cells.counts_of(counts)
    graph = size_cells.graph_of(model, text, min(global_batch, GRAPH_BATCH), 1, python, timeout_s)
    setting = Setting(optimizer, precision or precision_of(source), threads, rounds)
    work = ProfileWork(store, source, graph, setting, device, python, timeout_s, again, lambda line: _say([line]))
    found = wanted_of(graph, gpus, wanted_counts, global_batch, hybrids=hybrids)
    if graph.note:
        work.notes[graph.note] = None
    work.run(found)
    if not hybrids and (middle := work.between(wanted_of(graph, gpus, wanted_counts, global_batch, hybrids=True))):
        work.run(middle)
    cells = stages.cells(graph, gpus, "", wanted_counts)
    timed = [each for each in work.results.values() if isinstance(each, ShardProfile)]
    if middle := close(cells, graph, timed, tables, global_batch):
        work.run(middle)
    for cell in cells:
        work.smaller(cell, global_batch)
    _say(store.said)
    if as_json:
        common.echo_json(work.to_json())
    else:
        common.echo(_table(list(work.results.values()), list(work.notes), graph.model))


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def source_of(model: str | None, text: str | None) -> Source:
    """Return the model to profile; raises UsageError if none or two are given."""
    from sizing.model import request, wide_resnet

    if model is not None and text is not None:
        raise UsageError("name the model by MODULE.py:make_model or by --config, not both")
    if text is not None and text.strip().partition(":")[0] == wide_resnet.FAMILY:
        return wide_resnet.parse(text)
    named = request.asked(model, text)
    found = named.step if named.step is not None else named.model
    assert found is not None
    return found


def precision_of(source: Source) -> str:
    """Return the precision that a model is profiled in by default, which is the one that `bft size choose` looks for.

    Raises UsageError for a configuration in a precision that cannot be profiled.
    """
    from sizing.choice.profile_times import AS_IT_IS
    from sizing.profiles.profile import PRECISIONS

    precision = str(getattr(source, "precision", AS_IT_IS))
    if precision not in PRECISIONS:
        raise UsageError(f"{precision} of --config cannot be profiled: give --precision {' or '.join(PRECISIONS)}")
    return precision


def _stored(store: Store, answer: dict[str, Any], model: str | None, text: str | None) -> tuple[list[Result], Source]:
    """Store the results of a job, as its node may have a cache of its own."""
    from sizing.profiles.profile import Setting
    from sizing.profiles.store import read
    from sizing.profiles.work import put

    source = source_of(model, text)
    try:
        results = [read(dict(each)) for each in (*answer["profiles"], *answer["unfit"])]
        files = tuple((str(path), str(digest)) for path, digest in answer["files"])
        setting = Setting(**answer["setting"])
    except (KeyError, TypeError, ValueError) as error:
        raise BftError(f"the job's answer is no profile ({error}): is the same bft on the nodes?") from None
    if files or not isinstance(source, str):
        put(store, source, files, setting, results)
    return results, source


def _table(results: Sequence[Result], notes: Sequence[str], model: str) -> Iterator[str]:
    from bftd.base.tables import Column
    from sizing.profiles.profile import Unfit
    from sizing.profiles.work import ms

    columns = [
        Column("OPERATORS"),
        Column("BATCH", right=True),
        Column("TP", right=True),
        Column("PASS", right=True),
        Column("95 %", rank=1),
        Column("UPDATE", right=True, rank=2),
        Column("WEIGHTS", right=True, rank=4),
        Column("STATE", right=True, rank=4),
        Column("ACTIVATIONS", right=True, rank=3),
        Column("PEAK", right=True),
        Column("EXCHANGED", right=True, rank=3),
    ]
    rows = []
    for each in sorted(results, key=lambda result: result.shard):
        shard = each.shard
        begins = (f"{shard.first} .. {shard.last}", str(shard.batch), str(shard.tp))
        if isinstance(each, Unfit):
            rows.append((*begins, "too large", *[""] * 7))
            continue
        exchanged = sum(part.bytes * part.calls for part in each.exchanges)
        rows.append(
            (
                *begins,
                ms(each.compute_s.value),
                f"{1000 * each.compute_s.low:.3g}-{1000 * each.compute_s.high:.3g}",
                ms(each.update_s.value),
                size(each.weight_bytes),
                size(each.state_bytes),
                size(each.activation_bytes),
                size(each.peak_bytes),
                size(exchanged) if exchanged else "",
            )
        )
    devices = sorted({each.device for each in results})
    yield f"{model} on {', '.join(devices)}: forward and backward of one micro-batch, measured; no collectives in it"
    yield from common.table(columns, rows)
    for note in notes:
        yield f"note: {note}"


def _list(store: Store, as_json: bool) -> None:
    from bftd.base.tables import Column

    rows = store.listed()
    _say(store.said)
    if as_json:
        keys = ("model", "device", "setting", "shards", "made_s")
        common.echo_json({"profiles": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    columns = [Column("MODEL"), Column("DEVICE"), Column("SETTING"), Column("SHARDS", right=True), Column("LAST")]
    cells = [
        (name, device, setting, str(count), time.strftime("%Y-%m-%d %H:%M", time.localtime(made)))
        for name, device, setting, count, made in rows
    ]
    common.echo(common.table(columns, cells))
    common.echo([f"in {Path(store.path)}"])
