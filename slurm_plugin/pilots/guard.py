"""The rule that tells when a pilot must not be started; the pure part of keeping pilots out of regular jobs' way.

Slurm refuses to preempt twice in a row for the same job (KillWait + MessageTimeout seconds in between). So a pilot that
takes a node which Slurm has just freed, or is about to free, for a queued job locks that job out for 10 s and more.
Therefore no pilot is started on a node that the scheduler's plan needs soon. Nor is one started where a regular job may
start that the scheduler has not placed yet and that the daemon had not seen when it granted the node: for all other
jobs it earmarked nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from slurm_plugin.pilots.pending_reasons import (
    Rules,
    is_being_started,
    is_news,
    is_regular,
    lacks_plan,
    may_use,
    planned_on,
    waits_for_backfill,
)
from slurm_plugin.read.types import Job


def guard(
    jobs: Iterable[Job],
    node: str,
    now_s: float,
    rules: Rules,
    *,
    node_partitions: Collection[str],
    pilot_partition: str,
    since: Mapping[str, float],
) -> str | None:
    """Return the reason why no pilot may start on `node` now, as a sentence, or None if one may.

    A regular pending job that is planned on the node within `min_window_s` keeps pilots off that node; a planned start
    in the past is one that Slurm is just carrying out. A job without a plan, of any of the node's partitions, keeps
    them off if it came after the daemon's look, unless only backfill can start it and no cycle comes before the daemon
    has looked again. So does a job that came after the look and is just being started, whatever nodes its plan names.
    `since` is from `undated_since`.
    """
    for job in jobs:
        if job.state != "PENDING" or not is_regular(job, pilot_partition):
            continue
        if planned_on(job, node, now_s, rules.min_window_s):
            return f"job {job.id} is planned on {node} in {max(0.0, (job.start_s or now_s) - now_s):.0f} s"
        # its start time stays "now" until it has started, so only its submission time tells whether it is new
        if (
            job.submit_s >= math.floor(rules.looked_s)
            and may_use(job, node_partitions)
            and is_being_started(job, now_s)
            and node not in job.request.excluded
        ):
            return f"job {job.id} has just come and is being started, and may count on {node}"
        if (
            is_news(job, now_s, rules.looked_s, since)
            and may_use(job, node_partitions)
            and lacks_plan(job, now_s, rules.min_window_s)
            and not (now_s < rules.calm_s and waits_for_backfill(job))
        ):
            return f"job {job.id} has just come and waits without a plan ({_why(job)})"
    return None


def _why(job: Job) -> str:
    return f"it cannot be read: {job.unreadable}" if job.unreadable else job.reason or "no reason given"
