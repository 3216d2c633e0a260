"""When a pilot must not be started: the pure part of keeping pilots out of regular jobs' way.

Slurm refuses to preempt twice in a row for the same job (KillWait + MessageTimeout seconds in between). A pilot that
takes a node which Slurm has just freed, or is about to free, for a queued job therefore locks that job out for 10 s and
more. So no pilot is started while a regular job waits that the scheduler has not placed yet, nor on a node that the
scheduler's plan needs soon.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from slurm_plugin.types import Job

# Reasons for which the scheduler does not even try to place a job, so that no plan is to be expected. Any other reason,
# unknown ones included, counts as waiting for a plan.
_NOT_SCHEDULABLE = re.compile(
    r"Dependency|BeginTime|JobHeld|.*held|JobHoldMaxRequeue|JobArrayTaskLimit|Assoc|QOS|InvalidAccount|InvalidQOS"
    r"|AccountNotAllowed|Max.*PerAccount|Partition|BadConstraints|DeadLine|Reservation|ReqResv|Licenses|BurstBuffer"
)


def is_regular(job: Job, pilot_partition: str) -> bool:
    """Say whether pilots must stay clear of a job: of any that does not ask for their partition alone."""
    return job.partition != (pilot_partition,)


def lacks_plan(job: Job, now_s: float) -> bool:
    """Say whether a job is pending, may start as far as rules go, and the scheduler has not said when and where.

    A start in the past without nodes is no plan: it is the time at which a job that had to wait became eligible.
    """
    if job.state != "PENDING" or _NOT_SCHEDULABLE.match(job.reason):
        return False
    return job.start_s is None or (not job.sched_nodes and job.start_s <= now_s)


def unplanned_since(before: Mapping[str, float], jobs: Iterable[Job], now_s: float) -> dict[str, float]:
    """Carry forward since when each job has been seen without a plan; jobs that got one, or left, are forgotten.

    The keys are job ids, of a job array the id of the whole. `before` is this function's last answer.
    """
    return {_whole(job): before.get(_whole(job), now_s) for job in jobs if lacks_plan(job, now_s)}


def guard(
    jobs: Iterable[Job],
    node: str,
    now_s: float,
    *,
    node_partitions: Collection[str],
    pilot_partition: str,
    since: Mapping[str, float],
    plan_wait_s: float = 30.0,
    min_window_s: float = 20.0,
) -> str | None:
    """Return why no pilot may start on `node` now, as a sentence, or None when one may.

    A regular pending job of any of the node's partitions holds pilots back for at most `plan_wait_s` after it was first
    seen without a plan (`since`, from `unplanned_since`). A job that is planned on the node within `min_window_s` holds
    them off that node; a start that has passed is one that Slurm is just carrying out.
    """
    for job in jobs:
        if job.state != "PENDING" or not is_regular(job, pilot_partition):
            continue
        if node in job.sched_nodes and job.start_s is not None and job.start_s - now_s <= min_window_s:
            return f"job {job.id} is planned on {node} in {max(0.0, job.start_s - now_s):.0f} s"
        shares_node = not set(job.partition).isdisjoint(node_partitions)
        if shares_node and lacks_plan(job, now_s) and now_s - since.get(_whole(job), now_s) < plan_wait_s:
            return f"job {job.id} waits without a plan ({job.reason or 'no reason given'})"
    return None


def _whole(job: Job) -> str:
    return job.id.split("_")[0]
