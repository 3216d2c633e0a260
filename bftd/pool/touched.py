"""Regular jobs that have started where pilots were, and when Slurm could have started them without pilots. Pure.

Slurm does not tell for which job a pilot left. So every start counts that one snapshot shows on a node that a pilot had
at the snapshot before, or of a job for which pilots left nodes, or that Slurm was seen preempting for. The time
from which it could have started is never assumed later than it was: it is the beginning of the last look at which the
job could not have started, or its submission if that was later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from bftd.core.model.delays import TouchedStart
from bftd.core.model.domain import Earmark
from bftd.pool.earmarks import key
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import Occupancy
from slurm_plugin.read.types import Job, Snapshot


@dataclass(frozen=True, slots=True)
class TouchMemory:
    """The times from which each waiting job, by `key`, could have started without pilots; None if unknown.

    The last look at Slurm began at `looked_s`; the jobs `counted` may look as if they had started after it. By `until`
    Slurm must have looked at a job whose earmark has been free of pilots.
    """

    since: Mapping[str, float | None] = field(default_factory=dict)
    looked_s: float | None = None
    counted: frozenset[str] = frozenset()
    until: Mapping[str, float] = field(default_factory=dict)

    def moved(self, by_s: float) -> TouchMemory:
        """Return the memory with its times moved: the clock was set."""
        since = {key_: None if since_s is None else since_s + by_s for key_, since_s in self.since.items()}
        until = {key_: until_s + by_s for key_, until_s in self.until.items()}
        return replace(self, since=since, until=until, looked_s=None if self.looked_s is None else self.looked_s + by_s)


def touched(
    before: TouchMemory,
    snapshot: Snapshot,
    jobs: Occupancy,
    harvest: Harvest,
    ours: Set[str],
    earmarks: Mapping[str, Earmark],
    starting: Set[str],
    looked_s: float,
    longest_gap_s: float,
) -> tuple[TouchMemory, tuple[TouchedStart, ...]]:
    """Return what to remember, and the starts since the snapshot before.

    `ours` are the nodes that pilots have, or had at the snapshot before. `earmarks` stand now, and `starting` are
    the jobs that Slurm is seen preempting for. `looked_s` is when the look at Slurm began. After too long a gap between
    looks it is unknown when a job could have started.
    """
    last_s = before.looked_s
    if last_s is None:  # the first look: nobody has seen what came before it
        return TouchMemory({}, looked_s), ()
    known_s = last_s if snapshot.time_s - last_s <= longest_gap_s else None
    on_ours = {jobs.occupied[name] for name in ours if name in jobs.occupied}
    found, begun, counted = [], set[str](), set[str]()
    for job in snapshot.jobs if on_ours or before.since else ():
        if job.state == "PENDING" or not ((waited := _waited(job, before)) or job.id in on_ours):
            continue
        if harvest.is_pilot(job) or (job.start_s is not None and job.start_s < math.floor(last_s)):
            continue
        counted.add(job.id)
        if job.id in before.counted:  # it started in the second in which that look began, or by a clock that is ahead
            continue
        begun.add(waited)
        since_s = before.since[waited] if waited else _not_before(job, known_s)
        found.append(TouchedStart(job.id, job.nodes, since_s, job.start_s, before.until.get(waited, math.inf)))
    pilots_left = {earmark.job: earmark for earmark in earmarks.values() if earmark.leaving}
    since: dict[str, float | None] = {}
    until: dict[str, float] = {}
    for job in jobs.pending if pilots_left or starting else ():
        key_ = key(job.id)
        earmark = pilots_left.get(key_)
        if earmark is None and job.id not in starting:
            continue
        since_s = _not_before(job, known_s)
        if since_s is not None and earmark is not None and earmark.due_s is not None and job.id not in starting:
            # nothing but Slurm's next cycle starts it, and none begins before
            since_s = max(since_s, float(math.floor(earmark.due_s)))
        if key_ in before.since and key_ not in begun:
            earlier_s = before.since[key_]
            since_s = earlier_s if earlier_s is None or since_s is None else min(earlier_s, since_s)
        since[key_] = since_s
        if earmark is not None and job.id not in starting and key_ not in begun and ours.isdisjoint(earmark.nodes):
            scheduler = snapshot.scheduler
            # one cycle that has begun before the last pilot left, and the next one, to its end
            until_s = snapshot.time_s + scheduler.interval_s + 2 * (scheduler.cycle_s or scheduler.max_time_s)
            until[key_] = before.until.get(key_, until_s)
    return TouchMemory(since, looked_s, frozenset(counted), until), tuple(found)


def _not_before(job: Job, looked_s: float | None) -> float | None:
    """Return the earliest start of a job that could not start at the look before, in whole seconds as Slurm's."""
    return None if looked_s is None else max(float(math.floor(looked_s)), job.submit_s)


def _waited(job: Job, before: TouchMemory) -> str:
    """Return the key of a job while it waited; "" if it is not known to have waited for pilots."""
    if not before.since:
        return ""
    keys = (key(job.id), job.id.partition("_")[0])
    return next((key_ for key_ in keys if key_ in before.since), "")
