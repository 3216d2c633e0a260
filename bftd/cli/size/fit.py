"""`bft size fit`: the GPUs of this centre that suit a model's training, and the #SBATCH lines that request them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options
from bftd.cli.progress import progress_bars
from bftd.cli.size.output import fit as size_shown
from bftd.cli.size.shared import inventory as size_inventory
from bftd.cli.size.shared import script as size_script
from bftd.cli.size.shared import size_options

if TYPE_CHECKING:
    from sizing.choice.fit import By, GpuPlan

_PLANS_MOST = 200  # in JSON, besides the best of each partition and type


@click.command(epilog=size_options.STEP)
@click.argument("step", required=False, metavar="[MODULE.py:make_step]")
@size_options.model_sizes
@size_options.global_batch
@size_options.partitions
@click.option("--inventory", metavar="FILE", help="The same as --partitions FILE.")
@size_options.partition
@size_options.gpu_type
@size_options.max_gpus
@click.option("--by", default="cost", type=click.Choice(["cost", "time"]), help="What to have least of; default cost.")
@click.option("--top", type=click.IntRange(1, 20), default=3, metavar="N", help="Lines for the best N; default 3.")
@size_options.precision
@size_options.python
@size_options.timeout()
@size_options.asks_start
@click.option("--into", metavar="JOB.sh", help="Write the lines into a copy of this script, as a diff first.")
@click.option("--output", "-o", metavar="FILE", help="The copy's name; default JOB.gpus.sh.")
@click.option("--overwrite", is_flag=True, help="Replace a copy that is there.")
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@options.as_json
def fit(
    step: str | None,
    text: str | None,
    global_batch: int,
    partitions: str,
    inventory: str | None,
    partition: str,
    gpu_type: str,
    max_gpus: int | None,
    by: By,
    top: int,
    precision: str,
    python: str,
    timeout_s: float,
    asks_start: bool,
    into: str | None,
    output: str | None,
    overwrite: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Choose GPUs for a model, and write the #SBATCH lines.

    Tells for each type of GPU and each way to spread the model over them whether its memory suffices, ranks what fits
    by what a step costs, and asks Slurm when the best could start. Nothing is submitted and no file is changed.
    """
    import sizing
    from sizing.base.errors import DoesNotFit
    from sizing.inventory.pools import pools

    if into is None:
        options.refuse_idle(("output", "overwrite", "yes"), "is for a copy of a script: give the script by --into")
    size_options.refuse_untraced(step)
    script = None if into is None else size_script.read(into)
    target = None if script is None else size_script.target(script, output, overwrite=overwrite)
    if inventory and partitions != "auto":
        raise UsageError("--partitions and --inventory name the same thing: give one of them")
    own = (script.options.get("partition") if script is not None else None) or ""
    with progress_bars() as progress:
        found = sizing.fit(
            step,
            config=text,
            global_batch=global_batch,
            inventory=inventory or (None if partitions == "auto" else partitions),
            partitions=names(partition or own),
            gpu=gpu_type,
            max_gpus=max_gpus,
            by=by,
            top=top,
            precision=precision,
            python=python,
            timeout_s=timeout_s,
            asks_start=asks_start,
            site=size_inventory.site(),
            progress=progress,
        )
    notes = list(found.notes)
    if script is not None and own and not partition:
        at = len(found.inventory.notes)
        notes.insert(at, f"{script.path} asks for partition {own}: no other is looked at")
    listed = tuple(_shortened(found.plans))
    if as_json:
        if left := len(found.plans) - len(listed):
            notes.append(f"{left} other plans are left out: each has better ones here in its partition and of its type")
        common.echo_json({"plans": [plan.to_json() for plan in listed], "notes": notes})
    else:
        everything = tuple(pools(found.inventory))
        common.echo(size_shown.lines(found.plans, found.best, notes, everything, len(listed), by))
    if found.advice:
        raise DoesNotFit(found.advice)
    if script is not None and target is not None:
        plans = (*found.best, *(plan for plan in found.plans if plan.fits))
        size_script.offer(
            script, *size_script.with_lines(script, plans), target, overwrite=overwrite, yes=yes, quiet=as_json
        )


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list such as --partition takes."""
    return tuple(name for name in text.split(",") if name)


def _shortened(plans: Sequence[GpuPlan]) -> Iterable[GpuPlan]:
    """Yield the best plans, and the best of each partition and type however far down it ranks."""
    seen = set()
    for at, plan in enumerate(plans):
        key = (plan.partition, plan.gpu_type)
        if at < _PLANS_MOST or key not in seen:
            yield plan
        seen.add(key)
