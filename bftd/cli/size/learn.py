"""`bft size learn`: records the resources that a finished job used, for later jobs of the same step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.base.errors import BftError, UsageError
from bftd.cli import common, options
from bftd.cli.size.shared import inventory
from bftd.cli.size.shared import trace as size_trace
from bftd.cli.size.shared.model import amount
from bftd.config import configuration
from slurm_plugin.errors import SlurmError

if TYPE_CHECKING:
    from bftd.cli.size.shared.trace import Tracer
    from sizing.choose import ran
    from sizing.choose.ran import Ran
    from sizing.inventory.gpus import GpuType
    from slurm_plugin.read.finished import FinishedJob


@click.command()
@click.argument("words", nargs=-1, metavar="MODULE.py:make_step REPORT")
@click.option("--dcgm", multiple=True, metavar="FILE", help="Output of dcgmi stats -v -j JOB, of each of its nodes.")
@click.option("--gpu", default="", metavar="TYPE", help="The type of its GPUs, where its nodes are no longer there.")
@click.option("--python", default="", metavar="P", help="The Python to trace with; it must have torch.")
@options.trace_timeout
@click.option("--publish", is_flag=True, help="Instead: keep the runs in these files of users for all users.")
@options.as_json
def learn(
    words: tuple[str, ...],
    dcgm: tuple[str, ...],
    gpu: str,
    python: str,
    timeout_s: float,
    publish: bool,
    as_json: bool,
) -> None:
    """Keep what a job used, so that fit, choose and --auto-gpus go by it.

    REPORT is what its script has written of it (docs/howto/size.md); Slurm's accounting and DCGM's statistics tell
    what else it used. It counts for steps that are traced as this one is, on as many GPUs of the same type.
    """
    if publish:
        if dcgm or gpu:
            raise UsageError("--publish takes files of runs alone, without --dcgm and --gpu")
        _publish(words, as_json)
        return
    from sizing.base.errors import Untraceable
    from sizing.choose import ran
    from sizing.model import launch
    from slurm_plugin.read.finished import finished

    if len(words) != 2:
        raise UsageError("name a training step and the report of a job: bft size learn train.py:make_step report.json")
    step, file = words
    script, _ = launch.parts(step)
    report = ran.reported(inventory.text_of(file), file)
    over = finished(common.slurm_client(configuration.load_found(None)), report.job)
    point = report.point(over.gpus)
    statistics = [inventory.text_of(each) for each in dcgm]
    in_use_bytes = ran.in_use(statistics, report.job, over.gpus) if dcgm else over.gpu_bytes
    kind = _type(over, gpu)
    if script.stat().st_mtime >= over.started_s + 1:  # Slurm reports whole seconds
        raise UsageError(f"{script} was changed after job {over.id} began: what ran is not known any more")
    (trace,) = size_trace.Tracer(step, python, timeout_s, "").measure([point])
    if isinstance(trace, Untraceable):
        raise BftError(f"nothing was learnt: {trace}")
    ran.refuse_wrong_units(report, over.ended_s - over.started_s, trace, kind.memory_bytes)
    used = ran.Ran(
        step=_name(step),
        work=ran.work_of(trace),
        gpu_type=kind.name,
        gpus=over.gpus,
        nodes=len(over.nodes),
        **asdict(point.parallel),
        batch=point.batch,
        parameters=trace.parameters,
        job=f"{over.cluster}/{report.job}",
        ended_s=over.ended_s,
        step_s=report.step_s,
        peak_bytes=report.peak_bytes,
        in_use_bytes=in_use_bytes,
        host_bytes=over.host_bytes,
    )
    ran.add(ran.usual_path(), used)
    if as_json:
        common.echo_json({**asdict(used), "file": str(ran.usual_path())})
    else:
        click.echo(f"{_words(used)}; kept in {ran.usual_path()}")


def known(tracer: Tracer, places: Collection[ran.Place]) -> tuple[list[Ran], list[str]]:
    """Return past runs of exactly this step on some GPUs, and notes; traces the step as those runs had it.

    With --precision, which times all arithmetic in one precision, no run counts.
    """
    from sizing.choose import ran

    name = _name(tracer.step)
    own, note = ran.read(ran.usual_path(), name)
    published, other = ran.read(_published(), name)
    notes = [each for each in (note, other) if each]
    mine = {each.job for each in own}
    own = [each for each in own if each.place in places]
    published = [each for each in published if each.place in places and each.job not in mine]
    if tracer.traces.precision and own:
        return [], [*notes, f"with --precision no job counts that ran: {len(own)}"]
    if tracer.traces.precision or not own + published:
        return [], notes
    found = ran.of_step(own, published, tracer.traces, tracer.measure)
    if found.same:
        last = max(found.same, key=lambda each: each.ended_s)
        notes.append(f"jobs that ran and count: {len(found.same)}, the last of them {last.job}")
    if found.others:
        notes.append(
            f"jobs that ran and do not count, since they trained another model or one that was changed: {found.others}"
        )
    if found.unknown:
        notes.append(
            f"jobs that ran and were not compared, since the step was not traced as they had it: {found.unknown}"
        )
    return list(found.same), notes


def _publish(files: Sequence[str], as_json: bool) -> None:
    """Add users' runs to the centre's file: their lines are parsed and checked, and no user code is run."""
    from sizing.choose import ran

    if not files:
        raise UsageError("name files of users: bft size learn --publish /home/*/.cache/bft/ran.jsonl")
    target = _published()
    common.refuse_unwritable(target)
    runs: dict[str, Ran] = {}
    unread = 0
    for file in (target, *map(Path, files)):
        found, note = ran.read(file)
        if note and file == target:
            raise BftError(f"{note}; mend or remove it, so that nothing in it is lost")
        if file != target and not file.exists():
            note = f"{file}: no such file"
        if note:
            click.echo(note, err=True)
            unread += 1
        runs |= {each.job: each for each in found}
    text = "\n".join(map(ran.line_of, runs.values()))
    if len(text) > ran.MOST_BYTES:
        raise BftError(f"{target} would be larger than {ran.MOST_BYTES >> 20} MiB: remove old lines, or publish fewer")
    common.write(target, text)
    if target.stat().st_mode & 0o777 != 0o644:
        try:
            target.chmod(0o644)
        except OSError as error:
            raise BftError(f"{target} is written, and not for all to read ({error.strerror}): chmod 644 it") from None
    if as_json:
        common.echo_json({"runs": len(runs), "file": str(target)})
    else:
        click.echo(f"runs in {target}: {len(runs)}")
    if unread:
        raise BftError(f"files that were not read whole: {unread}")


def _published() -> Path:
    """Return the path of the centre's file of runs, next to its configuration."""
    from sizing.choose import ran

    return configuration.find(None).with_name(ran.NAME)


def _name(step: str) -> str:
    """Return the name under which runs of a step are stored."""
    from sizing.model import launch

    path, function = launch.parts(step)
    return f"{path.name}:{function}"


def _type(over: FinishedJob, gpu: str) -> GpuType:
    """Return the type of a job's GPUs, as its nodes have them today, or as the user says if they no longer do.

    Raises UsageError if that is ambiguous.
    """
    from sizing.step_time import checking

    try:
        there = inventory.found()
    except SlurmError as error:
        raise BftError(f"which GPUs the nodes of job {over.id} have cannot be read: {error}") from None
    groups = [group for offer in there.offers for group in offer.groups]
    kinds = {
        node: {each.gpu_type for each in groups if node in each.nodes and over.gres_type in ("", each.gres_type)}
        for node in over.nodes
    }
    if gpu:
        named = checking.named_type(gpu, {**there.types, **inventory.own_types()})
        if all(not each or named.name in each for each in kinds.values()):
            return named
    known = set().union(*kinds.values())
    if gpu or len(known) != 1 or not all(kinds.values()):
        shown = ", ".join(f"{node} {' or '.join(sorted(each)) or 'no such GPU'}" for node, each in kinds.items())
        raise UsageError(f"job {over.id}: its nodes have now: {shown}; name the type that it had with --gpu")
    return there.types[known.pop()]


def _words(used: Ran) -> str:
    words = [
        f"{used.step_s:.3g} s a step",
        f"{amount(used.peak_bytes)} of tensors" if used.peak_bytes is not None else "",
        f"{amount(used.in_use_bytes)} in use of a GPU" if used.in_use_bytes is not None else "",
        f"{amount(used.host_bytes)} of a node's memory at most" if used.host_bytes is not None else "",
    ]
    where = f"{used.gpus} x {used.gpu_type}, {used.batch} samples on each"
    return f"{used.step} on {where}: {', '.join(filter(None, words))}"
