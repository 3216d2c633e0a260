"""Jobs for a simulated cluster: from a trace as text, or generated, with the models of Crius's Table 2.

A trace has the submissions, durations and GPU counts of jobs; a seed chooses their models and GPU types if it does not
name them. A job's iterations are those it does in its duration with its request, so a scheduler that starts every job
with it at once takes exactly the time of the trace.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sizing.base.errors import UsageError
from sizing.model import config
from studies.simulation.clusters import Pool
from studies.simulation.models import BATCHES, FAMILIES, TrainedModel, Transformer, table2
from studies.simulation.reference import fastest, powers
from studies.simulation.types import SimulatedJob, Speeds

MOST_GPUS = 64
_FAMILY_OF = {
    "resnet50": "wresnet",
    "inception3": "wresnet",
    "vgg16": "wresnet",
    "bert": "bert",
    "gpt2": "bert",
    "deepspeech2": "moe",
}
"""Families of a trace's models: images train wide ResNets, text BERT, and the one other public model experts."""
_ASKED_TIMES = (1, 2, 4, 8)
"""Users ask for one of these multiples of the fewest GPUs that their model fits on, with equal probability.

The paper draws at random too, but does not say how.
"""
_LONGEST_S = 366 * 86400.0
_HEADINGS = ("submission_time", "duration", "num_gpu")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A line of a trace: a job's submission, duration and GPUs; `late` is its time to the deadline over its duration.

    `model` is a name of Table 2 with its batch, a family's, `FAMILY:key=value,...` as `--config` takes it (with its
    global `batch`), or an unknown name; `gpu_type` is "" if the trace has none.
    """

    id: str
    submit_s: float
    duration_s: float
    gpus: int
    model: str = ""
    gpu_type: str = ""
    late: float | None = None
    batch: int = 0


def parse(text: str, name: str) -> tuple[TraceJob, ...]:
    """Read a trace from CSV; raise UsageError with the line (`name` is the file's) and what to write there.

    Its headings are submission_time, duration (both s) and num_gpu, and optionally job_id, model_name, batch_size,
    gpu_type and deadline (s, on the clock of submission_time); others are ignored.
    """
    rows = csv.DictReader(text.splitlines())
    try:
        return tuple(sorted(_jobs(rows, name), key=lambda job: job.submit_s))
    except csv.Error as error:
        raise UsageError(f"{name}, line {rows.line_num}: {error}") from None


def _jobs(rows: csv.DictReader[str], name: str) -> list[TraceJob]:
    headings = [heading.strip() for heading in rows.fieldnames or ()]
    missing = [heading for heading in _HEADINGS if heading not in headings]
    if missing:
        raise UsageError(f"{name} has no column {missing[0]}: its first line must name {', '.join(_HEADINGS)}")
    rows.fieldnames = headings
    found: list[TraceJob] = []
    seen: set[str] = set()
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        submit_s, duration_s = (_number(row, key, where) for key in _HEADINGS[:2])
        gpus = _number(row, "num_gpu", where)
        if duration_s <= 0 or gpus < 1 or gpus != int(gpus) or gpus > 2**20:
            raise UsageError(f"{where}: a job needs a duration above 0 s and a whole number of GPUs, at least 1")
        if duration_s > _LONGEST_S:
            raise UsageError(f"{where}: duration={duration_s:.0f} is more than a year: write it in seconds")
        id = (row.get("job_id") or "").strip() or f"job-{len(found) + 1}"
        if id in seen:
            raise UsageError(f"{where}: job_id {id[:40]!r} is there twice: give each job its own")
        seen.add(id)
        deadline = (row.get("deadline") or "").strip()
        late = (_number(row, "deadline", where) - submit_s) / duration_s if deadline else None
        if late is not None and late <= 0:
            raise UsageError(f"{where}: the deadline is not after the submission: give a later one, or none")
        model, gpu_type = ((row.get(key) or "").strip() for key in ("model_name", "gpu_type"))
        batch = 0
        if ":" in model:
            batch = int(min(max(_number(row, "batch_size", where), 1), 2**20))
            config.parse(model)
        found.append(TraceJob(id, submit_s, duration_s, int(gpus), model, gpu_type, late, batch))
    if not found:
        raise UsageError(f"{name} has no jobs: write one in each line after the headings")
    return found


def _number(row: Mapping[str, str | None], key: str, where: str) -> float:
    try:
        value = float(row.get(key) or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e12:
        raise UsageError(f"{where}: {key}={(row.get(key) or '')[:40]!r}: a number")
    return value


def models_of(trace: Sequence[TraceJob]) -> dict[str, TrainedModel]:
    """Return the models of Table 2 and those that a trace defines."""
    found = table2()
    for each in trace:
        if ":" in each.model:
            found.setdefault(_own(each), Transformer(config.parse(each.model), each.batch))
    return found


def _own(each: TraceJob) -> str:
    """Return the name of a model that a trace defines."""
    return f"{each.model}/{each.batch}"


def generated(seed: int, count: int) -> tuple[TraceJob, ...]:
    """Return a trace of our own: Poisson arrivals, lognormal durations, GPUs as in public traces.

    Durations have a median of 2 h and a mean of 5 h.
    """
    random = np.random.default_rng([seed, 17])
    times = np.cumsum(random.exponential(300.0, count))
    durations = np.clip(random.lognormal(math.log(7200.0), 1.35, count), 300.0, 7 * 86400.0)
    gpus = random.choice([1, 2, 4, 8, 16, 32, 64], count, p=[0.5, 0.1, 0.13, 0.17, 0.05, 0.03, 0.02])
    late = random.uniform(1.0, 3.0, count)
    return tuple(
        TraceJob(f"job-{at + 1}", float(times[at]), float(durations[at]), int(gpus[at]), late=float(late[at]))
        for at in range(count)
    )


def window(trace: Sequence[TraceJob], count: int, seed: int) -> tuple[TraceJob, ...]:
    """Return `count` consecutive jobs, from a place that the seed chooses; all if there are no more."""
    last = len(trace) - count
    first = int(np.random.default_rng([seed, 29]).integers(0, last + 1)) if last > 0 else 0
    return tuple(trace[first : first + count])


def jobs_of(
    trace: Sequence[TraceJob],
    models: Mapping[str, TrainedModel],
    pools: Mapping[str, Pool],
    speeds: Speeds,
    *,
    seed: int,
    load: float | None = None,
    deadlines: bool = False,
) -> tuple[SimulatedJob, ...]:
    """Return the jobs of a trace on a cluster, the first submitted at 0.

    The seed chooses what the trace does not say: a size of the model's family and its batch; a GPU type, by the number
    of its GPUs, among those that the model fits; and a count, 1, 2, 4 or 8 times the fewest that it fits, but at least
    the trace's, as a power of two of at most 64. A job whose model or type is in the trace has the trace's count, or
    the fewest that it fits. With `load` the times between submissions are stretched until all jobs together ask for
    that share of the cluster's GPU time up to the last submission. Raises UsageError for a model or type that the
    cluster cannot have, and for a load if all jobs come at once.
    """
    first_s = trace[0].submit_s if trace else 0.0
    able = _able(pools, speeds)
    found = []
    for at, each in enumerate(trace):
        random = np.random.default_rng([seed, at, 41])
        model = _model(each, models, able, random)
        gpu_type, gpus = _request(each, model, pools, speeds, random)
        rate = fastest(speeds, model, gpu_type, gpus)[1]
        submit_s = each.submit_s - first_s
        until_s = submit_s + each.late * each.duration_s if deadlines and each.late is not None else None
        found.append(SimulatedJob(each.id, model, submit_s, each.duration_s * rate, gpus, gpu_type, until_s))
    if load is not None:
        if not found or found[-1].submit_s <= 0:
            raise UsageError("a load needs jobs that are submitted at different times: simulate these without --load")
        work = sum(job.gpus * each.duration_s for job, each in zip(found, trace, strict=True))
        stretch = work / (load * sum(pool.gpus for pool in pools.values())) / found[-1].submit_s
        found = [_moved(job, job.submit_s * stretch) for job in found]
    return tuple(found)


def _moved(job: SimulatedJob, submit_s: float) -> SimulatedJob:
    until_s = None if job.deadline_s is None else job.deadline_s - job.submit_s + submit_s
    return replace(job, submit_s=submit_s, deadline_s=until_s)


def _able(pools: Mapping[str, Pool], speeds: Speeds) -> dict[str, list[str]]:
    """Return the sizes of each family that fit the cluster with any batch."""

    def fits(model: str, family: str) -> bool:
        return all(
            any(
                fastest(speeds, f"{model}/{batch}", name, gpus)[1] > 0
                for name, pool in pools.items()
                for gpus in reversed(powers(min(MOST_GPUS, pool.gpus)))
            )
            for batch in BATCHES[family]
        )

    return {family: [model for model in sizes if fits(model, family)] for family, sizes in FAMILIES.items()}


def _model(
    each: TraceJob, models: Mapping[str, TrainedModel], able: Mapping[str, Sequence[str]], random: np.random.Generator
) -> str:
    """Return the trace's own model if it is known; else a size of its family in `able`, and a batch."""
    for known in (each.model, _own(each)):
        if known in models:
            return known
    family = _FAMILY_OF.get(each.model, each.model)
    if not able.get(family):
        families = [name for name, sizes in able.items() if sizes]
        if not families:
            raise UsageError(
                "no model of Crius's Table 2 fits this cluster: write each job's model_name into the trace"
            )
        family = families[int(random.integers(len(families)))]
    sizes = able[family]
    weights = 1.0 / np.arange(1, len(sizes) + 1)  # small ones are more common
    size = sizes[int(random.choice(len(sizes), p=weights / weights.sum()))]
    return f"{size}/{int(random.choice(list(BATCHES[family])))}"


def _request(
    each: TraceJob,
    model: str,
    pools: Mapping[str, Pool],
    speeds: Speeds,
    random: np.random.Generator,
) -> tuple[str, int]:
    """Return the type and count that a job asks for."""
    if each.gpu_type and each.gpu_type not in pools:
        raise UsageError(
            f"job {each.id[:40]!r} asks for {each.gpu_type[:40]!r}, of which the cluster has none: "
            f"one of {', '.join(pools)}"
        )
    least = {}
    for name in [each.gpu_type] if each.gpu_type else pools:
        counts = powers(min(MOST_GPUS, pools[name].gpus))
        fewest = next((gpus for gpus in counts if fastest(speeds, model, name, gpus)[1] > 0), 0)
        if fewest:
            least[name] = (fewest, counts[-1])
    if not least:
        where = each.gpu_type or "any type of this cluster"
        raise UsageError(f"job {each.id[:40]!r}: {model} does not fit on {where}: leave the job out of the trace")
    names = list(least)
    weights = np.array([pools[name].gpus for name in names], float)
    name = names[int(random.choice(len(names), p=weights / weights.sum()))]
    fewest, most = least[name]
    said = bool(each.gpu_type) or model in (each.model, _own(each))
    times = 1 if said else int(random.choice(_ASKED_TIMES))
    wanted = max(fewest * times, 1 << (each.gpus - 1).bit_length())
    gpus = min(wanted, most)
    while fastest(speeds, model, name, gpus)[1] <= 0:  # if more GPUs than samples are requested
        gpus //= 2
    return name, gpus
