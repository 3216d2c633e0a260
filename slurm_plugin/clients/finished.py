"""The resources that a finished job used, from Slurm's accounting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import CommandError, SlurmError, one_line
from slurm_plugin.nodeset import expand
from slurm_plugin.read import dates

_FIELDS = (
    *("JobIDRaw", "JobID", "Cluster", "State", "Start", "End", "NodeList", "NTasks"),
    *("ReqTRES", "AllocTRES", "MaxRSS", "TRESUsageInTot"),
)
_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_MEMORY = re.compile(r"(?:^|,)mem=([\d.]+[KMGTP]?)")
_GPU_MEMORY = re.compile(r"gres/gpumem=([\d.]+[KMGTP]?)")
_UNITS: Mapping[str, int] = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}
_WELL = ("COMPLETED", "TIMEOUT")
_ENDED_BY_LIMIT = ("COMPLETED", "TIMEOUT", "CANCELLED")  # for the steps of a job that its time limit ended
_NOT_OVER = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "RESIZING")
_ANSWER_S = 60.0  # the answer comes from slurmdbd, which keeps the jobs of years


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """One job: its nodes, the GPUs it asked for, and its processes' use of memory, None if unknown.

    `gres_type` is Slurm's name of the GPUs, "" if it records none. `host_bytes` is an upper bound of the memory used on
    one node, `gpu_bytes` the memory in use on its only GPU: both are the largest of samples.
    """

    id: str
    cluster: str
    started_s: float
    ended_s: float
    nodes: tuple[str, ...]
    gpus: int
    gres_type: str
    host_bytes: int | None
    gpu_bytes: int | None


def finished(slurm: SlurmClient, job: str) -> FinishedJob:
    """Ask sacct for one job by its number; raise SlurmError if it is missing, did not end well or had no GPUs."""
    fields = ",".join(_FIELDS)
    answer = slurm.run(
        "sacct", f"--jobs={job}", "--parsable2", "--noheader", "--noconvert", f"--format={fields}", timeout_s=_ANSWER_S
    )
    if answer.code:
        raise CommandError(f"sacct: {answer.complaint}")
    rows = [dict(zip(_FIELDS, line.split("|"), strict=False)) for line in answer.out.splitlines() if line.strip()]
    if any(len(row) < len(_FIELDS) for row in rows):
        raise CommandError(f"sacct did not say {fields} of job {job}")
    if any("+" in row["JobID"] for row in rows):
        raise SlurmError(f"job {job} has several components: only a job of one can be learnt from")
    mine = [row for row in rows if row["JobIDRaw"].partition(".")[0] == job]
    whole = [row for row in mine if row["JobIDRaw"] == job]
    if len(whole) != 1:
        raise SlurmError(f"accounting shows you {len(whole)} jobs {job}: nothing can be learnt of it")
    try:
        return _of(whole[0], [row for row in mine if row["JobIDRaw"] != job])
    except (ValueError, KeyError, OverflowError) as error:
        raise CommandError(f"what sacct says of job {job} cannot be read: {one_line(str(error))}") from None


def _of(row: Mapping[str, str], steps: Sequence[Mapping[str, str]]) -> FinishedJob:
    job, state = row["JobID"], row["State"].partition(" ")[0]
    if state in _NOT_OVER:
        raise SlurmError(f"job {job} is {state}: learn from it once it is over")
    if not row["ReqTRES"] or not steps or any(step["State"] in _NOT_OVER for step in steps):
        raise SlurmError(f"accounting has not all of job {job} yet: try again in a minute")
    allowed = _ENDED_BY_LIMIT if state == "TIMEOUT" else ("COMPLETED",)
    failed = [step for step in steps if step["State"].partition(" ")[0] not in allowed]
    if state not in _WELL or failed:
        which = f"job {job}" if state not in _WELL else f"step {failed[0]['JobID']}"
        state = state if state not in _WELL else failed[0]["State"]
        raise SlurmError(f"{which} is {state}: only a job of which nothing failed can be learnt from")
    asked, given = _gpus(row["ReqTRES"]), _gpus(row["AllocTRES"])
    gpus, types = sum(given.values()), set(given)
    if not gpus or not (nodes := tuple(expand(row["NodeList"]))):
        raise SlurmError(f"job {job} had no GPUs that accounting knows of (AccountingStorageTRES=gres/gpu keeps them)")
    if len(types) > 1:
        raise SlurmError(f"job {job} had GPUs of several types: only one type can be learnt from")
    if (wanted := sum(asked.values())) != gpus:
        raise SlurmError(
            f"job {job} asked for {wanted} GPUs and had {gpus}: how many of them it used is not known, so ask for all"
        )
    return FinishedJob(
        id=job,
        cluster=row["Cluster"],
        started_s=_time(row["Start"]),
        ended_s=_time(row["End"]),
        nodes=nodes,
        gpus=gpus,
        gres_type=types.pop(),
        host_bytes=_host_bytes(steps),
        gpu_bytes=max((_told(_GPU_MEMORY, step) for step in steps), default=0) or None if gpus == 1 else None,
    )


def _gpus(tres: str) -> dict[str, int]:
    """Return the number of GPUs by name; those without a name are the difference to the total."""
    kinds = {name: int(count) for name, count in _GPUS.findall(tres)}
    unnamed = kinds.pop("", 0) - sum(kinds.values())
    return {**kinds, **({"": unnamed} if unnamed > 0 else {})}


def _host_bytes(steps: Sequence[Mapping[str, str]]) -> int | None:
    """Return an upper bound of the memory that steps running at the same time used on one node."""
    used = {}
    for step in (step for step in steps if not step["JobIDRaw"].endswith(".extern")):
        if not step["MaxRSS"]:
            return None  # the step was too short for a sample, or the site takes none
        tasks, nodes = int(step["NTasks"] or 1), len(expand(step["NodeList"])) or 1
        of_tasks = _bytes(step["MaxRSS"]) * (tasks if tasks % nodes else tasks // nodes)  # tasks may be spread unevenly
        used[step["JobIDRaw"]] = min(of_tasks, _told(_MEMORY, step) or of_tasks)
    spans = {step["JobIDRaw"]: (_time(step["Start"]), _time(step["End"])) for step in steps if step["JobIDRaw"] in used}
    together = [
        sum(used[other] for other, (start_s, end_s) in spans.items() if start_s <= at_s < max(end_s, start_s + 1))
        for at_s, _ in spans.values()
    ]
    return max(together, default=0) or None


def _told(field: re.Pattern[str], step: Mapping[str, str]) -> int:
    found = field.search(step["TRESUsageInTot"])
    return _bytes(found[1]) if found else 0


def _time(text: str) -> float:
    """Return unix seconds, converted from a local date for releases that ignore SLURM_TIME_FORMAT."""
    return float(text) if text.isdecimal() else dates.local(text)[0]


def _bytes(text: str) -> int:
    unit = text[-1] if text[-1] in _UNITS else ""
    return int(float(text.removesuffix(unit)) * _UNITS[unit])
