"""Slurm's own account of its backfill cycles, from slurmctld's log.

It needs DebugFlags=Backfill,HetJob and SlurmctldDebug=verbose: 26.05 tells only with HetJob which jobs backfill starts.
A cycle goes through the waiting jobs in their order. For each it works out when and where the job can start; what can
start now is started, or pilots are preempted for it and it is looked at again in the next cycle. A start that failed is
that of a job that was to start now, and of which no start is told. 22.05 tells all of this at level info, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from slurm_plugin.nodeset import expand

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)\] (.*)")
# "JobId=7", "JobId=7_3(9)" a task of an array, "JobId=7_*" what is left of one, "JobId=7+1(8)" a part of a job.
_JOB = r"JobId=(?P<id>\d+(?:[_+]\d+)?)(?:_\*)?(?:\(\d+\))?"
_BEGINS = re.compile(r"_attempt_backfill: (?:BACKFILL: )?beginning")
_ENDS = re.compile(r"_attempt_backfill: (?:BACKFILL: )?(?:completed testing|no jobs to backfill)")
_TESTED = re.compile(rf"_dump_job_test: (?:BACKFILL: )?Test {_JOB} at ")
_PLANNED = re.compile(
    rf"_dump_job_sched: (?:BACKFILL: )?{_JOB} to start at (?P<start>\S+), end at (?P<end>\S+) on nodes (?P<nodes>\S+)"
)
_STARTED = re.compile(rf"_start_job: (?:BACKFILL: |HETJOB: )?Started {_JOB} in \S+ on (?P<nodes>\S+)")
_PREEMPTED = re.compile(
    r"preempted JobId=(?P<victim>\d+)\S* (?:has been killed|had to be killed|has been requeued)"
    rf".*? to reclaim resources for {_JOB}"
)
_WORDS = ("backfill: _", "to reclaim resources for")


@dataclass(frozen=True, slots=True)
class Start:
    """When and where a cycle started a job."""

    at_s: float
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """From when to when a cycle reserved nodes for a job, in whole seconds."""

    start_s: float
    end_s: float
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that was to start now on `nodes` and could not: `preempted` names the jobs that must go for it."""

    at_s: float
    nodes: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle of the backfill scheduler; all times are unix seconds, of local times in the log.

    `end_s` is None where the log does not say. `tested` are the jobs for which it looked for nodes, in its order,
    `planned` what it reserved for later, `started` what it started, `failed` the jobs that it would have started and
    could not. An array's task is "7_3", what is left of an array "7".
    """

    begin_s: float
    end_s: float | None = None
    tested: tuple[str, ...] = ()
    planned: Mapping[str, Planned] = field(default_factory=dict)
    started: Mapping[str, Start] = field(default_factory=dict)
    failed: Mapping[str, Failure] = field(default_factory=dict)


@dataclass
class _Open:
    """A cycle that is being read; `preempted` are the victims since the last look for nodes, by their job."""

    begin_s: float
    tested: dict[str, None] = field(default_factory=dict)
    planned: dict[str, Planned] = field(default_factory=dict)
    started: dict[str, Start] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    preempted: dict[str, list[str]] = field(default_factory=dict)

    def closed(self, end_s: float | None) -> Cycle:
        return Cycle(self.begin_s, end_s, tuple(self.tested), self.planned, self.started, self.failed)

    def take(self, at_s: float, what: str) -> None:
        """Read one line within the cycle."""
        if found := _TESTED.search(what):
            self.tested.setdefault(found["id"])
            # The main scheduler works while backfill yields: what was preempted before this look was so by it.
            self.preempted.clear()
        elif found := _PLANNED.search(what):
            start_s, end_s = _time(found["start"]), _time(found["end"])
            if start_s is not None and end_s is not None:
                self._plan(at_s, found["id"], Planned(start_s, end_s, _nodes(found["nodes"])))
        elif found := _STARTED.search(what):
            self.started[found["id"]] = Start(at_s, _nodes(found["nodes"]))
            self.failed.pop(found["id"], None)
        elif found := _PREEMPTED.search(what):
            self.preempted.setdefault(_whole(found["id"]), []).append(found["victim"])

    def _plan(self, at_s: float, job: str, plan: Planned) -> None:
        victims = self.preempted.pop(_whole(job), [])
        if plan.start_s > at_s:
            self.planned[job] = plan
        elif job not in self.started and job not in self.failed:
            self.failed[job] = Failure(at_s, plan.nodes, tuple(victims))


def cycles(lines: Iterable[str]) -> list[Cycle]:
    """The cycles that a controller's log tells of, in order; other lines are passed over."""
    found: list[Cycle] = []
    current: _Open | None = None
    for line in lines:
        # Most lines are tables of what is free when.
        if not any(word in line for word in _WORDS) or "_dump_node_space_table" in line:
            continue
        parts = _LINE.match(line)
        if parts is None:
            continue
        at_s, what = datetime.fromisoformat(parts[1]).timestamp(), parts[2]
        if _BEGINS.search(what):
            if current is not None:
                found.append(current.closed(None))
            current = _Open(at_s)
        elif current is not None and _ENDS.search(what):
            found.append(current.closed(at_s))
            current = None
        elif current is not None:
            current.take(at_s, what)
    return [*found, current.closed(None)] if current is not None else found


def first_failures(some: Sequence[Cycle]) -> dict[str, tuple[Cycle, Failure]]:
    """The cycle in which each job could first have started now and did not, for jobs of which that is so."""
    found: dict[str, tuple[Cycle, Failure]] = {}
    for cycle in some:
        for job, failure in cycle.failed.items():
            found.setdefault(job, (cycle, failure))
    return found


def _whole(job: str) -> str:
    """The array of a task: a preemption is for the task, the plan may be for what is left of the array."""
    return job.partition("_")[0]


def _nodes(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(expand(text))


def _time(text: str) -> float | None:
    """Unix seconds of a local time; None of one that is no time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
