"""A site's log of jobs as the input of the simulated slurmctld.

What runs when the period begins is on its nodes from its real start on, and what waits then is eligible from then on,
so the queue begins as it was. Jobs have whole nodes. A log does not tell of features, reservations, outages, tiers and
limits: the simulation has none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from bftd.base.errors import UsageError
from bftd.base.format import counted, listed
from bftd.pool.backfill.model import Component, Numbering
from bftd.simulation.slurm.model import SimulatedJob, SimulatedPartition, SimulatedSite
from bftd.simulation.slurm.priority import Association, Multifactor
from bftd.simulation.trace import names
from bftd.simulation.trace.job_model import JobLog, LoggedJob
from slurm_plugin.read.scheduler import settings
from slurm_plugin.read.settings import is_nothing, number, options

Floats = NDArray[np.float64]

MOST_JOBS = 30_000
"""The most jobs that are simulated: the last ones of the log."""
MOST_NODES = 50_000
"""The most nodes of a simulated site."""
# A limit where there is none, as Slurm plans with it.
_UNLIMITED_S = 365 * 86_400.0
_SHORTEST_LIMIT_S = 60.0
# So many node sets are read at a time.
_TEXTS = 500
_PLAIN = Multifactor()


@dataclass(frozen=True, eq=False)
class Workload:
    """The site and its jobs; `logged` has the job of the log for each, and `waits_s` how long it really waited.

    Waits are from when a job was eligible to its start, and nan for jobs that do not count: those that were submitted
    before the period, and those that have not started. `slurm` says with which settings of Slurm.
    """

    site: SimulatedSite
    jobs: Sequence[SimulatedJob]
    logged: Sequence[LoggedJob]
    waits_s: Floats
    begin_s: float
    end_s: float
    slurm: str
    notes: Sequence[str]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The jobs that count."""
        return np.isfinite(self.waits_s)


def workload(log: JobLog, most: int | None = None) -> Workload:
    """Return the workload of a log, or of its last `most` jobs; raise UsageError if no job of it counts.

    The period ends with the last submission: what the machine does without new jobs is no part of it.
    """
    most = MOST_JOBS if most is None else most
    notes, begin_s = list(log.notes), log.begin_s
    if len(log.jobs) > most:
        begin_s = log.jobs[-most].submit_s
        notes.append(f"the log has {len(log.jobs):,} jobs: only the last {most:,} are simulated")
    jobs = [one for one in log.jobs if _is_there(one, begin_s)]
    gone = sum(one.start_s is None and one.end_s is not None for one in jobs)
    if gone:
        notes.append(f"{counted(gone, 'job')} left the queue without a start: the simulation has none of them")
        jobs = [one for one in jobs if one.start_s is not None or one.end_s is None]
    return _workload(replace(log, begin_s=begin_s), jobs, notes)


def _is_there(job: LoggedJob, begin_s: float) -> bool:
    if job.submit_s >= begin_s or job.end_s is None:
        return True
    return job.end_s > begin_s


def _workload(log: JobLog, logged: list[LoggedJob], notes: list[str]) -> Workload:
    logged.sort(key=lambda job: _submit_s(job, log.begin_s))
    by_partition: dict[str, list[LoggedJob]] = {}
    for job in logged:
        by_partition.setdefault(_partition(job), []).append(job)
    nodes = _names(logged)
    in_use = _most_in_use(logged)
    if in_use > len(nodes) and any(job.start_s is not None and not job.node_names for job in logged):
        nodes = []  # the jobs whose nodes are not named had others
    size = len(nodes) or log.size or in_use
    if size > MOST_NODES:
        raise UsageError(f"the log is of {size:,} nodes, and {MOST_NODES:,} are the most that are simulated")
    if in_use > size:
        notes.append(
            f"at a time jobs had {in_use:,} nodes of {size:,}: they share nodes, which the simulation does not"
        )
    site = SimulatedSite.of(size)
    numbering = Numbering.of(nodes) if nodes else site.numbering
    places: dict[str, int] = {}
    partitions: tuple[SimulatedPartition, ...] = ()
    if len(by_partition) > 1:
        places = {name: place for place, name in enumerate(by_partition)}
        masks = [numbering.mask(_names(jobs)) or site.everything for jobs in by_partition.values()]
        partitions = tuple(map(SimulatedPartition, masks))
    slurm, priority, known = _settings(log.slurm, logged)
    notes += known
    found = options(log.slurm.get("SchedulerParameters", ""))
    site = replace(
        site,
        sched_interval_s=float(max(0, number(found.get("sched_interval", "")) or 0) or site.sched_interval_s),
        youngest_first="preempt_youngest_first" in found,
        numbering=numbering,
        partitions=partitions,
        priority=priority,
        scheduler=settings(log.slurm) if log.slurm else site.scheduler,
        # the allocation counts, not the first line; a job's time has all that is between its start and its end
        delays=replace(site.delays, first_line_s=0.0),
    )
    jobs = [
        _job(place, job, site, log, (places[_partition(job)],) if places else ()) for place, job in enumerate(logged)
    ]
    waits_s = np.array([_wait_s(job, log.begin_s) for job in logged])
    if not np.isfinite(waits_s).any():
        raise UsageError("no job of the log has come and started in its period: there is no wait to reproduce")
    last_s = max(job.submit_s for job in logged)
    end_s = last_s if last_s > log.begin_s else max(log.end_s, log.begin_s + 1.0)
    return Workload(site, jobs, logged, waits_s, log.begin_s, end_s, slurm, tuple(notes))


def _submit_s(job: LoggedJob, begin_s: float) -> float:
    """Return when a job comes to the queue: one that ran when the period began, at its start."""
    return job.start_s if job.start_s is not None and _ran(job, begin_s) else job.submit_s


def _ran(job: LoggedJob, begin_s: float) -> bool:
    return job.start_s is not None and job.start_s < begin_s


def _job(place: int, job: LoggedJob, site: SimulatedSite, log: JobLog, partitions: tuple[int, ...]) -> SimulatedJob:
    limit_s = _UNLIMITED_S if job.limit_s is None else max(job.limit_s, _SHORTEST_LIMIT_S)
    run_s = limit_s
    if job.start_s is not None:
        run_s = (max(log.end_s, job.start_s) if job.end_s is None else job.end_s) - job.start_s
    mask = site.partitions[partitions[0]].mask if partitions else site.everything
    required = site.numbering.mask(names.listed(job.required)) & mask if job.required else 0
    return SimulatedJob(
        number=place,
        submit_s=_submit_s(job, log.begin_s),
        run_s=run_s,
        limit_s=limit_s,
        component=Component(mask, min(job.nodes, mask.bit_count()), required, within=mask),
        eligible_s=_submit_s(job, log.begin_s) if _ran(job, log.begin_s) else max(job.eligible_s or 0.0, log.begin_s),
        user=job.user,
        partitions=partitions,
        account=job.account,
        qos=job.qos,
    )


def _wait_s(job: LoggedJob, begin_s: float) -> float:
    if job.start_s is None or job.submit_s < begin_s:
        return nan
    return job.start_s - max(job.submit_s, job.eligible_s or 0.0)


def _partition(job: LoggedJob) -> str:
    return job.partition.partition(",")[0]


def _names(jobs: Sequence[LoggedJob]) -> list[str]:
    """Return the nodes that jobs ran on, in Slurm's order."""
    texts = sorted({job.node_names for job in jobs} - {""})
    found: dict[str, None] = {}
    for first in range(0, len(texts), _TEXTS):
        found |= dict.fromkeys(names.listed(",".join(texts[first : first + _TEXTS])))
    return names.listed(",".join(found)) if found else []


def _most_in_use(jobs: Sequence[LoggedJob]) -> int:
    """Return the most nodes that jobs had at a time, and at least what the widest asks for."""
    edges = sorted(
        (at_s, sign * job.nodes)
        for job in jobs
        if job.start_s is not None
        for at_s, sign in ((job.start_s, 1), (inf if job.end_s is None else job.end_s, -1))
    )
    widest = max((job.nodes for job in jobs), default=1)
    return max(widest, *accumulate(change for _, change in edges), 1)


def _settings(slurm: Mapping[str, str], jobs: Sequence[LoggedJob]) -> tuple[str, Multifactor | None, list[str]]:
    """Return the settings in words, the priorities, and what is not known of them."""
    if not slurm:
        return "Slurm's defaults, as the log does not tell the site's own settings", None, []
    parameters = slurm.get("SchedulerParameters", "")
    found = f"the site's own SchedulerParameters ({'none' if is_nothing(parameters) else parameters})"
    age, fair_share, job_size = (
        number(slurm.get(f"PriorityWeight{name}", "")) or 0 for name in ("Age", "Fairshare", "JobSize")
    )
    weights = {"age": age, "fair share": fair_share, "job size": job_size}
    if not slurm.get("PriorityType", "").endswith("multifactor") or not any(weights.values()):
        return f"{found}, first come first served", None, []
    users = dict.fromkeys((job.account, job.user) for job in jobs)
    accounts = dict.fromkeys(account for account, _ in users)
    priority = Multifactor(
        age=age,
        fair_share=fair_share,
        job_size=job_size,
        associations=(*map(Association, accounts), *(Association(account, user=user) for account, user in users)),
        max_age_s=_time_s(slurm.get("PriorityMaxAge", ""), _PLAIN.max_age_s),
        half_life_s=_time_s(slurm.get("PriorityDecayHalfLife", ""), _PLAIN.half_life_s),
        favor_small=slurm.get("PriorityFavorSmall", "").lower() == "yes",
    )
    named = listed([name for name, weight in weights.items() if weight])
    notes = ["all accounts and users have equal shares in the simulation"] if fair_share else []
    return f"{found}, multifactor priority by {named}", priority, notes


def _time_s(text: str, default_s: float) -> float:
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.read.parse import time_limit_s

    try:
        found_s = time_limit_s(text) if text else None
    except SlurmError:
        return default_s
    return default_s if found_s is None else found_s
