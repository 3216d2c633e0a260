"""Logged jobs in memory, and the rules by which any reader puts them together."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

MOST_JOBS = 10_000_000
"""The most jobs of a log: they take about 3 GB of memory."""
LATEST_S = 253_402_300_799.0
"""The end of the year 9999, the last that a date can have."""
SETTINGS = (
    "PriorityDecayHalfLife",
    "PriorityFavorSmall",
    "PriorityMaxAge",
    "PriorityType",
    "PriorityWeightAge",
    "PriorityWeightFairshare",
    "PriorityWeightJobSize",
    "SLURM_VERSION",
    "SchedulerParameters",
)
"""The settings of Slurm that a log keeps: those that decide which job starts when."""
# A time without a start or end is a gap if it is this long and so many times longer than such times are on average: of
# independent jobs, hardly one in a billion is.
_GAP_S = 3600.0
_GAP_MEANS = 20
_LEADING = re.compile(r"\d{1,18}")

# name -> sentence; {} is the count
_SENTENCES = {
    "gaps": "{} times no job started or ended for far longer than usual, and for an hour at least",
    "gap_s": "{} s in such gaps altogether: is the accounting complete?",
    "ambiguous_times": "{} times lie in the hour that a change of clocks repeats: each counts as the first that is "
    "not before the one that it follows, an end as the last",
    "started_before_submission": "{} jobs start before they were submitted or eligible, as where a clock was set: they "
    "count as submitted and eligible by their start",
    "ends_before_start": "{} jobs end before they start and were left out",
    "duplicates_dropped": "{} rows of jobs are there twice and were counted once",
    "rows_superseded": "{} rows tell less of a run than others, or another end: a start and an end count before none, "
    "and the later end",
    "no_submission": "{} jobs were never submitted by what the log says, and were left out",
    "no_start": "{} jobs ran or left the queue at a time that the log does not tell, and were left out",
    "no_nodes": "{} jobs have no number of nodes and were left out",
    "node_list_unknown": "{} jobs ran on nodes that the log does not name",
    "elsewhere": "{} jobs ran on nodes that are not in the node list, and were left out",
    "too_wide": "{} jobs ask for more nodes than there are, and were left out",
    "outside": "{} jobs had left the queue before the period or came after it, and were left out",
    "partial": "{} rows of parts of jobs were left out: the whole job has a row",
    "no_run_time": "{} jobs ran for 0 s",
    "ends_unknown": "{} jobs were running at the end of the log, or their end is unknown",
}


@dataclass(frozen=True, slots=True)
class LoggedJob:
    """One run of a regular job; a job that was requeued has several of one id, each with its own submission.

    Times are unix seconds. `eligible_s` is None if the job never became eligible, `start_s` if it never started, and
    `end_s` if it still ran or waited, or its end is unknown; the end of a job that never started is when it left the
    queue. `limit_s` is None if unlimited or unknown. Any text is "" if unknown. `state` is Slurm's base state.
    `node_names` are the nodes on which the job ran and `required` those of -w, as Slurm writes node sets. `user` and
    `account` are names or stand for names (u1, a1).
    """

    id: str
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    limit_s: float | None
    nodes: int
    partition: str
    user: str
    account: str
    qos: str
    state: str
    node_names: str
    required: str


@dataclass(frozen=True, eq=False)
class JobLog:
    """The regular jobs of a machine from `begin_s` to `end_s`, unix seconds, by submission and then by id.

    A job may have been submitted before the period or end after it. `size` is the number of nodes of the machine, None
    if unknown. `notes` are sentences on unclear data. `slurm` are the SETTINGS as `scontrol show config` has them, none
    if unknown.
    """

    jobs: tuple[LoggedJob, ...]
    begin_s: float
    end_s: float
    size: int | None = None
    notes: tuple[str, ...] = ()
    slurm: Mapping[str, str] = field(default_factory=dict)


def order(job: LoggedJob) -> tuple[float, int, str, float]:
    """Return the key by which a log is sorted: the submission, the id as a number and as text, the start."""
    number = _LEADING.match(job.id)
    return job.submit_s, int(number[0]) if number else 0, job.id, math.inf if job.start_s is None else job.start_s


def in_turn(
    submit_s: float, eligible_s: float | None, start_s: float | None, counts: Counter[str]
) -> tuple[float, float | None]:
    """Return submission and eligibility, neither of which is after the start, nor the eligibility first."""
    if start_s is not None:
        counts["started_before_submission"] += max(submit_s, eligible_s or 0.0) > start_s
        submit_s = min(submit_s, start_s)
        eligible_s = submit_s if eligible_s is None else min(eligible_s, start_s)
    return submit_s, None if eligible_s is None else max(eligible_s, submit_s)


def assembled(
    jobs: Iterable[LoggedJob], begin_s: float, end_s: float, size: int | None, counts: Counter[str]
) -> JobLog:
    """Make a log of the jobs of a period that can be, each run once; `counts` tells what a reader left out."""
    counts = counts.copy()
    kept = []
    for job in jobs:
        if fault := _fault(job, begin_s, end_s, size):
            counts[fault] += 1
        else:
            kept.append(job)
    kept.sort(key=order)
    once = tuple(_once(kept, counts))
    counts["no_run_time"] += sum(job.start_s is not None and job.start_s == job.end_s for job in once)
    counts["ends_unknown"] += sum(job.start_s is not None and job.end_s is None for job in once)
    counts.update(_gaps(once, begin_s, end_s))
    notes = tuple(sentence.format(f"{counts[name]:,}") for name, sentence in _SENTENCES.items() if counts[name])
    return JobLog(once, begin_s, end_s, size, notes)


def _fault(job: LoggedJob, begin_s: float, end_s: float, size: int | None) -> str:
    """Return the name of the count of a job that is to be left out, or "" for any other."""
    if job.nodes < 1:
        return "no_nodes"
    if size is not None and job.nodes > size:
        return "too_wide"
    return "outside" if job.submit_s > end_s or (job.end_s is not None and job.end_s < begin_s) else ""


def _once(jobs: list[LoggedJob], counts: Counter[str]) -> Iterator[LoggedJob]:
    """Yield each run of sorted jobs once: by its end if one is known, and by its start if one row has any."""
    for _, group in groupby(jobs, key=lambda job: (job.submit_s, job.id)):
        runs: list[LoggedJob] = []
        for job in group:
            if not runs:
                runs.append(job)
            elif job == runs[-1]:
                counts["duplicates_dropped"] += 1
            elif job.start_s is None or job.start_s == runs[-1].start_s:
                counts["rows_superseded"] += 1
                if job.start_s == runs[-1].start_s and (job.end_s or 0.0) > (runs[-1].end_s or 0.0):
                    runs[-1] = job
            else:
                runs.append(job)
        yield from runs


def _gaps(jobs: tuple[LoggedJob, ...], begin_s: float, end_s: float) -> Counter[str]:
    """Count the long times without a start or an end of any job."""
    edges = np.fromiter(
        (at_s for job in jobs if job.start_s is not None for at_s in (job.start_s, job.end_s) if at_s is not None),
        dtype=np.float64,
    )
    edges = np.sort(np.concatenate([[begin_s, end_s], edges[(edges > begin_s) & (edges < end_s)]]))
    silent_s = np.diff(edges)
    silent_s = silent_s[silent_s >= max(_GAP_S, _GAP_MEANS * silent_s.mean())]
    return Counter(gaps=len(silent_s), gap_s=int(silent_s.sum()))
