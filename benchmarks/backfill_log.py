"""Slurm's own account of its backfill cycles, from the log of a slurmctld with DebugFlags=Backfill (22.05 to 24.11).

A cycle goes through the waiting jobs in their order. For each it works out when and where the job can start; what can
start now is started, or pilots are preempted for it and it is looked at again in the next cycle.
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
_YIELDS = re.compile(r"_(?:attempt_backfill|yield_locks): (?:BACKFILL: )?yielding locks")
_TESTED = re.compile(rf"_attempt_backfill: (?:BACKFILL: )?test for {_JOB} ")
_PLANNED = re.compile(
    rf"_dump_job_sched: (?:BACKFILL: )?{_JOB} to start at (?P<start>\S+), end at (?P<end>\S+) on nodes (?P<nodes>\S+)"
)
_STARTED = re.compile(rf"_start_job: (?:BACKFILL: )?Started {_JOB} in \S+ on (?P<nodes>\S+)")
_FAILED = re.compile(rf"planned start of {_JOB} failed")
_PREEMPTED = re.compile(
    r"preempted JobId=(?P<victim>\d+)\S* (?:has been killed|had to be killed|has been requeued)"
    rf".*? to reclaim resources for {_JOB}"
)
_WORDS = ("backfill: _", "to reclaim resources for")

AT_ONCE_S = 0.5
"""Backfill tells that a start failed as soon as it has preempted for the job.

What was preempted longer before was so by the main scheduler, which works while backfill yields.
"""


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
    """A job that could have started now but for others on its nodes: `preempted` names the jobs that must go for it."""

    at_s: float
    preempted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle of the backfill scheduler; all times are unix seconds, of local times in the log.

    `end_s` is None where the log does not say. `tested` are the jobs it looked at, in its order, `planned` what it
    reserved for later, `started` what it started, `failed` the jobs that it would have started and could not.
    An array's task is "7_3", what is left of an array "7".
    """

    begin_s: float
    end_s: float | None = None
    tested: tuple[str, ...] = ()
    planned: Mapping[str, Planned] = field(default_factory=dict)
    started: Mapping[str, Start] = field(default_factory=dict)
    failed: Mapping[str, Failure] = field(default_factory=dict)


@dataclass
class _Open:
    """A cycle that is being read; `preempted` are what nobody is known to have preempted yet, by the job it is for."""

    begin_s: float
    tested: list[str] = field(default_factory=list)
    planned: dict[str, Planned] = field(default_factory=dict)
    started: dict[str, Start] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    preempted: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def closed(self, end_s: float | None) -> Cycle:
        return Cycle(self.begin_s, end_s, tuple(self.tested), self.planned, self.started, self.failed)

    def take(self, at_s: float, what: str) -> None:
        """Read one line within the cycle."""
        if found := _TESTED.search(what):
            self.tested.append(found["id"])
        elif found := _PLANNED.search(what):
            start_s, end_s = _time(found["start"]), _time(found["end"])
            if start_s is not None and end_s is not None:
                self.planned[found["id"]] = Planned(start_s, end_s, _nodes(found["nodes"]))
        elif found := _STARTED.search(what):
            self.started[found["id"]] = Start(at_s, _nodes(found["nodes"]))
            self.failed.pop(found["id"], None)
        elif (found := _FAILED.search(what)) and found["id"] not in self.started:
            victims = [victim for when_s, victim in self.preempted.pop(found["id"], ()) if at_s - when_s <= AT_ONCE_S]
            before = self.failed.get(found["id"], Failure(at_s))
            self.failed[found["id"]] = Failure(before.at_s, before.preempted + tuple(victims))
        elif found := _PREEMPTED.search(what):
            self.preempted.setdefault(found["id"], []).append((at_s, found["victim"]))
        elif _YIELDS.search(what):
            # What was preempted up to here and has not failed was the main scheduler's.
            self.preempted.clear()


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


def _nodes(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(expand(text))


def _time(text: str) -> float | None:
    """Unix seconds of a local time; None of one that is no time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
