"""When a pilot must not be started: the pure part of keeping pilots out of regular jobs' way.

Slurm refuses to preempt twice in a row for the same job (KillWait + MessageTimeout seconds in between). A pilot that
takes a node which Slurm has just freed, or is about to free, for a queued job therefore locks that job out for 10 s and
more. So no pilot is started while a regular job waits that the scheduler has not placed yet, nor on a node that the
scheduler's plan needs soon.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from slurm_plugin.types import Job
from slurm_plugin.waiting import SiteRules, holds_growth, is_regular, lacks_plan, may_use, planned_on, whole


def guard(
    jobs: Iterable[Job],
    node: str,
    now_s: float,
    rules: SiteRules,
    *,
    node_partitions: Collection[str],
    pilot_partition: str,
    since: Mapping[str, float],
) -> str | None:
    """Return why no pilot may start on `node` now, as a sentence, or None when one may.

    A regular pending job of any of the node's partitions holds pilots back for at most `plan_wait_s` after it was first
    seen without a plan (`since`, from `unplanned_since`). A job that is planned on the node sooner than `min_window_s`
    holds them off that node; a start that has passed is one that Slurm is just carrying out.
    """
    for job in jobs:
        if job.state != "PENDING" or not is_regular(job, pilot_partition):
            continue
        if planned_on(job, node, now_s, rules.min_window_s):
            return f"job {job.id} is planned on {node} in {max(0.0, (job.start_s or now_s) - now_s):.0f} s"
        if (
            may_use(job, node_partitions)
            and lacks_plan(job, now_s, rules.min_window_s)
            and holds_growth(since.get(whole(job), now_s), now_s, rules.plan_wait_s)
        ):
            return f"job {job.id} waits without a plan ({_why(job)})"
    return None


def _why(job: Job) -> str:
    return f"it cannot be read: {job.unreadable}" if job.unreadable else job.reason or "no reason given"
