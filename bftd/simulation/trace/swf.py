"""Logs of jobs in the Standard Workload Format, as the Parallel Workloads Archive keeps them.

A row has 18 numbers, -1 for what is unknown; lines that begin with ";" are the header. SWF counts processors: they are
nodes where MaxProcs equals MaxNodes, or where the header has only one of the two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.job_model import MOST_JOBS, JobLog, LoggedJob, assembled, in_turn

_FIELDS = 18
_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{0,15})?([eE][-+]?\d{1,2})?")
# The largest number of a row: in seconds, 300 years.
_MOST = 1e10
_HEADER = re.compile(r";\s*(UnixStartTime|MaxNodes|MaxProcs)\s*:\s*(\d{1,10})")
_PARTIAL = (2, 3, 4)
_CANCELLED = 5
_STATES = {0: "FAILED", 1: "COMPLETED", _CANCELLED: "CANCELLED"}


@dataclass(slots=True)
class _Machine:
    """The header: unix seconds of time 0, nodes and processors, 0 if unknown."""

    zero_s: int = 0
    nodes: int = 0
    processors: int = 0

    def add(self, line: str) -> None:
        if found := _HEADER.match(line):
            name = {"UnixStartTime": "zero_s", "MaxNodes": "nodes", "MaxProcs": "processors"}[found[1]]
            setattr(self, name, int(found[2]))

    def size(self) -> int | None:
        return self.nodes or self.processors or None

    def nodes_of(self, processors: int) -> int:
        """Return the nodes that processors fill, rounded up."""
        if not 0 < self.nodes < self.processors:
            return processors
        return -(-processors * self.nodes // self.processors)


def is_row(line: str) -> bool:
    """Whether a line of a file looks like one of SWF."""
    words = line.split()
    return line.lstrip().startswith(";") or (len(words) == _FIELDS and all(map(_NUMBER.fullmatch, words)))


def read(lines: Iterable[tuple[int, str]], where: str) -> JobLog:
    """Read numbered lines of SWF; raise TraceError with the line that cannot be read, or if there is no job."""
    machine, counts, jobs = _Machine(), Counter[str](), list[LoggedJob]()
    for number, line in lines:
        text = line.strip()
        if text.startswith(";"):
            machine.add(text)
        elif text:
            if len(jobs) == MOST_JOBS:
                raise TraceError(f"{where} has more than {MOST_JOBS:,} jobs: cut out a part of it")
            job = _job(_numbers(text, f"{where}, line {number}"), machine, counts)
            jobs += [job] if job else []
    if not jobs:
        raise TraceError(f"{where} has no job that was submitted and whose times are known: take another log")
    begin_s = min(job.submit_s for job in jobs)
    end_s = max(max(job.submit_s, job.start_s or 0.0, job.end_s or 0.0) for job in jobs)
    return assembled(jobs, begin_s, end_s, machine.size(), counts)


def _numbers(text: str, where: str) -> list[float]:
    words = text.split()
    if len(words) != _FIELDS:
        raise TraceError(f"{where}: {len(words)} numbers instead of the {_FIELDS} of a row of SWF")
    for word in words:
        if not _NUMBER.fullmatch(word) or abs(float(word)) > _MOST:
            raise TraceError(f"{where}: {word[:40]!r} is not a number of SWF")
    return [float(word) for word in words]


def _job(row: list[float], machine: _Machine, counts: Counter[str]) -> LoggedJob | None:
    """Return the job of a row, or None, with the reason counted."""
    submit, wait_s, run_s = row[1:4]
    processors = int(row[4] if row[4] > 0 else row[7])
    status = int(row[10])
    if submit < 0 or status in _PARTIAL:
        counts["partial" if status in _PARTIAL else "no_submission"] += 1
        return None
    submit_s = machine.zero_s + submit
    if wait_s < 0:
        counts["no_start"] += 1
        return None
    left_s = submit_s + wait_s
    ran = status != _CANCELLED or run_s > 0
    start_s = left_s if ran else None
    submit_s, eligible_s = in_turn(submit_s, submit_s, start_s, counts)
    return LoggedJob(
        id=str(int(row[0])),
        submit_s=submit_s,
        eligible_s=eligible_s,
        start_s=start_s,
        end_s=left_s if not ran else None if run_s < 0 else left_s + run_s,
        limit_s=row[8] if row[8] > 0 else None,
        nodes=machine.nodes_of(processors) if processors > 0 else 0,
        partition=_name("p", row[15]),
        user=_name("u", row[11]),
        account=_name("a", row[12]),
        qos=_name("q", row[14]),
        state=_STATES.get(status, ""),
        node_names="",
        required="",
    )


def _name(letter: str, number: float) -> str:
    return f"{letter}{int(number)}" if number >= 0 else ""
