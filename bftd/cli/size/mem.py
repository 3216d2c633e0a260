"""`bft size mem`: the GPU memory that a training step needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.base.format import size
from bftd.cli import common, options
from bftd.cli.progress import progress_bars
from bftd.cli.size.shared import size_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sizing.memory.peak import MemoryPeak
    from sizing.model.trace import Target


@click.command(epilog=size_options.STEP)
@click.argument("step", required=False, metavar="[MODULE.py:make_step]")
@size_options.model_sizes
@click.option("--global-batch", type=int, metavar="B", help="Samples of a step on all GPUs; default: 1 for each.")
@click.option("--dp", type=int, metavar="D", help="Replicas (data parallelism).")
@click.option("--tp", type=int, metavar="T", help="GPUs that share each layer (tensor parallelism).")
@click.option("--fsdp", type=int, metavar="F", help="GPUs that share the state (FSDP, ZeRO-3).")
@click.option("--marp", is_flag=True, help="Print what Frenzy's formula (MARP) says, too.")
@size_options.python
@size_options.timeout()
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

    make_step(batch_size) returns a function that does one forward, backward and optimizer step. It is traced in a
    process of its own, without a GPU and without computing anything. With --config too, a step that cannot be traced is
    estimated by formula.
    """
    from sizing import estimate

    size_options.refuse_untraced(step, "device")
    if marp and text is None and step is not None:
        raise UsageError("--marp is a formula on a model's sizes: give them by --config")
    with progress_bars() as progress:
        found = estimate(
            step,
            config=text,
            global_batch=global_batch,
            dp=dp,
            tp=tp,
            fsdp=fsdp,
            device=device,
            python=python,
            timeout_s=timeout_s,
            progress=progress,
        )
    if as_json:
        common.echo_json({**found.memory.to_json(), "notes": list(found.notes)})
        return
    common.echo([*_lines(found.memory, marp), *(f"note: {note}" for note in found.notes)])


def _lines(peak: MemoryPeak, marp: bool) -> Iterator[str]:
    from bftd.base.tables import Column
    from sizing.choice.tracer import BOUNDED
    from sizing.model.trace import CATEGORIES

    value, parallel = peak.peak, peak.parallel
    if peak.why:
        yield f"not traced: {peak.why}"
    yield f"peak of one GPU: {size(value.value)} ({value.origin})"
    spread = f"dp {parallel.dp}, tp {parallel.tp}, fsdp {parallel.fsdp}"
    yield f"a batch of {peak.batch} on each of {parallel.gpus} GPU{'s'[: parallel.gpus - 1]} ({spread})"
    yield ""
    columns = [Column("OF THE PEAK"), Column("SIZE", right=True), Column("SHARE", right=True), Column("ORIGIN", rank=1)]
    rows = []
    for name in CATEGORIES:
        part = peak.by_category.get(name, 0)
        rows.append((name, size(part), f"{100 * part / max(1.0, value.value):.1f} %", value.origin))
    yield from common.table(columns, rows)
    yield ""
    reason = "what the formula has missed" if value.origin == "formula" else "CUDA context, libraries, fragmentation"
    yield f"a GPU needs {size(value.high)} with the guard band (assumed: {reason})"
    if peak.upper_bounds:
        yield f"note: {BOUNDED}"
    if value.low < value.value:
        yield f"the formula's own range begins at {size(value.low)}"
    if marp and peak.marp_bytes is not None:
        yield f"MARP as printed: {size(peak.marp_bytes)} (formula)"
