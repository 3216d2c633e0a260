"""`bft size choose`: the GPUs of this centre on which a job ends first, and the lines that request them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options, times
from bftd.cli.size import fit
from bftd.cli.size.output import choose as size_choose_shown
from bftd.cli.size.shared import choose_timers, inventory, model, submit, trace
from bftd.config import configuration
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from bftd.cli.size.shared.submit import BatchJob
    from sizing.base.estimate import Estimate
    from sizing.choose.ranking import By, StartAnswer
    from sizing.choose.runs import JobRun

_MOST_STEPS = 10**12


@click.command()
@click.argument("step", required=False, metavar="[MODULE.py:make_model]")
@click.option("--config", "text", metavar="SIZES|FILE.json[:SIZES]", help="The model by its sizes; docs/howto/size.md.")
@click.option("--steps", type=int, required=True, metavar="N", help="Training steps of the job.")
@click.option("--global-batch", type=int, required=True, metavar="B", help="Samples of a step on all GPUs together.")
@click.option("--deadline", metavar="TIME", help="When it must have ended at worst: 2026-12-01T08:00, +2days.")
@click.option(
    "--by",
    type=click.Choice(["end", "gpu-hours"]),
    help="What to have least of; default: GPU-hours, of those that may end as early as any.",
)
@click.option("--start-up", "start_up", metavar="TIME", help="Until the first step, as --time: 5 is 5 minutes.")
@click.option("--partitions", default="auto", metavar="auto|FILE", help="GPUs of live Slurm (auto), or of a file.")
@click.option("--partition", "-p", default="", metavar="NAME[,NAME...]", help="Of these partitions only.")
@click.option("--gpu", "gpu_type", default="", metavar="TYPE", help="Of this type only.")
@click.option("--max-gpus", type=int, metavar="N", help="At most so many.")
@click.option(
    "--max-stages", type=click.IntRange(1), metavar="N", help="Up to so many pipeline stages, as your script can."
)
@click.option("--tensor", is_flag=True, help="Tensor parallelism too, of a model by its sizes, as your script can.")
@click.option("--top", type=click.IntRange(1, 20), default=3, metavar="N", help="Ends known for the best N; default 3.")
@click.option(
    "--precision", default="", metavar="P", help="Time a traced model in fp32, tf32, fp16 or bf16; default: its own."
)
@click.option("--python", default="", metavar="P", help="The Python to trace with; it must have torch.")
@options.trace_timeout
@click.option("--start/--no-start", "asks_start", default=True, help="Ask Slurm when the best could start (default).")
@click.option("--submit", "job_path", metavar="JOB.sh", help="Submit this script on the winner's GPUs; asks before.")
@click.option("--yes", "-y", is_flag=True, help="Submit without asking.")
@options.as_json
def choose(
    step: str | None,
    text: str | None,
    steps: int,
    global_batch: int,
    deadline: str | None,
    by: By | None,
    start_up: str | None,
    partitions: str,
    partition: str,
    gpu_type: str,
    max_gpus: int | None,
    max_stages: int | None,
    tensor: bool,
    top: int,
    precision: str,
    python: str,
    timeout_s: float,
    asks_start: bool,
    job_path: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Choose the GPUs on which a training run ends first, or takes the fewest GPU-hours.

    Works out for each partition and number of GPUs how long the run takes, in how many pipeline stages it is fastest,
    and asks Slurm when the best could start. Nothing is submitted without --submit.
    """
    from sizing.base.errors import DoesNotFit
    from sizing.choose import ranking, runs
    from sizing.inventory.pools import pools

    now_s = time.time()
    if not 1 <= steps <= _MOST_STEPS:
        raise UsageError(f"--steps {steps}: at least 1, and at most {_MOST_STEPS}")
    deadline_s = _deadline(deadline, now_s)
    starting = _start_up(start_up)
    trace.refuse_precision(precision)
    model.refuse_batch(global_batch)
    asked = model.asked(step, text)
    job = None if job_path is None else submit.read(job_path)
    there = inventory.found(None if partitions == "auto" else partitions, option="--partitions")
    wanted = partition or (job.own("partition") if job is not None else "")
    closed = _closed(there.closed, wanted, asks_start)
    everything = tuple(pools(there))
    chosen = fit.within(everything, fit.names(wanted), gpu_type)
    splits = choose_timers.Splits.of(asked, max_stages, tensor)
    timers = choose_timers.made(asked, chosen, global_batch, max_gpus, splits, python, timeout_s, precision)
    found, out = runs.survey(chosen, timers.timer, steps, starting, max_gpus, splits.stages)
    if job is not None:
        found, out = job.without_idle_gpus(found, out)
    notes = [*there.notes, *closed]
    if not found:
        if as_json:
            shown = size_choose_shown.ChooseOutput(
                (), (), (), out, now_s, deadline_s, steps, (*notes, *timers.notes(()))
            )
            common.echo_json(size_choose_shown.to_json(shown, None))
        raise DoesNotFit("; ".join(["no GPUs can run it: " + size_choose_shown.nearest(out), *splits.undeclared]))
    # on the same GPUs, a run that certainly meets the deadline beats one that is expected to end sooner
    in_time = () if deadline_s is None else ranking.by_deadline(found, deadline_s, now_s)
    best: Sequence[JobRun] = runs.best_of_shapes(in_time or found)
    if asks_start:
        best, unasked = _asked(best, job, now_s, top, deadline_s, by)
        notes += unasked
    ordered = ranking.ranked(best, now_s, by)
    notes += timers.notes(ordered or best)
    holding = ordered if deadline_s is None else ranking.by_deadline(ordered, deadline_s, now_s)
    shown = size_choose_shown.ChooseOutput(
        best, holding or ordered, found, out, now_s, deadline_s, steps, tuple(notes), by
    )
    winner = holding[0] if holding else None
    if as_json and (job is None or winner is None):
        common.echo_json(size_choose_shown.to_json(shown, winner))
    elif not as_json:
        common.echo(size_choose_shown.lines(shown, winner, top))
    if not ordered:
        raise DoesNotFit(f"Slurm takes no request of them: {best[0].said} (--no-start does not ask it)")
    if winner is None:
        assert deadline_s is not None
        raise DoesNotFit(
            f"nothing ends for sure by {size_choose_shown.moment(deadline_s)}: "
            f"{ranking.misses(ordered, deadline_s, now_s)}"
        )
    if job is not None:
        job_id = submit.submit(job, winner, yes=yes, quiet=as_json, deadline=deadline_s is not None)
        if as_json:
            common.echo_json({**size_choose_shown.to_json(shown, winner), "job_id": job_id})


def _deadline(text: str | None, now_s: float) -> float | None:
    """Return a future moment in unix seconds; raises UsageError if it is past or no time."""
    if text is None:
        return None
    try:
        at_s = times.moment(f"now{text}" if text.startswith("+") else text, now_s)
    except ValueError:
        raise UsageError(f"--deadline {text}: no time such as 2026-12-01T08:00, +2days or noon") from None
    if at_s <= now_s:
        raise UsageError(f"--deadline {text} is {size_choose_shown.moment(at_s)}, which is past: name a time to come")
    return at_s


def _start_up(text: str | None) -> Estimate:
    """Return the time until the first step: as the user says, or else as assumed."""
    from sizing.base.estimate import Estimate
    from sizing.choose.limits import of_slurm
    from sizing.choose.runs import START_UP_S

    if text is None:
        return START_UP_S
    seconds = of_slurm(text) if text.strip() != "0" else 0.0
    if seconds is None or seconds > 86400:
        raise UsageError(f"--start-up {text}: minutes, or hours:minutes:seconds, up to a day")
    return Estimate(seconds, seconds, seconds, "assumed")


def _closed(states: Mapping[str, str], wanted: str, asks: bool) -> list[str]:
    """Return a note on each partition that is not up, with Slurm's message if `asks`.

    Raises UsageError if the user named such a partition.
    """
    from slurm_plugin.pilots.start_estimate import asked

    notes = {name: f"partition {name} is left out, its State is {state}" for name, state in states.items()}
    client = common.slurm_client(configuration.load_found(None))
    for name in notes if asks else ():
        with suppress(SlurmError):
            reply = asked(client, [f"#SBATCH --partition={name}"])
            notes[name] += "" if reply.taken else f": {reply.words}"
    for name in fit.names(wanted):
        if name in notes:
            raise UsageError(f"{notes[name]}; name another, or leave --partition out")
    return list(notes.values())


def _asked(
    best: Sequence[JobRun], job: BatchJob | None, now_s: float, top: int, deadline_s: float | None, by: By | None
) -> tuple[Sequence[JobRun], list[str]]:
    """Ask Slurm when runs could start; return all runs, and a note if it was not asked for all of them."""
    from sizing.choose import ranking

    try:
        runs = ranking.ask(best, _slurm(job), now_s, top, deadline_s=deadline_s, by=by)
    except SlurmError as error:
        return best, [f"Slurm was not asked when they could start, so all are taken to start now: {error}"]
    asked = sum(bool(run.said) for run in runs)
    return runs, [f"Slurm was asked when {asked} of {len(runs)} could start"] if asked < len(runs) else []


def _slurm(job: BatchJob | None) -> Callable[[JobRun], StartAnswer]:
    """Return a function that asks Slurm when a run could start, with its lines and the script's own."""
    from sizing.choose.ranking import StartAnswer
    from slurm_plugin.pilots.start_estimate import asked

    client = common.slurm_client(configuration.load_found(None))

    def ask(run: JobRun) -> StartAnswer:
        lines = [line.text for line in run.lines()] if job is None else job.lines(job.missing(run)[0])
        reply = asked(client, lines)
        return StartAnswer(reply.start_s, reply.words if reply.taken else f"refused: {reply.words}")

    return ask
