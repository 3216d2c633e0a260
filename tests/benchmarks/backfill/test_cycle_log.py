"""Slurm's account of its backfill cycles is read as it was written."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.backfill.cycle_log import Failure, Planned, Start, cycles

pytestmark = pytest.mark.slow

LOG = """\
[2026-11-22T10:40:00.100] sched: Allocate JobId=4 NodeList=n9 #CPUs=4 Partition=batch
[2026-11-22T10:40:30.000] sched/backfill: _attempt_backfill: beginning
[2026-11-22T10:40:30.002] sched/backfill: _dump_job_test: Test JobId=5 at 2026-11-22T10:40:30 on n[1-4]
[2026-11-22T10:40:30.003] sched/backfill: _dump_job_sched: JobId=5 to start at 2026-11-22T10:42:00, \
end at 2026-11-22T10:45:00 on nodes n[1,3] in partition batch
[2026-11-22T10:40:30.003] sched/backfill: _dump_node_space_table: Begin:2026-11-22T10:40:30 End:2026-11-22T10:42:00
[2026-11-22T10:40:30.004] sched/backfill: _dump_job_test: Test JobId=6 at 2026-11-22T10:40:30 on n[1-4]
[2026-11-22T10:40:30.005] preempted JobId=132 has been killed to reclaim resources for JobId=6
[2026-11-22T10:40:30.006] preempted JobId=133 has been killed to reclaim resources for JobId=6
[2026-11-22T10:40:30.007] sched/backfill: _dump_job_sched: JobId=6 to start at 2026-11-22T10:40:30, \
end at 2026-11-22T10:43:30 on nodes n[2,4] in partition batch
[2026-11-22T10:40:30.008] sched/backfill: _dump_job_test: Test JobId=7 at 2026-11-22T10:40:30 on n[1-4]
[2026-11-22T10:40:30.009] sched/backfill: _start_job: Started JobId=7 in batch on n8
[2026-11-22T10:40:30.010] sched/backfill: _attempt_backfill: completed testing 3(3) jobs, usec=10123
[2026-11-22T10:40:40.000] preempted JobId=134 has been killed to reclaim resources for JobId=5
[2026-11-22T10:41:00.000] sched/backfill: _attempt_backfill: beginning
[2026-11-22T10:41:00.001] sched/backfill: _attempt_backfill: no jobs to backfill
"""

TESTED = "sched/backfill: _dump_job_test: Test JobId={} at 2026-11-22T10:40:00 on n[1-4]"
FAILED = (
    "sched/backfill: _dump_job_sched: JobId={} to start at 2026-11-22T10:40:00, end at 2026-11-22T10:43:00 "
    "on nodes n2 in partition batch"
)
RECORDED = sorted((Path(__file__).parent / "assets").glob("backfill-*.log"))


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-11-22T{text}").timestamp()


def test_a_cycle_is_read_with_what_it_planned_started_and_could_not_start() -> None:
    first, second = cycles(LOG.splitlines())
    assert (first.begin_s, first.end_s) == (at("10:40:30.000"), at("10:40:30.010"))
    assert first.tested == ("5", "6", "7")
    assert first.planned["5"] == Planned(at("10:42:00"), at("10:45:00"), ("n1", "n3"))
    assert first.started == {"7": Start(at("10:40:30.009"), ("n8",))}
    assert first.failed == {"6": Failure(at("10:40:30.007"), ("n2", "n4"), ("132", "133"))}
    assert "6" not in first.planned
    assert (second.begin_s, second.end_s, second.tested) == (at("10:41:00.000"), at("10:41:00.001"), ())


def cycle(*lines: str) -> str:
    begin, end = "00.000] sched/backfill: _attempt_backfill: beginning", "20.000] sched/backfill: _attempt_backfill: "
    return "\n".join(
        f"[2026-11-22T10:40:{line}" for line in (begin, *lines, end + "completed testing 1(1) jobs, usec=1")
    )


def test_what_the_main_scheduler_preempts_while_backfill_yields_is_not_backfills() -> None:
    text = cycle(
        "01.000] sched/backfill: _attempt_backfill: yielding locks after testing 1(1) jobs, usec=5",
        "01.100] preempted JobId=132 has been killed to reclaim resources for JobId=6",
        "02.000] " + TESTED.format(6),
        "02.001] preempted JobId=133 has been killed to reclaim resources for JobId=6",
        "02.002] " + FAILED.format(6),
        "03.000] preempted JobId=134 has been killed to reclaim resources for JobId=6",
    )
    (found,) = cycles(text.splitlines())
    assert found.failed == {"6": Failure(at("10:40:02.002"), ("n2",), ("133",))}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_cycles_preempt_start_plan_and_find_every_job_a_cycle_later(path: Path) -> None:
    lines = path.read_text().splitlines()
    found = cycles(lines)
    assert len(found) == sum("beginning" in line for line in lines)
    assert all(one.end_s is not None and one.end_s >= one.begin_s for one in found)
    started = [job for one in found for job in one.started]
    assert len(started) == sum("_start_job: " in line and "Started JobId" in line for line in lines) > 3
    assert any("_" in job for job in started)
    assert all(len(plan.nodes) > 0 and plan.start_s > one.begin_s for one in found for plan in one.planned.values())
    # In each half backfill preempts both pilots, each for a job that starts in the next cycle or the one after.
    failures = [(number, failure) for number, one in enumerate(found) for failure in one.failed.items()]
    assert sum(len(failure.preempted) for _, (_, failure) in failures) == 4
    for number, (job, _) in failures:
        later = {id_.partition("_")[0] for one in found[number + 1 : number + 3] for id_ in one.started}
        assert job in later
