"""`bft size mem`: the GPU memory that a training step needs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options
from bftd.cli.progress import progress_bar
from bftd.cli.size.shared import model as size_model
from bftd.cli.size.shared.model import ModelRequest, amount
from bftd.cli.size.shared.trace import BOUNDED, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sizing.base.parallel import Parallel
    from sizing.memory.peak import MemoryPeak
    from sizing.model.config import ModelConfig
    from sizing.model.trace import Target


@click.command()
@click.argument("step", required=False, metavar="[MODULE.py:make_step]")
@click.option("--config", "text", metavar="SIZES|FILE.json[:SIZES]", help="The model by its sizes; docs/howto/size.md.")
@click.option("--global-batch", type=int, metavar="B", help="Samples of a step on all GPUs; default: 1 for each.")
@click.option("--dp", type=int, metavar="D", help="Replicas (data parallelism).")
@click.option("--tp", type=int, metavar="T", help="GPUs that share each layer (tensor parallelism).")
@click.option("--fsdp", type=int, metavar="F", help="GPUs that share the state (FSDP, ZeRO-3).")
@click.option("--marp", is_flag=True, help="Print what Frenzy's formula (MARP) says, too.")
@click.option("--python", default="", metavar="P", help="The Python to trace with; it must have torch.")
@options.trace_timeout
@click.option("--device", default="cuda", type=click.Choice(["cuda", "cpu"]), help="Whose memory; default cuda.")
@options.as_json
def mem(
    step: str | None,
    text: str | None,
    global_batch: int | None,
    dp: int | None,
    tp: int | None,
    fsdp: int | None,
    marp: bool,
    python: str,
    timeout_s: float,
    device: Target,
    as_json: bool,
) -> None:
    """Tell how much memory of a GPU a training step takes.

    make_step(batch_size) returns a function that does one forward, backward and optimizer step. It is followed in a
    process of its own, without a GPU and without computing anything. With --config too, a step that cannot be
    followed is told by formula.
    """
    if not timeout_s > 0:
        raise UsageError(f"--timeout {timeout_s:g}: seconds, more than 0")
    asked = size_model.asked(step, text)
    if marp and asked.model is None:
        raise UsageError("--marp is a formula on a model's sizes: give them by --config")
    if global_batch is not None:
        size_model.refuse_batch(global_batch)
    parallel = _parallel(asked.model, dp, tp, fsdp)
    batch = None if global_batch is None else parallel.batch_of(global_batch)
    peak = _peak(asked, parallel, batch, python, timeout_s, device)
    if as_json:
        common.echo_json(peak.to_json())
        return
    common.echo(_lines(peak, marp))


def _parallel(model: ModelConfig | None, dp: int | None, tp: int | None, fsdp: int | None) -> Parallel:
    """Return the split that the options give, else that of the configuration."""
    from sizing.base.parallel import Parallel

    own = model.parallel if model is not None else Parallel()
    return Parallel(*(was if now is None else now for now, was in ((dp, own.dp), (tp, own.tp), (fsdp, own.fsdp))))


def _peak(
    asked: ModelRequest, parallel: Parallel, batch: int | None, python: str, timeout_s: float, device: Target
) -> MemoryPeak:
    """Return the peak by trace, or by formula if there is no step or it cannot be traced."""
    from sizing.base.errors import Untraceable
    from sizing.memory import traced
    from sizing.model import tracing

    by_formula = None if asked.model is None else _by_formula(asked.model, asked.micro_batch, parallel, batch)
    if asked.step is None:
        assert by_formula is not None
        return by_formula
    take = functools.partial(
        tracing.trace, asked.step, batch or 1, parallel, target=device, python=python, timeout_s=timeout_s
    )
    try:
        with progress_bar(f"tracing {asked.step}", lines=True) as report:
            (trace,) = side_by_side([take], lambda: report(0.0))
    except Untraceable as error:
        if by_formula is None:
            raise BftError(f"{error}; give --config for an estimate by formula") from None
        return replace(by_formula, why=str(error))
    peak = traced.peak_of(trace)
    return peak if by_formula is None else replace(peak, marp_bytes=by_formula.marp_bytes)


def _by_formula(model: ModelConfig, micro_batch: int | None, parallel: Parallel, batch: int | None) -> MemoryPeak:
    from sizing.choose.by_formula import Formula
    from sizing.memory import formula

    if batch is None:
        return formula.peak_of(replace(model, parallel=parallel))
    return formula.peak_of(Formula(model, micro_batch).checked(parallel, batch))


def _lines(peak: MemoryPeak, marp: bool) -> Iterator[str]:
    from bftd.base.tables import Column
    from sizing.model.trace import CATEGORIES

    value, parallel = peak.peak, peak.parallel
    if peak.why:
        yield f"not traced: {peak.why}"
    yield f"peak of one GPU: {amount(value.value)} ({value.origin})"
    spread = f"dp {parallel.dp}, tp {parallel.tp}, fsdp {parallel.fsdp}"
    yield f"a batch of {peak.batch} on each of {parallel.gpus} GPU{'s'[: parallel.gpus - 1]} ({spread})"
    yield ""
    columns = [Column("OF THE PEAK"), Column("SIZE", right=True), Column("SHARE", right=True), Column("ORIGIN", rank=1)]
    rows = []
    for name in CATEGORIES:
        part = peak.by_category.get(name, 0)
        rows.append((name, amount(part), f"{100 * part / max(1.0, value.value):.1f} %", value.origin))
    yield from common.table(columns, rows)
    yield ""
    what = "what the formula has missed" if value.origin == "formula" else "CUDA context, libraries, fragmentation"
    yield f"a GPU needs {amount(value.high)} with the guard band (assumed: {what})"
    if peak.upper_bounds:
        yield f"note: {BOUNDED}"
    if value.low < value.value:
        yield f"the formula's own range begins at {amount(value.low)}"
    if marp and peak.marp_bytes is not None:
        yield f"MARP as printed: {amount(peak.marp_bytes)} (formula)"
