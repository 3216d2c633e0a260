"""`sizing.fit`: the GPUs of a centre that suit a model's training, as plans with the lines that request them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sizing.base.errors import Untraceable, UsageError
from sizing.base.progress import Progress, quiet
from sizing.child.tracing import TIMEOUT_S
from sizing.choice import advice, profile_times, ran
from sizing.choice.by_formula import Formula
from sizing.choice.fit import By, GpuPlan, best_of, explore, with_runs
from sizing.choice.fit import fit as ranked
from sizing.choice.layout import Layout, layouts
from sizing.choice.sources import Source
from sizing.choice.tracer import Tracer, spread_of
from sizing.files.past_runs import Ran
from sizing.functions.site import HERE, InventorySource, Site
from sizing.inventory.inventory import Inventory
from sizing.inventory.pools import pools, within
from sizing.model import request
from sizing.model.request import ModelRequest
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.pilots.start_estimate import asked as slurms_answer


@dataclass(frozen=True)
class FitResult:
    """The plans for a model, best first.

    `plans` are all plans, those that fit before those that do not; `best` are the first of them that fit, one for each
    request to Slurm. `notes` are sentences on what the figures rest on, and `inventory` has the GPUs that were looked
    at. If no plan fits, `advice` says by how much and what would help; else it is "".
    """

    plans: tuple[GpuPlan, ...]
    best: tuple[GpuPlan, ...]
    notes: tuple[str, ...]
    inventory: Inventory
    advice: str = ""


def fit(
    step: str | None = None,
    *,
    config: str | None = None,
    global_batch: int,
    inventory: InventorySource | None = None,
    partitions: Sequence[str] = (),
    gpu: str = "",
    max_gpus: int | None = None,
    by: By = "cost",
    top: int = 3,
    precision: str = "",
    python: str = "",
    timeout_s: float = TIMEOUT_S,
    asks_start: bool = True,
    site: Site = HERE,
    progress: Progress = quiet,
) -> FitResult:
    """Return the plans to train a model on the GPUs of a centre, ranked by what a step costs or by its time.

    `step` is "FILE.py:make_step", which is traced; `config` gives the model by its sizes ("gpt:h=1024,l=24,..." or a
    config.json), and serves where there is no step or it cannot be traced. The GPUs are those of `inventory` (one, or
    its file), by default those of `site` by its Slurm; `partitions`, `gpu` and `max_gpus` restrict them. `top` plans
    are certain, and with `asks_start` have Slurm's answer on when they could begin. A trace runs under `python` for at
    most `timeout_s`; `precision` times its products in another one than its own.

    Raises UsageError for an impossible request, SlurmError without an inventory, Untraceable without a configuration
    if the step cannot be traced, and SizingError if the centre has no known GPUs.
    """
    asked = request.asked(step, config, precision)
    request.refuse_batch(global_batch)
    there = site.inventory(inventory)
    notes = [*there.notes, *asked.notes]
    if asked.model is not None and asked.model.parallel.gpus > 1:
        notes.append("dp, tp and fsdp of --config do not count here: they are what is chosen")
    everything = tuple(pools(there))
    chosen = within(everything, partitions, gpu)
    tracer = None if asked.step is None else Tracer(asked.step, python, timeout_s, precision, progress)
    spread = spread_of(asked, tracer)
    ways = layouts(chosen, global_batch, spread, max_gpus)
    if not ways:
        raise UsageError("no GPUs are left to choose from; bft size inventory shows which there are")
    source, plans, more = _plans(asked, tracer, ways, by, top)
    if not plans:
        cut = "" if asked.micro_batch is None else f" in micro-batches of {asked.micro_batch}"
        raise UsageError(f"a global batch of {global_batch} cannot be cut{cut} over any of these GPUs; choose another")
    notes += more
    runs: list[Ran] = []
    if tracer is not None:
        runs, more = ran.known(tracer, {each.place for each in ways if not each.shape.pool.mixed}, site.folder)
        if runs:
            plans = ranked(tracer.traces, ways, by)  # now with the plans for splits that were traced only for them
        notes += more
    plans = profile_times.retimed(plans, asked, global_batch, python, timeout_s, precision, by, site.folder, notes)
    plans = with_runs(plans, runs, by)
    best = best_of(plans, top)
    if asks_start and best:
        said, more = _starts(best, site.slurm())
        plans = tuple(replace(plan, start=said.get(plan.sbatch)) for plan in plans)
        best = best_of(plans, top)
        notes += more
    why = ""
    if not best:
        restricted = len(chosen) < len(everything) or max_gpus is not None
        others = layouts(everything, global_batch, spread) if restricted else ()
        why = f"{asked.step or 'the model'} {advice.sentence(source, plans, others)}"
    return FitResult(plans, tuple(best), tuple(notes), there, why)


def _plans(
    asked: ModelRequest, tracer: Tracer | None, ways: Sequence[Layout], by: By, top: int
) -> tuple[Source, tuple[GpuPlan, ...], list[str]]:
    """Return the source of the estimates, the plans and notes: traced, or by formula if tracing fails.

    Raises Untraceable if tracing fails and there is no configuration for a formula.
    """
    formula = None if asked.model is None else Formula(asked.model, asked.micro_batch)
    if tracer is None:
        assert formula is not None
        return formula, ranked(formula, ways, by), []
    try:
        plans = explore(tracer.traces, ways, tracer.measure, top=top, by=by)
    except Untraceable as error:
        if formula is None:
            raise Untraceable(f"{error}; give --config for an estimate by formula") from None
        return formula, ranked(formula, ways, by), [f"by formula, as the step could not be traced: {error}"]
    return tracer.traces, plans, tracer.told()


def _starts(best: Sequence[GpuPlan], slurm: SlurmClient) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Return Slurm's message on when each plan could start, and a note if Slurm cannot be asked."""
    found: dict[tuple[str, ...], str] = {}
    for plan in best:
        try:
            said = slurms_answer(slurm, plan.sbatch)
        except SlurmError as error:
            return found, [f"Slurm was not asked when this could start: {error}"]
        found[plan.sbatch] = said.words if said.taken else f"refused: {said.words}"
    return found, []
