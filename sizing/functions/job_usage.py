"""`sizing.learn`: the time and memory of a job that ran, kept for the next job of the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sizing.base.errors import SizingError, Untraceable, UsageError
from sizing.base.progress import Progress, quiet
from sizing.child import launch
from sizing.child.tracing import TIMEOUT_S
from sizing.choice import ran
from sizing.choice.tracer import Tracer
from sizing.files import past_runs
from sizing.files.past_runs import Ran
from sizing.files.text import text_of
from sizing.functions.site import HERE, Site
from sizing.inventory.gpus import GpuType
from sizing.step_time import checking
from slurm_plugin.clients.finished import FinishedJob, finished
from slurm_plugin.errors import SlurmError


def learn(
    step: str,
    report: str,
    *,
    dcgm: Sequence[str] = (),
    gpu: str = "",
    python: str = "",
    timeout_s: float = TIMEOUT_S,
    site: Site = HERE,
    progress: Progress = quiet,
) -> Ran:
    """Keep what a job used, so that `fit` and `choose` go by it, and return it.

    `report` is the file that its script has written of it, `dcgm` are files with the output of dcgmi stats of its
    nodes; Slurm's accounting tells the rest. `gpu` is the type of its GPUs, where its nodes are no longer there. The
    step is traced under `python` for at most `timeout_s`. Raises UsageError for a report or statistics that cannot be
    of this job, SlurmError if Slurm's accounting does not answer, and SizingError if nothing can be learnt.
    """
    script, _ = launch.parts(step)
    told = ran.reported(text_of(report), report)
    over = finished(site.slurm(), told.job)
    point = told.point(over.gpus)
    statistics = [text_of(each) for each in dcgm]
    in_use_bytes = ran.in_use(statistics, told.job, over.gpus) if dcgm else over.gpu_bytes
    kind = _type(over, gpu, site)
    if script.stat().st_mtime >= over.started_s + 1:  # Slurm reports whole seconds
        raise UsageError(f"{script} was changed after job {over.id} began: what ran is not known any more")
    (trace,) = Tracer(step, python, timeout_s, "", progress).measure([point])
    if isinstance(trace, Untraceable):
        raise SizingError(f"nothing was learnt: {trace}")
    ran.refuse_wrong_units(told, over.ended_s - over.started_s, trace, kind.memory_bytes)
    used = Ran(
        step=ran.name_of(step),
        work=ran.work_of(trace),
        gpu_type=kind.name,
        gpus=over.gpus,
        nodes=len(over.nodes),
        **asdict(point.parallel),
        batch=point.batch,
        parameters=trace.parameters,
        job=f"{over.cluster}/{told.job}",
        ended_s=over.ended_s,
        step_s=told.step_s,
        peak_bytes=told.peak_bytes,
        in_use_bytes=in_use_bytes,
        host_bytes=over.host_bytes,
    )
    past_runs.add(past_runs.usual_path(), used)
    return used


def _type(over: FinishedJob, gpu: str, site: Site) -> GpuType:
    """Return the type of a job's GPUs, as its nodes have them today, or as the user says if they no longer do.

    Raises UsageError if that is ambiguous.
    """
    try:
        there = site.inventory()
    except SlurmError as error:
        raise SizingError(f"which GPUs the nodes of job {over.id} have cannot be read: {error}") from None
    groups = [group for offer in there.offers for group in offer.groups]
    kinds = {
        node: {each.gpu_type for each in groups if node in each.nodes and over.gres_type in ("", each.gres_type)}
        for node in over.nodes
    }
    if gpu:
        named = checking.named_type(gpu, {**there.types, **site.types()})
        if all(not each or named.name in each for each in kinds.values()):
            return named
    known = set().union(*kinds.values())
    if gpu or len(known) != 1 or not all(kinds.values()):
        shown = ", ".join(f"{node} {' or '.join(sorted(each)) or 'no such GPU'}" for node, each in kinds.items())
        raise UsageError(f"job {over.id}: its nodes have now: {shown}; name the type that it had with --gpu")
    return there.types[known.pop()]
