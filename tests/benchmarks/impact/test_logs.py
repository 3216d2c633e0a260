"""Lines of Slurm's own that the impact benchmark reads."""

from __future__ import annotations

from datetime import datetime

import pytest

from benchmarks.impact import logs

pytestmark = pytest.mark.slow

LOG = """\
[2026-11-21T11:37:08.072] preempted JobId=132 has been killed to reclaim resources for JobId=95
[2026-11-21T11:37:08.096] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=132 uid 0
[2026-11-21T11:37:09.073] sched/backfill: _start_job: Started JobId=110 in batch on n16
[2026-11-21T11:37:23] preempted JobId=134 has been killed to reclaim resources for JobId=107
[2026-11-21T11:37:24.001] slurmctld: preempted JobId=135 has been requeued to reclaim resources for JobId=108
"""

JOBS = (
    "JobId=7 JobName=regular-3 UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=429490 JobState=COMPLETED "
    "Reason=None Dependency=(null) RunTime=00:00:20 StartTime=1795261000 EndTime=1795261020 Partition=batch "
    "NodeList=n[4,13] BatchHost=n4 NumNodes=2\n"
    "JobId=8 JobName=bft-pilot JobState=RUNNING StartTime=1795261005 EndTime=1795264605 Partition=elastic NodeList=n1\n"
    "JobId=9 JobName=regular-4 JobState=PENDING StartTime=1795261500 EndTime=Unknown Partition=batch NodeList=(null)\n"
    "JobId=10 JobName=regular-5 JobState=CANCELLED StartTime=2026-11-21T11:36:40 EndTime=2026-11-21T11:36:41 "
    "Partition=batch NodeList=\n"
)

SDIAG = """\
*******************************************************
sdiag output at Sat Nov 21 11:37:08 2026 (1795261028)
*******************************************************
Server thread count:  1
Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:546    ave_time:62     total_time:34245
\tREQUEST_NODE_INFO                       ( 2007) count:182    ave_time:290    total_time:52901
Remote Procedure Call statistics by user
\troot            (       0) count:728    ave_time:119    total_time:87146
Pending RPC statistics
\tNo pending RPCs
"""


def test_a_preemption_is_read_with_its_time_victim_and_cause() -> None:
    found = logs.preemptions(LOG.splitlines())
    assert [(one.victim, one.by) for one in found] == [("132", "95"), ("134", "107"), ("135", "108")]
    assert found[0].at_s == datetime(2026, 11, 21, 11, 37, 8, 72000).timestamp()
    assert found[1].at_s == datetime(2026, 11, 21, 11, 37, 23).timestamp()


def test_the_scheduler_that_started_a_job_is_read() -> None:
    said = [
        "[2026-11-21T13:01:19.974] sched: Allocate JobId=28 NodeList=n[1-6] #CPUs=44 Partition=batch",
        "[2026-11-21T13:01:22.585] sched/backfill: _start_job: Started JobId=29 in batch on n8",
        "[2026-11-21T13:01:22.600] sched: _slurm_rpc_allocate_resources JobId=30 NodeList=n9 usec=211",
    ]
    assert logs.starters(said) == {"28": "main", "29": "backfill"}


def test_jobs_are_read_with_nodes_and_only_the_times_that_have_come() -> None:
    ended, running, pending, cancelled = logs.jobs(JOBS)
    assert (ended.start_s, ended.end_s, ended.nodes) == (1795261000.0, 1795261020.0, ("n4", "n13"))
    assert (running.name, running.end_s) == ("bft-pilot", None)
    assert (pending.start_s, pending.end_s, pending.nodes) == (None, None, ())
    assert cancelled.start_s == datetime(2026, 11, 21, 11, 36, 40).timestamp()


def test_requests_are_counted_by_type_and_not_by_user() -> None:
    assert logs.rpc_counts(SDIAG) == {"REQUEST_PARTITION_INFO": 546, "REQUEST_NODE_INFO": 182}
