"""Parts of a pending job's request for which squeue has no letter: read rarely, at two more requests to Slurm.

Only `squeue --Format` shows them, and it cannot replace --format: in 22.05 it does not show excluded nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurm_plugin.errors import SnapshotError
from slurm_plugin.read import parse
from slurm_plugin.read.types import Job

_FIELDS = ("JobArrayID", "MinTime", "ReqSwitch", "tres-alloc")
_EXCLUSIVE = "Exclusive"  # exists and is needed since 26.05: there %h no longer shows which jobs share their nodes
_MEMORY = re.compile(r"(?:^|,)mem=(\d{1,18}(?:\.\d{1,18})?)([KMGTP]?)")
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_ROUNDED = 0.01  # Slurm may write 15.62G


@dataclass(frozen=True, slots=True)
class ScontrolRequest:
    """A job's shortest time limit, None for its limit; the most leaf switches, 0 for any; its memory on all nodes.

    `shares` says whether it is known to let others have the rest of its nodes.
    """

    least_s: float | None = None
    switches: int = 0
    memory_bytes: float = 0.0
    shares: bool = False


NONE = ScontrolRequest()
SHARES = ScontrolRequest(shares=True)


def knows_exclusive(partitions: str) -> bool:
    """Whether this release has a field for it, by the output of `scontrol show partition -o`."""
    return f" {_EXCLUSIVE}=" in partitions


def long_format(separator: str, exclusive: bool = False) -> str:
    """Build squeue's --Format whose output `read` takes; a width of 0 means as wide as needed."""
    return ",".join(f"{name}:0{separator}" for name in (*_FIELDS, *([_EXCLUSIVE] if exclusive else [])))


def read(text: str, separator: str) -> dict[str, ScontrolRequest]:
    """Read the output, header line included, of squeue with `long_format(separator)`; returns wishes by `key`.

    Raise SnapshotError if it is cut short; an unreadable wish counts as none.
    """
    *fields, end = text.split(separator)
    width = len(_FIELDS) + (_EXCLUSIVE.upper() in fields[: len(_FIELDS) + 1])
    if len(fields) < width or len(fields) % width or end != "\n":
        raise SnapshotError("squeue's answer about what jobs wish is cut short or not in the format asked for")
    rows = (fields[first : first + width] for first in range(width, len(fields), width))
    return {key(job_id.removeprefix("\n")): _wish(*rest) for job_id, *rest in rows}


def key(job_id: str) -> str:
    """Return an array's number for all its tasks, else the job's id; each part of a heterogeneous job has its own."""
    return job_id.partition("_")[0]


def granted(job: Job, wishes: Mapping[str, ScontrolRequest], otherwise: ScontrolRequest = NONE) -> Job:
    """Return the job with the known parts of its wishes, `otherwise` if none are known."""
    wish = wishes.get(key(job.id), otherwise)
    if wish == NONE:
        return job
    asked = job.request
    on_each, on_cpus = asked.memory_bytes * max(1, job.node_count), asked.memory_bytes * asked.cpus
    per_cpu = _alike(on_cpus, wish.memory_bytes) and not _alike(on_each, wish.memory_bytes)
    request = replace(
        asked,
        least_s=wish.least_s,
        switches=wish.switches,
        memory_per_cpu=per_cpu,
        exclusive=asked.exclusive and not wish.shares,
    )
    return job if request == asked else replace(job, request=request)


def _wish(least: str, switches: str, tres: str, exclusive: str = "") -> ScontrolRequest:
    try:
        least_s = parse.time_limit_s(least)
    except SnapshotError:
        least_s = None
    found = _MEMORY.search(tres)
    return ScontrolRequest(
        least_s=least_s or None,
        switches=int(switches) if switches.isdecimal() and len(switches) < 10 else 0,
        memory_bytes=float(found[1]) * _UNITS[found[2]] if found else 0.0,
        shares=exclusive == "NO",
    )


def _alike(one: float, other: float) -> bool:
    return one > 0.0 and abs(one - other) <= _ROUNDED * other
