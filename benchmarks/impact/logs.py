"""Readers of Slurm's own words: the controller's log, `scontrol show job` and `sdiag`, of 22.05 to 26.05."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from slurm_plugin.nodeset import expand

_TIME = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?)\] ")
_PREEMPTED = re.compile(
    r"preempted JobId=(?P<victim>\d+) (?:has been killed|had to be killed|has been requeued)"
    r".*? to reclaim resources for JobId=(?P<by>\d+)"
)
_STARTED = re.compile(
    r"(?:(?P<main>sched: Allocate)|sched/backfill: _start_job: (?:HETJOB: )?Started) JobId=(?P<id>\d+) "
)
_RPC_TYPE = re.compile(r"^\s+([A-Z_0-9]+)\s+\(\s*\d+\)\s+count:(\d+)\s")
_NO_TIME = frozenset({"Unknown", "None", "N/A", ""})


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pilot was preempted at `at_s` (unix seconds, milliseconds in the log) for the job `by`."""

    at_s: float
    victim: str
    by: str


def preemptions(lines: Iterable[str]) -> list[Preemption]:
    """The preemptions that a controller's log tells of; its times are local ones."""
    found = []
    for line in lines:
        time, what = _TIME.match(line), _PREEMPTED.search(line)
        if time and what:
            found.append(Preemption(datetime.fromisoformat(time[1]).timestamp(), what["victim"], what["by"]))
    return found


@dataclass(frozen=True, slots=True)
class Start:
    """The scheduler "main" or "backfill" started a job at `at_s` (unix seconds, milliseconds in the log)."""

    at_s: float
    by: str


def starts(lines: Iterable[str]) -> dict[str, Start]:
    """The starts of jobs, by job, as a controller's log tells."""
    found = {}
    for line in lines:
        time, what = _TIME.match(line), _STARTED.search(line)
        if time and what:
            by = "main" if what["main"] else "backfill"
            found[what["id"]] = Start(datetime.fromisoformat(time[1]).timestamp(), by)
    return found


@dataclass(frozen=True, slots=True)
class Ran:
    """What Slurm says of one job: unix seconds, whole ones; None where it has not started or ended."""

    id: str
    partition: str
    name: str
    start_s: float | None
    end_s: float | None
    nodes: tuple[str, ...]


def jobs(text: str) -> list[Ran]:
    """Read `scontrol show job -o` with SLURM_TIME_FORMAT=%s."""
    found = []
    for line in text.splitlines():
        if not line.startswith("JobId="):
            continue
        fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        running = fields["JobState"] in ("RUNNING", "COMPLETING", "CONFIGURING")
        pending = fields["JobState"] == "PENDING"
        nodes = fields.get("NodeList", "")
        found.append(
            Ran(
                id=fields["JobId"],
                partition=fields["Partition"],
                name=fields.get("JobName", ""),
                start_s=None if pending else _time(fields["StartTime"]),
                end_s=None if pending or running else _time(fields["EndTime"]),
                nodes=() if nodes in ("", "(null)") else tuple(expand(nodes)),
            )
        )
    return found


def ended(text: str) -> list[Ran]:
    """Read what jobcomp/filetxt wrote: the runs of jobs that have ended, each requeued one for itself."""
    found = []
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if fields.get("NodeList", "(null)") in ("", "(null)", "(none)"):
            continue
        found.append(
            Ran(
                id=fields["JobId"],
                partition=fields["Partition"],
                name=fields.get("Name", ""),
                start_s=_time(fields["StartTime"]),
                end_s=_time(fields["EndTime"]),
                nodes=tuple(expand(fields["NodeList"])),
            )
        )
    return found


def rpc_counts(text: str) -> dict[str, int]:
    """Requests by message type since the controller's start, from `sdiag`."""
    _, _, section = text.partition("statistics by message type")
    section, _, _ = section.partition("statistics by user")
    return {match[1]: int(match[2]) for line in section.splitlines() if (match := _RPC_TYPE.match(line))}


def _time(text: str) -> float | None:
    if text in _NO_TIME:
        return None
    return float(text) if text.isdecimal() else datetime.fromisoformat(text).timestamp()
