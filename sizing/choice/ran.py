"""The time and memory of jobs that have run: they size the next job of the same step on the same GPUs.

A run belongs to a step if the trace was the same (`work_of`); a step that is traced differently today is another step.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from sizing.base.errors import Untraceable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.json_fields import Fields, decoded
from sizing.base.parallel import Parallel, Place, RankBatch
from sizing.child import launch
from sizing.choice.layout import Layout, TimedLayout
from sizing.choice.sources import Traces
from sizing.choice.tracer import Tracer
from sizing.files import past_runs
from sizing.files.past_runs import LEAST_STEP_S, Ran
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import StepTrace

if TYPE_CHECKING:
    from pathlib import Path

MOST_POINTS = 8
"""Most points of one command that are traced to find the runs of a step."""
BETWEEN_RUNS = 1.1
"""Factor by which another run may be longer or shorter than all measured ones: other nodes, other data (assumed)."""
_OF_JOB = re.compile(r"statistics for job: *(\w+)")
_USED = re.compile(r"^\W*Max GPU Memory Used \(bytes\)[ *]*\W\s*(\d+)", re.MULTILINE)
_JOB = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class JobReport:
    """A script's report on its own job: `steps` steps of `step_s` seconds, and the tensors of its fullest GPU."""

    job: str
    global_batch: int
    tp: int
    fsdp: int
    steps: int
    step_s: float
    peak_bytes: int | None

    def point(self, gpus: int) -> RankBatch:
        """Return the work of one of `gpus` ranks; raise UsageError if they cannot be divided so."""
        if gpus % (self.tp * self.fsdp):
            raise UsageError(f"{gpus} GPUs cannot be divided into groups of tp {self.tp} x fsdp {self.fsdp}")
        parallel = Parallel(gpus // (self.tp * self.fsdp), self.tp, self.fsdp)
        return RankBatch(parallel, parallel.batch_of(self.global_batch))


_REPORT = frozenset(field.name for field in fields(JobReport))


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """Runs compared with today's traces: those of the `same` step, and the number of the user's own that are not.

    `unknown` counts the user's runs that could not be compared, also for lack of traces within one command's limit.
    """

    same: tuple[Ran, ...]
    others: int
    unknown: int


def work_of(trace: StepTrace) -> str:
    """Return the identity of a step: a digest of its trace's counts, without the version of torch that ran it."""
    known = [
        *(trace.batch, asdict(trace.parallel), trace.peak_bytes, trace.parameters),
        *(sorted(trace.by_category.items()), sorted(trace.collectives.items())),
        sorted([each.name, each.precision, each.calls, each.flops, each.bytes] for each in trace.operators),
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def of_step(
    own: Sequence[Ran],
    published: Sequence[Ran],
    traces: Traces,
    measure: Callable[[Sequence[RankBatch]], Sequence[StepTrace | Untraceable]],
) -> ComparedRuns:
    """Return the runs of the step of `traces`; `measure` makes missing traces, for the user's own runs first.

    Published runs of other steps are not counted: other users have steps of the same name.
    """
    sizes = {
        trace.parameters for key, each in traces.found.items() if key.tp == key.fsdp == 1 for trace in each.values()
    }
    others = [each for each in published if each.tp * each.fsdp > 1 or each.parameters in sizes]
    ordered = [each for runs in (own, others) for each in sorted(runs, key=lambda each: -each.ended_s)]
    points = list(dict.fromkeys(each.point for each in ordered))[:MOST_POINTS]
    traced = {point: traces.found.get(point.key, {}).get(point.batch) for point in points}
    found = {point: trace for point, trace in traced.items() if trace and trace.parallel == point.parallel}
    missing = [
        point for point in points if point not in found and RankBatch(point.key, point.batch) not in traces.failed
    ]
    for point, result in zip(missing, measure(missing) if missing else (), strict=True):
        if not isinstance(result, Untraceable):
            found[point] = result
            traces.add(point, result)
    works = {point: work_of(trace) for point, trace in found.items()}
    same = tuple(each for each in ordered if works.get(each.point) == each.work)
    unknown = sum(each.point not in works for each in own)
    return ComparedRuns(same, len([each for each in own if each not in same]) - unknown, unknown)


def reported(text: str, name: str) -> JobReport:
    """Read a script's report: one JSON object, or one per rank and line; the slowest and the fullest rank count.

    Raises UsageError.
    """
    try:
        rows = [Fields(name, json.loads(text), _REPORT)]
    except (ValueError, RecursionError):
        lines = [(f"{name}, line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        rows = [Fields(where, decoded(line, where), _REPORT) for where, line in lines]
    if not rows:
        raise UsageError(f"{name} is empty: the script has to write a report into it (docs/howto/size.md)")
    ranks = [_report(row) for row in rows]
    if len({replace(each, step_s=0.0, peak_bytes=None) for each in ranks}) > 1:
        raise UsageError(f"{name}: its lines are of different jobs: keep those of one")
    peaks = [each.peak_bytes for each in ranks if each.peak_bytes is not None]
    return replace(ranks[0], step_s=max(each.step_s for each in ranks), peak_bytes=max(peaks, default=None))


def _report(row: Fields) -> JobReport:
    if not _JOB.fullmatch(job := row.text("job")):
        raise row.wrong("job", "$SLURM_JOB_ID")
    return JobReport(
        job=job,
        global_batch=row.count("global_batch", least=1),
        tp=row.count("tp", 1, least=1),
        fsdp=row.count("fsdp", 1, least=1),
        steps=row.count("steps", least=1),
        step_s=row.number("step_s", least=LEAST_STEP_S),
        peak_bytes=row.count("peak_bytes", least=1) if "peak_bytes" in row else None,
    )


def refuse_wrong_units(report: JobReport, lasted_s: float, trace: StepTrace, gpu_bytes: int) -> None:
    """Raise UsageError for a report that cannot be of a job that lasted `lasted_s`, on GPUs of `gpu_bytes`."""
    if report.steps * report.step_s > lasted_s + 1.0:
        raise UsageError(
            f"{report.steps} steps of {report.step_s:g} s are longer than the job, which took {lasted_s:.0f} s: "
            "step_s is seconds of one step"
        )
    least = sum(trace.by_category.get(name, 0) for name in ("parameters", "optimizer"))
    if report.peak_bytes is not None and not least <= report.peak_bytes <= gpu_bytes:
        raise UsageError(
            f"peak_bytes is {report.peak_bytes}: weights and optimizer alone take {least} and the GPU has {gpu_bytes}, "
            "so give torch.cuda.max_memory_allocated()"
        )


def in_use(texts: Sequence[str], job: str, gpus: int) -> int:
    """Return the most that a process had of a GPU, by `dcgmi stats -v -j JOB` of each node; raise UsageError.

    GPUs that no process of the job used are left out.
    """
    jobs = {found for text in texts for found in _OF_JOB.findall(text)}
    if jobs - {job}:
        raise UsageError(f"the statistics are of job {', '.join(sorted(jobs))}, and the report of {job}")
    if len(set(texts)) < len(texts):
        raise UsageError("the same statistics are there twice: give those of each node once")
    found = [count for text in texts for count in map(int, _USED.findall(text)) if count]
    if len(found) != gpus:
        raise UsageError(
            f"the statistics tell what was used of {len(found)} GPUs, and the job had {gpus}: give the output of "
            "dcgmi stats -v -j JOB of each of its nodes"
        )
    return max(found)


def name_of(step: str) -> str:
    """Return the name under which runs of a step are stored."""
    path, function = launch.parts(step)
    return f"{path.name}:{function}"


def known(tracer: Tracer, places: Collection[Place], folder: Path) -> tuple[list[Ran], list[str]]:
    """Return past runs of exactly this step on some GPUs, and notes; traces the step as those runs had it.

    `folder` has the site's files. With --precision, which times all arithmetic in one precision, no run counts.
    """
    name = name_of(tracer.step)
    own, note = past_runs.read(past_runs.usual_path(), name)
    published, other = past_runs.read(folder / past_runs.NAME, name)
    said = [each for each in (note, other) if each]
    mine = {each.job for each in own}
    own = [each for each in own if each.place in places]
    published = [each for each in published if each.place in places and each.job not in mine]
    if tracer.traces.precision and own:
        return [], [*said, f"with --precision no job counts that ran: {len(own)}"]
    if tracer.traces.precision or not own + published:
        return [], said
    found = of_step(own, published, tracer.traces, tracer.measure)
    if found.same:
        last = max(found.same, key=lambda each: each.ended_s)
        said.append(f"jobs that ran and count: {len(found.same)}, the last of them {last.job}")
    if found.others:
        said.append(
            f"jobs that ran and do not count, since they trained another model or one that was changed: {found.others}"
        )
    if found.unknown:
        said.append(
            f"jobs that ran and were not compared, since the step was not traced as they had it: {found.unknown}"
        )
    return list(found.same), said


def used(runs: Sequence[Ran], layout: Layout, peak: Estimate) -> TimedLayout:
    """Return the layout as runs of the same `place` took it; `peak` is the traced peak of a GPU.

    A step that ran there fits. The memory in use of a GPU bounds the guard band, unless it is less than the tensors:
    then the samples missed the peak.
    """
    times = [each.step_s for each in runs]
    peaks = [each.peak_bytes for each in runs if each.peak_bytes is not None]
    value = max(peaks) if peaks else peak.value
    high = min(guarded_bytes(value) if peaks else peak.high, layout.gpu_bytes)
    whole = [each.in_use_bytes for each in runs if each.in_use_bytes is not None and each.in_use_bytes >= value]
    high = min([high, *([max(whole)] if whole else [])])
    value = min(value, high)
    return TimedLayout(
        layout.shape,
        layout.splits,
        layout.global_batch,
        layout.micro_batches,
        step_s=Estimate(statistics.median(times), min(times) / BETWEEN_RUNS, max(times) * BETWEEN_RUNS, "measured"),
        peak=Estimate(value, min(value, *peaks, peak.low), high, "measured" if peaks else peak.origin),
        runs=len(runs),
        host_bytes=max((each.host_bytes for each in runs if each.host_bytes is not None), default=None),
    )
