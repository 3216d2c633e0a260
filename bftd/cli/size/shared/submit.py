"""`bft size choose --submit`: submits the unchanged script to the winner's GPUs, by command-line options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from bftd import config_file
from bftd.base.errors import UsageError
from bftd.cli import common
from bftd.cli.jobs import sbatch_options
from bftd.cli.size.shared import script as size_script
from bftd.cli.size.shared.script import Script
from bftd.protocol.fields import printable

if TYPE_CHECKING:
    from sizing.choice.runs import JobRun, Rejected
    from sizing.sbatch.lines import SbatchLine
    from sizing.sbatch.script import SettledOption

_GPUS = {"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}

# Options that a user's environment may set for all their jobs: our Slurm client does not pass on Slurm's own variables.
_OWN = {"SBATCH_ACCOUNT": "account", "SBATCH_QOS": "qos", "SBATCH_RESERVATION": "reservation"}


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A user's batch script, and the options that the user's environment sets for it."""

    script: Script
    inherited: tuple[str, ...]

    def own(self, option: str) -> str:
        """Return the script's own value of an option, "" if it has none."""
        return self.script.options.get(option) or ""

    def lines(self, beside: Sequence[SbatchLine]) -> tuple[str, ...]:
        """Return the #SBATCH lines of script and environment, with those in `beside`, which take precedence."""
        options = {line.option for line in beside}
        words = [each.words for each in sbatch_options.of_script(self.script.text) if each.name not in options]
        return (
            *(f"#SBATCH {option}" for option in self.inherited),
            *(f"#SBATCH {shlex.join(each)}" for each in words),
            *(line.text for line in beside),
        )

    def request(self, run: JobRun) -> tuple[str, ...]:
        """Return all lines with which the script would ask for a run."""
        return self.lines(self.missing(run)[0])

    def without_idle_gpus(
        self, found: Sequence[JobRun], out: Sequence[Rejected]
    ) -> tuple[tuple[JobRun, ...], tuple[Rejected, ...]]:
        """Return the runs whose GPUs the script would all use; add the others to those that are out already."""
        from sizing.choice.runs import Rejected

        used = [run for run in found if any(each.fills(run.nodes, run.shape.per_node) for each in self.script.launches)]
        why = f"{self.script.path} {self.script.start}, so GPUs would be idle"
        idle = (Rejected(run.shape, run.stages, why, run.run_s) for run in found if run not in used)
        return tuple(used), (*out, *idle)

    def missing(self, run: JobRun) -> tuple[tuple[SbatchLine, ...], tuple[SettledOption, ...]]:
        """Return the options that the script lacks for a run, and its own values for the others."""
        from sizing.sbatch.script import agree

        given = dict(self.script.options)
        if "," in self.own("partition") and run.partition in self.own("partition").split(","):
            del given["partition"]  # of several, only the run's: others may have no such GPUs or another type
        return agree(run.lines(self.script.tasks_per_node(run.nodes), self.script.launcher), given)


def read(name: str) -> BatchJob:
    """Read a batch script; raises UsageError if there is none, or if it has options of other systems."""
    script = size_script.read(name)
    if others := sbatch_options.foreign(script.text):
        raise UsageError(f"{name}: it has {others} lines, which sbatch reads too: write them as #SBATCH")
    inherited = tuple(
        f"--{option}={os.environ[variable]}"
        for variable, option in _OWN.items()
        if os.environ.get(variable) and option not in script.options
    )
    return BatchJob(script, inherited)


def submit(job: BatchJob, run: JobRun, *, yes: bool, quiet: bool, deadline: bool = False) -> str:
    """Show the command, ask, submit, and return the job's id.

    Raises UsageError if the script asks for other GPUs and, with a `deadline`, if its own time limit may end the run
    before its last step.
    """
    missing, kept = job.missing(run)
    for each in kept:
        _refuse_conflict(job, run, each)
    cut = [warning for each in kept if (warning := _cut_off(run, each))]
    if cut and deadline:
        raise UsageError(
            f"{job.script.path}: {cut[0]}, so it is not sure to meet the deadline: take the line out, or leave "
            "--deadline out; nothing was submitted"
        )
    _refuse_second_words_on_gpus(job, run)
    settings = environment(run)
    options = [*job.inherited, *(f"--{line.option}={line.value}" for line in missing), *_exported(job, settings)]
    path = str(job.script.path)
    path = f"./{path}" if path.startswith("-") else path  # else sbatch would take it for an option
    notes = [
        *(each.sentence() for each in kept),
        *cut,
        f"{' '.join(f'{name}={value}' for name, value in settings.items())} {shlex.join(['sbatch', *options, path])}",
    ]
    for line in notes:
        click.echo(printable(line), err=quiet)
    try:
        if not yes and not click.confirm(f"Submit {path}?", err=quiet):
            raise UsageError("nothing submitted")
    except click.Abort:
        raise UsageError("nothing submitted: nobody answered; give --yes to submit without being asked") from None
    client = common.slurm_client(config_file.load_found(None))
    job_id = client.submit([*options, path], "", {**os.environ, **settings})
    click.echo(f"Submitted batch job {job_id}", err=quiet)
    return job_id


def environment(run: JobRun) -> dict[str, str]:
    """Return the model's split as environment variables: a number, or one per stage if they differ."""
    splits = run.splits
    sizes = {"BFT_DP": [split.dp for split in splits], "BFT_TP": [split.tp for split in splits]}
    values_text = {
        name: ",".join(map(str, values if len(set(values)) > 1 else values[:1])) for name, values in sizes.items()
    }
    return {**values_text, "BFT_STAGES": str(run.stages), "BFT_MICRO_BATCHES": str(run.micro_batches)}


def launch(run: JobRun, program: str) -> tuple[str, ...]:
    """Return the lines of a batch script that start one process of a `program` per GPU."""
    exports = " ".join(f"{name}={value}" for name, value in environment(run).items())
    processes = f"--nproc-per-node={run.shape.per_node}"
    if run.nodes == 1:
        return (f"export {exports}", f"srun torchrun --standalone {processes} {program}")
    return (
        f"export {exports}",
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun torchrun --nnodes={run.nodes} {processes} --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID \\",
        f'    --rdzv-endpoint="$head:$((20000 + SLURM_JOB_ID % 10000))" {program}',
    )


def _refuse_second_words_on_gpus(job: BatchJob, run: JobRun) -> None:
    """Raise UsageError if the script requests GPUs by several options: only one of them was compared."""
    others = _GPUS & job.script.options.keys()
    if len(others) > 1:
        given = " and ".join(f"--{name}={job.own(name)}" for name in sorted(others))
        raise UsageError(
            f"{job.script.path} has {given} and the winner needs {run.gpus} GPUs: keep only --gres, or none of "
            "them; nothing was submitted"
        )


def _exported(job: BatchJob, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the option that passes the settings to a script that exports only part of the environment."""
    if "export" not in job.script.options:
        return ()
    taken = job.own("export").split(",")
    words = [name.upper() for name in taken]
    if "ALL" in words:
        return ()
    if "NIL" in words:
        raise UsageError(
            f"{job.script.path} has --export=NIL, which keeps {', '.join(settings)} from it: "
            "write --export=NONE, which they can be added to; nothing was submitted"
        )
    return (f"--export={','.join([*(name for name in taken if name and name.upper() != 'NONE'), *settings])}",)


def _cut_off(run: JobRun, kept: SettledOption) -> str:
    """Return a warning if the script's own time limit may end the run, "" for any other option."""
    from sizing.choice.limits import of_slurm, words

    limit_s = of_slurm(kept.value or "") if kept.option == "time" else None
    if limit_s is None or limit_s >= run.run_s.high:
        return ""
    return f"--time={kept.value} may end the run before its last step, as it may take {words(run.run_s.high)}"


def _refuse_conflict(job: BatchJob, run: JobRun, kept: SettledOption) -> None:
    """Raise UsageError for an option of the script that conflicts with the run."""
    from sizing.choice.limits import of_slurm

    if not kept.differs:
        return
    if kept.option == "time":
        limit_s = of_slurm(kept.value or "")
        if limit_s is not None and limit_s >= run.run_s.value:
            return
    if kept.option == "ntasks" and kept.value == str(run.nodes * int(kept.instead.value)):
        return
    if kept.option in ("cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu"):
        return  # the user knows best how much CPU and memory the job needs
    raise UsageError(
        f"{job.script.path} has --{kept.option}={kept.value} and the winner needs "
        f"--{kept.instead.option}={kept.instead.value}: take the line out, or restrict the choice "
        f"(--partition, --gpu, --max-gpus); nothing was submitted"
    )
