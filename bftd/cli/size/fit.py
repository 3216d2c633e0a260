"""`bft size fit`: the GPUs of this centre that suit a model's training, and the #SBATCH lines that request them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options
from bftd.cli.size import learn
from bftd.cli.size.output import fit as size_shown
from bftd.cli.size.shared import inventory as size_inventory
from bftd.cli.size.shared import model, profiles, trace
from bftd.cli.size.shared import script as size_script
from bftd.config import configuration
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from bftd.cli.size.shared.model import ModelRequest
    from bftd.cli.size.shared.script import Script
    from bftd.cli.size.shared.trace import Tracer
    from sizing.choose.candidates import Candidate
    from sizing.choose.fit import By, PlanChoice
    from sizing.choose.sources import Source
    from sizing.inventory.pools import GpuPool

_PLANS_MOST = 200  # in JSON, besides the best of each partition and type


@click.command()
@click.argument("step", required=False, metavar="[MODULE.py:make_step]")
@click.option("--config", "text", metavar="SIZES|FILE.json[:SIZES]", help="The model by its sizes; docs/howto/size.md.")
@click.option("--global-batch", type=int, required=True, metavar="B", help="Samples of a step on all GPUs together.")
@click.option("--partitions", default="auto", metavar="auto|FILE", help="GPUs of live Slurm (auto), or of a file.")
@click.option("--inventory", metavar="FILE", help="The same as --partitions FILE.")
@click.option("--partition", "-p", default="", metavar="NAME[,NAME...]", help="Of these partitions only.")
@click.option("--gpu", "gpu_type", default="", metavar="TYPE", help="Of this type only.")
@click.option("--max-gpus", type=int, metavar="N", help="At most so many.")
@click.option("--by", default="cost", type=click.Choice(["cost", "time"]), help="What to have least of; default cost.")
@click.option("--top", type=click.IntRange(1, 20), default=3, metavar="N", help="Lines for the best N; default 3.")
@click.option(
    "--precision", default="", metavar="P", help="Time a traced step in fp32, tf32, fp16 or bf16; default: its own."
)
@click.option("--python", default="", metavar="P", help="The Python to trace with; it must have torch.")
@options.trace_timeout
@click.option("--start/--no-start", "asks_start", default=True, help="Ask Slurm when the best could start (default).")
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
    from sizing.base.errors import DoesNotFit
    from sizing.choose import advice
    from sizing.choose.candidates import candidates
    from sizing.choose.fit import best_of, with_runs
    from sizing.choose.fit import fit as ranked
    from sizing.inventory.pools import pools

    trace.refuse_precision(precision)
    asked = model.asked(step, text)
    model.refuse_batch(global_batch)
    if into is None and output:
        raise UsageError("--output names the copy of a script: give the script by --into")
    script = None if into is None else size_script.read(into)
    target = None if script is None else size_script.target(script, output, overwrite=overwrite)
    if inventory and partitions != "auto":
        raise UsageError("--partitions and --inventory name the same thing: give one of them")
    there = size_inventory.found(inventory or (None if partitions == "auto" else partitions))
    notes = [*there.notes, *_noted(asked, script, partition)]
    own = script.options.get("partition") if script is not None else None
    everything = tuple(pools(there))
    chosen = within(everything, names(partition or own or ""), gpu_type)
    tracer = trace.Tracer(asked.step, python, timeout_s, precision) if asked.step is not None else None
    spread = trace.spread_of(asked, tracer)
    ways = candidates(chosen, global_batch, spread, max_gpus)
    if not ways:
        raise UsageError("no GPUs are left to choose from; bft size inventory shows which there are")
    source, choices, more = _plans(asked, tracer, ways, by, top)
    if not choices:
        cut = "" if asked.micro_batch is None else f" in micro-batches of {asked.micro_batch}"
        raise UsageError(f"a global batch of {global_batch} cannot be cut{cut} over any of these GPUs; choose another")
    notes += more
    runs, more = (
        ([], []) if tracer is None else learn.known(tracer, {each.place for each in ways if not each.pool.mixed})
    )
    if runs and tracer is not None:
        choices = ranked(tracer.traces, ways, by)  # now with the plans for splits that were traced only for past runs
    notes += more
    choices = profiles.retimed(choices, asked, global_batch, python, timeout_s, precision, by, notes)
    choices = with_runs(choices, runs, by)
    best = best_of(choices, top)
    if asks_start and best:
        starts, unasked = _starts(best)
        choices = tuple(replace(each, plan=replace(each.plan, start=starts.get(each.plan.sbatch))) for each in choices)
        best = best_of(choices, top)
        notes += unasked
    shown = tuple(_shortened(choices))
    if as_json:
        if left := len(choices) - len(shown):
            notes.append(f"{left} other plans are left out: each has better ones here in its partition and of its type")
        common.echo_json({"plans": [each.plan.to_json() for each in shown], "notes": notes})
    else:
        common.echo(size_shown.lines(choices, best, notes, everything, len(shown)))
    if not best:
        restricted = len(chosen) < len(everything) or max_gpus is not None
        others = candidates(everything, global_batch, spread) if restricted else ()
        raise DoesNotFit(f"{asked.step or 'the model'} {advice.sentence(source, choices, others)}")
    if script is not None and target is not None:
        size_script.offer(
            script, *size_script.with_lines(script, best[0]), target, overwrite=overwrite, yes=yes, quiet=as_json
        )


def _noted(asked: ModelRequest, script: Script | None, partition: str) -> Iterator[str]:
    """Yield notes on input that is ignored, and on input whose effect the user may not expect."""
    if asked.model is not None and asked.model.parallel.gpus > 1:
        yield "dp, tp and fsdp of --config do not count here: they are what is chosen"
    if script is not None and not partition and (own := script.options.get("partition")):
        yield f"{script.path} asks for partition {own}: no other is looked at"


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def within(everything: Sequence[GpuPool], partitions: Collection[str], gpu_type: str) -> tuple[GpuPool, ...]:
    """Return the pools that the user allows; raises UsageError for an unknown name."""
    if not everything:
        raise BftError("no partition that is up has GPUs of a known type; bft size inventory shows what there is")
    for name in partitions:
        _refuse_unknown("partition with GPUs", name, {pool.partition for pool in everything})
    kinds = {name for pool in everything for name in (pool.gpu.name, pool.gres_type) if name}
    if gpu_type:
        _refuse_unknown("GPU type", gpu_type, kinds)
    found = tuple(
        pool
        for pool in everything
        if (not partitions or pool.partition in partitions) and gpu_type in ("", pool.gpu.name, pool.gres_type)
    )
    if not found:
        where = ", ".join(partitions)
        raise UsageError(f"no {gpu_type} in partition {where}; bft size inventory shows which GPUs are where")
    return found


def _refuse_unknown(what: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    same = [each for each in known if each.lower() == name.lower()]
    near = same or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    raise UsageError(f"no {what} {name}: {hint}")


def _plans(
    asked: ModelRequest, tracer: Tracer | None, ways: Sequence[Candidate], by: By, top: int
) -> tuple[Source, tuple[PlanChoice, ...], list[str]]:
    """Return the source of the estimates, the plans and notes: traced, or by formula if tracing fails.

    Raises BftError if tracing fails and there is no configuration for a formula.
    """
    from sizing.base.errors import Untraceable
    from sizing.choose.by_formula import Formula
    from sizing.choose.fit import explore
    from sizing.choose.fit import fit as ranked

    formula = None if asked.model is None else Formula(asked.model, asked.micro_batch)
    if tracer is None:
        assert formula is not None
        return formula, ranked(formula, ways, by), []
    try:
        choices = explore(tracer.traces, ways, tracer.measure, top=top, by=by)
    except Untraceable as error:
        if formula is None:
            raise BftError(f"{error}; give --config for an estimate by formula") from None
        return formula, ranked(formula, ways, by), [f"by formula, as the step could not be traced: {error}"]
    return tracer.traces, choices, tracer.notes()


def _starts(best: Sequence[PlanChoice]) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Return Slurm's message on when each choice could start, and a note if Slurm cannot be asked."""
    from slurm_plugin.pilots.start_estimate import asked

    slurm = common.slurm_client(configuration.load_found(None))
    found: dict[tuple[str, ...], str] = {}
    for choice in best:
        try:
            reply = asked(slurm, choice.plan.sbatch)
        except SlurmError as error:
            return found, [f"Slurm was not asked when this could start: {error}"]
        found[choice.plan.sbatch] = reply.words if reply.taken else f"refused: {reply.words}"
    return found, []


def _shortened(choices: Sequence[PlanChoice]) -> Iterable[PlanChoice]:
    """Yield the best plans, and the best of each partition and type however far down it ranks."""
    seen = set()
    for at, choice in enumerate(choices):
        key = (choice.plan.partition, choice.plan.gpu_type)
        if at < _PLANS_MOST or key not in seen:
            yield choice
        seen.add(key)
