"""`bft size cpu`: the CPUs and the memory that a training command needs besides its GPUs."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options
from bftd.cli.size.output import cpu as size_cpu_shown
from bftd.cli.size.output import cpu_plot
from bftd.cli.size.shared import inventory as size_inventory
from bftd.cli.size.shared import script as size_script

if TYPE_CHECKING:
    from bftd.cli.size.shared.script import Script
    from sizing.cpu.profiler import Profile, ProfileCost
    from sizing.cpu.runs.measurement import PointProgress, PointResult
    from sizing.cpu.runs.steady_state import ObservationLimits
    from sizing.sbatch.cpu import CpuNeed

_LONG_S = 300.0  # for longer than this, a user at a terminal is asked first
_CPUS_MOST = 4096
_ASK_FOR_GPUS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--regex", metavar="R", help="Finds (?P<samples>N), (?P<step>N) or (?P<rate>X) in what it prints.")
@click.option("--gpus", type=click.IntRange(0, 1024), metavar="N", help="How many GPUs the command uses.")
@click.option("--data", "paths", multiple=True, metavar="PATH", help="Files or folder of its data set; again for more.")
@click.option("--dataset-bytes", "size", metavar="SIZE", help="How large it is, where --data is a part: 150G.")
@click.option(
    "--dataset-samples", "samples", type=click.FloatRange(1), metavar="N", help="Of an epoch, if it cannot be told."
)
@click.option("--cpus", "text", metavar="MIN-MAX|N,N...", help="CPUs of the command to choose from; default 1 to all.")
@click.option("--budget", "budget_s", type=float, default=600.0, metavar="S", help="Seconds for all; default 600.")
@click.option("--timeout", "timeout_s", type=float, default=120.0, metavar="S", help="For one run; default 120.")
@click.option("--warmup", "warmup_s", type=float, metavar="S", help="Left out of each run; default 5.")
@click.option("--seconds", "least_s", type=float, metavar="S", help="Measured then, and 50 steps; default 5.")
@click.option(
    "--confine",
    "how",
    default="auto",
    type=click.Choice(["auto", "srun", "cgroup", "affinity"]),
    help="How it is kept on its CPUs; auto: what is there, in this order.",
)
@click.option("--again", is_flag=True, help="Measure also what is in the cache.")
@click.option("--into", metavar="JOB.sh", help="Write the lines into a copy of this script, as a diff first.")
@click.option("--output", "-o", metavar="FILE", help="The copy's name; default JOB.cpu.sh.")
@click.option("--overwrite", is_flag=True, help="Replace a copy or plot that is there.")
@click.option("--plot", "picture", metavar="FILE.svg|FILE.png", help="Also draw it into a file.")
@click.option("--yes", "-y", is_flag=True, help="Measure and write without asking.")
@options.as_json
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def cpu(
    regex: str | None,
    gpus: int | None,
    paths: tuple[str, ...],
    size: str | None,
    samples: float | None,
    text: str | None,
    budget_s: float,
    timeout_s: float,
    warmup_s: float | None,
    least_s: float | None,
    how: Any,
    again: bool,
    into: str | None,
    output: str | None,
    overwrite: bool,
    picture: str | None,
    yes: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Find how many CPUs and how much memory a training command needs beside its GPUs.

    COMMAND is your own, as in your job script. It is run a few times for some seconds on different numbers of CPUs, in
    this allocation or on this machine, and ended each time; how fast it trains is read from the calls of elastic.step
    in it, or by --regex from what it prints. Each run is kept: the same command again goes on from there.
    """
    import sizing
    from sizing.functions.cpu_node import gpus_used

    if into is None:
        options.refuse_idle(("output",), "is for a copy of a script: give the script by --into")
    if not 1 <= budget_s <= 7 * 86400:
        raise UsageError(f"--budget {budget_s:g}: seconds, from 1 to 604800 (a week)")
    script = None if into is None else size_script.read(into)
    target = None if script is None else size_script.target(script, output, overwrite=overwrite, infix="cpu")
    if picture is not None:
        cpu_plot.refuse(picture, overwrite=overwrite)
    site = size_inventory.site()
    used = gpus_used(site.slurm) if gpus is None else gpus
    with _ended_by_sigterm(), _progress(yes=yes) as (expected, progress, done):
        found = sizing.profile_cpu(
            command,
            cpus=cpus_of(text, used),
            gpus=used,
            regex=regex,
            budget_s=budget_s,
            limits=_limits(timeout_s, warmup_s, least_s),
            data=paths,
            dataset_bytes=None if size is None else bytes_of(size),
            dataset_samples=samples,
            how=how,
            again=again,
            site=site,
            expected=expected,
            progress=progress,
            done=done,
        )
    need, node, notes = found.need, found.node, found.notes
    if as_json:
        common.echo_json(size_cpu_shown.to_json(need, node, notes, _more(found.profile)))
    else:
        common.echo(size_cpu_shown.lines(need, node, notes))
    if picture is not None:
        cpu_plot.write(need, found.profile, picture)
        click.echo(f"wrote {picture}", err=as_json)
    if script is not None and target is not None:
        inserted, remarks = size_script.inserted(script, need.lines(), "profile")
        remarks += _beside(script, need)
        size_script.offer(script, inserted, remarks, target, overwrite=overwrite, yes=yes, quiet=as_json)


def _limits(timeout_s: float, warmup_s: float | None, least_s: float | None) -> ObservationLimits:
    """Return the time limits of a run; raises UsageError for impossible times."""
    from sizing.cpu.runs.steady_state import ObservationLimits

    limits = ObservationLimits(timeout_s)
    for name, seconds, least in (("warmup", warmup_s, 0.0), ("seconds", least_s, 0.5)):
        if seconds is not None and not least <= seconds < timeout_s:
            raise UsageError(f"--{name} {seconds:g}: seconds, from {least:g} to less than --timeout ({timeout_s:g})")
    if warmup_s is not None:
        limits = replace(limits, warmup_s=warmup_s)
    if least_s is not None:
        limits = replace(limits, least_s=least_s, enough_s=max(limits.enough_s, least_s))
    return limits


def cpus_of(text: str | None, gpus: int) -> tuple[int, ...]:
    """Return the numbers of CPUs in `--cpus`, ascending; of a range only those that divide evenly among the GPUs."""
    if text is None:
        return ()
    wrong = UsageError(f"--cpus {text}: a range such as 2-16, or numbers such as 1,2,4,8, up to {_CPUS_MOST}")
    if not re.fullmatch(r"[0-9, -]{1,40000}", text):
        raise wrong
    if found := re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4})", text.strip()):
        low, high = map(int, found.groups())
        each = max(1, gpus)
        numbers = [cpus for cpus in range(low, high + 1) if cpus % each == 0] or [high]
    else:
        try:
            numbers = [int(word) for word in text.split(",")]
        except ValueError:
            raise wrong from None
        low, high = min(numbers, default=0), max(numbers, default=0)
    if not 1 <= low <= high <= _CPUS_MOST:
        raise wrong
    return tuple(sorted(set(numbers)))


def bytes_of(text: str) -> float:
    """Parse a number of bytes, with K, M, G or T as powers of two, as du and Slurm use them."""
    found = _SIZE.fullmatch(text.strip())
    count = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0.0
    if not 0 < count < 2**60:
        raise UsageError(f"--dataset-bytes {text}: bytes, or a number with K, M, G or T such as 150G (as du -sh says)")
    return count


def _announce(cost: ProfileCost, *, yes: bool) -> None:
    """Print the expected cost; if it is long, ask a user at a terminal to confirm."""
    if cost.points <= 0:
        return
    runs = (
        f"{cost.points} runs of about {cost.point_s:.0f} s each"
        if cost.points > 1
        else f"1 run of about {cost.point_s:.0f} s"
    )
    known = f", beside {cost.known} in the cache" if cost.known else ""
    bound = f"at most {cost.budget_s:.0f} s in all (--budget)"
    click.echo(f"at most {runs}, the command's start included{known}; {bound}", err=True)
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    if asks and min(cost.points * cost.point_s, cost.budget_s) > _LONG_S:
        click.confirm("Begin?", default=True, abort=True, err=True)


@contextmanager
def _progress(
    *, yes: bool
) -> Iterator[tuple[Callable[[ProfileCost], None], Callable[[PointProgress], None], Callable[[PointResult], None]]]:
    """Yield functions that show a profile: its cost beforehand, a bar on a terminal, and a line for each run."""
    ended: list[int] = []
    began_s = time.time()
    with ExitStack() as stack:
        shown: list[tuple[Callable[[PointProgress, int], None], Callable[[str], None]]] = []

        def expected(cost: ProfileCost) -> None:
            _announce(cost, yes=yes)
            shown.append(stack.enter_context(size_cpu_shown.progress(cost)))

        def progress(at: PointProgress) -> None:
            shown[0][0](at, len(ended))

        def done(result: PointResult) -> None:
            ended.append(result.cpus)
            shown[0][1](size_cpu_shown.point(result, began_s))

        try:
            yield expected, progress, done
        except KeyboardInterrupt:
            kept = f"{len(ended)} runs are" if len(ended) != 1 else "1 run is"
            if ended:
                click.echo(f"interrupted: {kept} in the cache; the same command goes on from there", err=True)
            raise


def _beside(script: Script, need: CpuNeed) -> Iterator[str]:
    """Yield warnings if the script's GPUs or tasks do not match the profile."""
    gpu_options = [script.options[name] or "" for name in script.options.keys() & _ASK_FOR_GPUS]
    gpu_options += [each for each in (script.options.get("gres") or "").split(",") if re.match("(gres[:/])?gpu", each)]
    if need.gpus and not gpu_options:
        yield f"{script.path} asks for no GPUs, and these lines are for each GPU: add --gres=gpu:{need.gpus}"
    elif not need.gpus and gpu_options:
        yield f"{script.path} asks for GPUs, and the profile had none: profile it where they are, or say --gpus N"
    elif not need.gpus and (tasks := script.tasks_per_node(1) or 1) > 1:
        yield f"{script.path} has {tasks} tasks on a node, and each gets --cpus-per-task: profile what one task does"


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM (sent by Slurm at the end of an allocation) raise SystemExit, which ends the command's run."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _more(found: Profile) -> dict[str, Any]:
    """Return the fields of --json besides the need."""
    return {
        "command": list(found.ask.command),
        "host": found.host,
        "confined_by": found.kind,
        "available_cpus": found.available,
        "points": [asdict(result) for result in found.points.values()],
        "ages_s": {str(cpus): age for cpus, age in found.ages_s.items()},
        "left_out": list(found.left_out),
        "dataset_bytes": found.dataset_bytes,
        "disk_bytes_s": found.disk_bytes_s,
        "memory_bytes_s": found.memory_bytes_s,
        "took_s": found.took_s,
    }
