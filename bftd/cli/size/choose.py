"""`bft size choose`: the GPUs of this centre on which a job ends first, and the lines that request them."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options, times
from bftd.cli.progress import progress_bars
from bftd.cli.size.fit import names
from bftd.cli.size.output import choose as size_choose_shown
from bftd.cli.size.shared import inventory, size_options, submit

if TYPE_CHECKING:
    from sizing.choice.ranking import By


@click.command(epilog=size_options.STEP)
@click.argument("step", required=False, metavar="[MODULE.py:make_model]")
@size_options.model_sizes
@click.option("--steps", type=int, required=True, metavar="N", help="Training steps of the job.")
@size_options.global_batch
@click.option("--deadline", metavar="TIME", help="When it must have ended at worst: 2026-12-01T08:00, +2days.")
@click.option(
    "--by",
    type=click.Choice(["end", "gpu-hours"]),
    help="What to have least of; default: GPU-hours, of those that may end as early as any.",
)
@click.option("--start-up", "start_up", metavar="TIME", help="Until the first step, as --time: 5 is 5 minutes.")
@size_options.partitions
@size_options.partition
@size_options.gpu_type
@size_options.max_gpus
@click.option(
    "--max-stages", type=click.IntRange(1), metavar="N", help="Up to so many pipeline stages, as your script can."
)
@click.option("--tensor", is_flag=True, help="Tensor parallelism too, of a model by its sizes, as your script can.")
@click.option("--top", type=click.IntRange(1, 20), default=3, metavar="N", help="Ends known for the best N; default 3.")
@size_options.precision
@size_options.python
@size_options.timeout()
@size_options.asks_start
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
    import sizing
    from sizing.base.errors import DoesNotFit

    size_options.refuse_untraced(step)
    if job_path is None:
        options.refuse_idle(("yes",), "is for a script that is submitted: give it by --submit")
    deadline_s = _deadline(deadline, time.time())
    starting_s = _start_up_s(start_up)
    job = None if job_path is None else submit.read(job_path)
    program = shlex.quote(step.rpartition(":")[0]) if step else "train.py"
    with progress_bars() as progress:
        found = sizing.choose(
            step,
            config=text,
            steps=steps,
            global_batch=global_batch,
            deadline_s=deadline_s,
            by=by,
            start_up_s=starting_s,
            inventory=None if partitions == "auto" else partitions,
            partitions=names(partition or (job.own("partition") if job is not None else "")),
            gpu=gpu_type,
            max_gpus=max_gpus,
            max_stages=max_stages,
            tensor=tensor,
            top=top,
            precision=precision,
            python=python,
            timeout_s=timeout_s,
            asks_start=asks_start,
            job=job,
            site=inventory.site(),
            progress=progress,
        )
    if as_json and (job is None or found.winner is None):
        common.echo_json(size_choose_shown.to_json(found, program))
    elif not as_json and found.found:
        common.echo(size_choose_shown.lines(found, top, program))
    if found.winner is None:
        raise DoesNotFit(found.failure)
    if job is not None:
        job_id = submit.submit(job, found.winner, yes=yes, quiet=as_json, deadline=deadline_s is not None)
        if as_json:
            common.echo_json({**size_choose_shown.to_json(found, program), "job_id": job_id})


def _deadline(text: str | None, now_s: float) -> float | None:
    """Return a future moment in unix seconds; raises UsageError if it is past or no time."""
    from sizing.functions.job_runs import moment

    if text is None:
        return None
    try:
        at_s = times.moment(f"now{text}" if text.startswith("+") else text, now_s)
    except ValueError:
        raise UsageError(f"--deadline {text}: no time such as 2026-12-01T08:00, +2days or noon") from None
    if at_s <= now_s:
        raise UsageError(f"--deadline {text} is {moment(at_s)}, which is past: name a time to come")
    return at_s


def _start_up_s(text: str | None) -> float | None:
    """Return the seconds until the first step as the user says; None if they say nothing."""
    from sizing.choice.limits import of_slurm

    if text is None:
        return None
    seconds = of_slurm(text) if text.strip() != "0" else 0.0
    if seconds is None or seconds > 86400:
        raise UsageError(f"--start-up {text}: minutes, or hours:minutes:seconds, up to a day")
    return seconds
