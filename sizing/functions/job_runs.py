"""`sizing.choose`: the GPUs of a centre on which a whole training run ends first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sizing.base.errors import UsageError
from sizing.base.progress import Progress, quiet
from sizing.child.tracing import TIMEOUT_S
from sizing.choice import ranking, runs
from sizing.choice.ranking import By, StartAnswer
from sizing.choice.run_timers import Splits, timers_of
from sizing.choice.runs import START_UP_S, JobRun, Rejected
from sizing.functions.site import HERE, InventorySource, Site
from sizing.inventory.pools import pools, within
from sizing.model import request
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.pilots.start_estimate import asked as slurms_answer

_MOST_STEPS = 10**12


class JobScript(Protocol):
    """The script of a job, where there is one: it rules runs out, and has lines of its own."""

    def without_idle_gpus(
        self, found: Sequence[JobRun], out: Sequence[Rejected]
    ) -> tuple[tuple[JobRun, ...], tuple[Rejected, ...]]:
        """Return the runs whose GPUs it would all use; add the others to those that are out already."""
        ...

    def request(self, run: JobRun) -> Sequence[str]:
        """Return all #SBATCH lines with which it would ask for a run."""
        ...


@dataclass(frozen=True, slots=True)
class ChooseResult:
    """The whole runs that a centre can do, and the one to choose.

    `found` are all runs that are possible, the shortest first, and `out` the cells that are not, each with its reason.
    `best` are the shortest runs of each request, with Slurm's answers; `ordered` those to choose from, the first of
    them first. `winner` is None if there is none; `failure` then says why. `now_s` is the time of the choice.
    """

    best: Sequence[JobRun]
    ordered: Sequence[JobRun]
    found: Sequence[JobRun]
    out: Sequence[Rejected]
    now_s: float
    deadline_s: float | None
    steps: int
    notes: tuple[str, ...]
    by: By | None = None
    winner: JobRun | None = None
    failure: str = ""

    @property
    def why(self) -> str:
        """The reason for the winner, in one or two sentences; "" without one."""
        return "" if self.winner is None else ranking.why(self.ordered, self.now_s, self.by)


def choose(
    step: str | None = None,
    *,
    config: str | None = None,
    steps: int,
    global_batch: int,
    deadline_s: float | None = None,
    by: By | None = None,
    start_up_s: float | None = None,
    inventory: InventorySource | None = None,
    partitions: Sequence[str] = (),
    gpu: str = "",
    max_gpus: int | None = None,
    max_stages: int | None = None,
    tensor: bool = False,
    top: int = 3,
    precision: str = "",
    python: str = "",
    timeout_s: float = TIMEOUT_S,
    asks_start: bool = True,
    job: JobScript | None = None,
    site: Site = HERE,
    progress: Progress = quiet,
) -> ChooseResult:
    """Return the runs of `steps` steps on a centre's GPUs, and the one that ends first or takes the fewest GPU-hours.

    `step` is "FILE.py:make_model" or a make_step, `config` a model by its sizes. `deadline_s` is when it must have
    ended at worst, in unix seconds. `by` is the measure that the winner has least of, by default GPU-hours among those
    that may end as early as any. `start_up_s` is the time until the first step. A pipeline has up to `max_stages`
    stages, by default one or as the step's keywords say; `tensor` allows tensor parallelism of a `config`. With
    `asks_start` Slurm is asked when the best could start, until the ends of `top` are known. `job` is the script to be
    submitted, if any. The others are as in `fit`.

    Raises UsageError for an impossible request, SlurmError without an inventory, Untraceable without a configuration
    if the step cannot be traced, and SizingError if the centre has no known GPUs.
    """
    now_s = time.time()
    if not 1 <= steps <= _MOST_STEPS:
        raise UsageError(f"--steps {steps}: at least 1, and at most {_MOST_STEPS}")
    request.refuse_batch(global_batch)
    asked = request.asked(step, config, precision)
    starting = START_UP_S if start_up_s is None else runs.exactly(start_up_s)
    there = site.inventory(inventory, option="--partitions")
    notes = [*there.notes, *asked.notes, *_closed(there.closed, partitions, asks_start, site.slurm)]
    chosen = within(tuple(pools(there)), partitions, gpu)
    splits = Splits.of(asked, max_stages, tensor)
    timers = timers_of(
        asked,
        chosen,
        global_batch,
        max_gpus,
        splits,
        python,
        timeout_s,
        precision,
        folder=site.folder,
        progress=progress,
    )
    found, out = runs.survey(chosen, timers.timer, steps, starting, max_gpus, splits.stages)
    if job is not None:
        found, out = job.without_idle_gpus(found, out)
    if not found:
        failure = "; ".join(["no GPUs can run it: " + runs.nearest(out), *splits.undeclared])
        notes += timers.notes(())
        return ChooseResult((), (), (), out, now_s, deadline_s, steps, tuple(notes), failure=failure)
    # on the same GPUs, a run that certainly meets the deadline beats one that is expected to end sooner
    in_time = () if deadline_s is None else ranking.by_deadline(found, deadline_s, now_s)
    best: Sequence[JobRun] = runs.best_of_shapes(in_time or found)
    if asks_start:
        best, unasked = _starts(best, _asking(job, site.slurm()), now_s, top, deadline_s, by)
        notes += unasked
    ordered = ranking.ranked(best, now_s, by)
    notes += timers.notes(ordered or best)
    holding = ordered if deadline_s is None else ranking.by_deadline(ordered, deadline_s, now_s)
    failure = ""
    if not ordered:
        failure = f"Slurm takes no request of them: {best[0].said} (--no-start does not ask it)"
    elif not holding:
        assert deadline_s is not None
        failure = f"nothing ends for sure by {moment(deadline_s)}: {ranking.misses(ordered, deadline_s, now_s)}"
    shown = holding or ordered
    winner = holding[0] if holding else None
    return ChooseResult(best, shown, found, out, now_s, deadline_s, steps, tuple(notes), by, winner, failure)


def moment(at_s: float) -> str:
    """Return local time to the minute; "never" if it is beyond the calendar."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M", time.localtime(at_s))
    except (OSError, OverflowError, ValueError):
        return "never"


def _closed(
    states: Mapping[str, str], wanted: Sequence[str], asks: bool, slurm: Callable[[], SlurmClient]
) -> list[str]:
    """Return a note on each partition that is not up, with Slurm's message if `asks`.

    Raises UsageError if the user named such a partition.
    """
    told = {name: f"partition {name} is left out, its State is {state}" for name, state in states.items()}
    for name in told if asks else ():
        with suppress(SlurmError):
            said = slurms_answer(slurm(), [f"#SBATCH --partition={name}"])
            told[name] += "" if said.taken else f": {said.words}"
    for name in wanted:
        if name in told:
            raise UsageError(f"{told[name]}; name another, or leave --partition out")
    return list(told.values())


def _starts(
    best: Sequence[JobRun],
    slurm: Callable[[JobRun], StartAnswer],
    now_s: float,
    top: int,
    deadline_s: float | None,
    by: By | None,
) -> tuple[Sequence[JobRun], list[str]]:
    """Ask Slurm when runs could start; return all runs, and a note if it was not asked for all of them."""
    try:
        said = ranking.ask(best, slurm, now_s, top, deadline_s=deadline_s, by=by)
    except SlurmError as error:
        return best, [f"Slurm was not asked when they could start, so all are taken to start now: {error}"]
    asked = sum(bool(run.said) for run in said)
    return said, [f"Slurm was asked when {asked} of {len(said)} could start"] if asked < len(said) else []


def _asking(job: JobScript | None, client: SlurmClient) -> Callable[[JobRun], StartAnswer]:
    """Return a function that asks Slurm when a run could start, with its lines and the script's own."""

    def ask(run: JobRun) -> StartAnswer:
        lines = [line.text for line in run.lines()] if job is None else job.request(run)
        said = slurms_answer(client, lines)
        return StartAnswer(said.start_s, said.words if said.taken else f"refused: {said.words}")

    return ask
