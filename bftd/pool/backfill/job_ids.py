"""The parts of a job id: the job of an array or of a heterogeneous job, and the tasks that wait under it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from slurm_plugin.read.types import Job

# Task ids are below 4 million: tasks that wait as one come behind those that wait alone, as in Slurm.
_WHOLE = 1 << 32
_ID = re.compile(r"(\d{1,18})(?:_(\d{1,18})|\+(\d{1,18}))?")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")
_LIMIT = re.compile(r"%(\d{1,18})")
_OVER = frozenset({"PENDING", "COMPLETING"})


@lru_cache(maxsize=1 << 16)  # the order of a long queue is worked out at every poll
def place(job_id: str) -> tuple[int, int]:
    """Return the job id and the index by which Slurm orders jobs of one priority."""
    match = _ID.match(job_id)
    if match is None:
        return 0, 0
    job, task, component = match.groups()
    if component is not None:
        return int(job) + int(component), _WHOLE  # the ids of its components follow each other
    return int(job), _WHOLE if task is None else int(task)


def whole_of_heterogeneous(job_id: str) -> str:
    """Return the job that "12+1" is a component of; "" for any other id."""
    job, plus, _ = job_id.partition("+")
    return job if plus else ""


@lru_cache(maxsize=1 << 12)
def waiting(job_id: str, most: int) -> tuple[int, int]:
    """Return how many tasks wait under an id, at most `most`, and the array's limit of running tasks, 0 for none.

    A list that squeue has cut counts as far as it goes, and tells no limit.
    """
    _, bracket, tasks = job_id.partition("_[")
    if not bracket:
        return 1, 0
    limit = _LIMIT.search(tasks)
    count = 0
    # a text of a few KB lists more tasks than can start, unless it consists of ranges, which are short
    for part in _RANGE.finditer(tasks, 0, limit.start() if limit else len(tasks)):
        first, last, step = (int(text) if text else None for text in part.groups())
        if first is not None:
            count += 1 if last is None else max(0, last - first) // max(1, step or 1) + 1
        if count >= most:
            break
    return max(1, min(count, most)), int(limit[1]) if limit else 0


def running_by_array(jobs: Iterable[Job]) -> dict[str, int]:
    """Count the tasks of each array that hold nodes."""
    found: dict[str, int] = {}
    for job in jobs:
        if job.state not in _OVER:
            array, underscore, _ = job.id.partition("_")
            if underscore:
                found[array] = found.get(array, 0) + 1
    return found
