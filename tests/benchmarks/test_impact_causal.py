"""What harvesting does to single jobs: preemptions, lost slots, starts a cycle late, earmarks."""

from __future__ import annotations

from datetime import datetime

import pytest

from benchmarks.backfill_log import cycles
from benchmarks.impact import slots
from benchmarks.impact.figures import figures
from benchmarks.impact.record import EarmarkRow, PilotRow
from tests.benchmarks.test_impact_figures import job, run
from tests.support.messages import wording

pytestmark = pytest.mark.slow

BEGIN_S = datetime.fromisoformat("2026-11-22T10:40:00").timestamp()


def test_a_job_that_starts_long_after_a_preemption_for_it_has_lost_its_slot() -> None:
    b = run("B", 0, job(0, 0.0, 1.0, 5.0, preempt_s=0.6), job(1, 0.0, 14.0, 20.0, preempt_s=2.0))
    found = figures([b])
    assert found["preempt_to_start_s"]["max"] == pytest.approx(12.0)
    assert found["preempt_to_start_s"]["mean"] == pytest.approx(6.2)
    assert (found["slots_lost"], found["slots_lost_share"]) == (1, 0.5)
    assert [one["job"] for one in found["slots_lost_why"]] == [1]


def test_what_each_scheduler_of_slurm_started_after_a_preemption_is_told_apart() -> None:
    rows = [
        job(number, 0.0, 1.0 + took_s, 5.0, preempt_s=1.0, started_by=by)
        for number, (took_s, by) in enumerate([(0.1, "main"), (0.3, "main"), (1.0, "backfill"), (0.4, "main")])
    ]
    found = figures([run("B", 0, *rows)])
    by_scheduler = found["preempt_to_start_s"]["by_scheduler"]
    assert by_scheduler["main"]["max"] == pytest.approx(0.4)
    assert (by_scheduler["main"]["jobs"], by_scheduler["backfill"]["jobs"]) == (3, 1)
    assert (found["backfill_preempted"], found["backfill_preempted_share"]) == (1, 0.25)


def test_a_job_starts_on_harvested_nodes_where_a_pilot_had_one_while_it_waited_and_nobody_after() -> None:
    waited = job(0, 10.0, 30.0, 50.0, nodes=("n1", "n2"))
    left = PilotRow("n2", 5.0, 20.0)
    assert slots.on_harvested(run("B", 0, waited, pilots=(left,)), waited)
    before = PilotRow("n2", 5.0, 9.0)
    elsewhere = PilotRow("n3", 5.0, 20.0)
    assert not slots.on_harvested(run("B", 0, waited, pilots=(before, elsewhere)), waited)
    between = job(1, 0.0, 21.0, 25.0, nodes=("n2",))
    assert not slots.on_harvested(run("B", 0, waited, between, pilots=(left,)), waited)


def test_a_job_for_which_slurm_preempted_counts_as_on_harvested_nodes_though_it_never_got_them() -> None:
    row = job(0, 10.0, None, None, preempt_s=12.0)
    assert slots.on_harvested(run("B", 0, row), row)


def test_it_is_told_who_took_the_nodes_from_a_job_that_lost_its_slot() -> None:
    lost = job(0, 0.0, 14.0, 20.0, preempt_s=2.3, freed=("n1",))
    overtaker = job(1, 0.0, 3.0, 9.0)
    pilots = (PilotRow("n1", -5.0, 2.0), PilotRow("n1", 10.0, 14.0))
    assert figures([run("B", 0, lost, pilots=pilots[:1])])["slots_lost_by"] == {"nobody": 1}
    assert figures([run("B", 0, lost, overtaker, pilots=pilots[:1])])["slots_lost_by"] == {"regular": 1}
    assert figures([run("B", 0, lost, pilots=pilots)])["slots_lost_by"] == {"pilot": 1}


LOG = """\
[2026-11-22T10:40:05.000] sched/backfill: _attempt_backfill: beginning
[2026-11-22T10:40:05.010] sched/backfill: _attempt_backfill: completed testing 3(3) jobs, usec=10123
[2026-11-22T10:40:30.000] sched/backfill: _attempt_backfill: beginning
[2026-11-22T10:40:30.003] sched/backfill: _dump_job_sched: JobId=5 to start at 2026-11-22T10:42:00, \
end at 2026-11-22T10:45:00 on nodes n[1,3] in partition batch
[2026-11-22T10:40:30.010] sched/backfill: _attempt_backfill: completed testing 3(3) jobs, usec=10123
[2026-11-22T10:41:00.000] sched/backfill: _attempt_backfill: beginning
[2026-11-22T10:41:00.010] sched/backfill: _attempt_backfill: completed testing 3(3) jobs, usec=10123
"""


def test_a_lost_slot_is_explained_in_one_line_from_the_log() -> None:
    lost = job(
        0, 0.0, 75.04, None, preempt_s=12.0, freed=("n1", "n2"), preempted_by="main", nodes=("n3",),
        began_s=75.0, started_by="backfill",
    )  # fmt: skip
    overtaker = job(1, 0.0, 13.0, 90.0, nodes=("n2",), started_by="main")
    earmark = EarmarkRow(0, ("n1", "n2"), 4.0, None, "")
    text = slots.why_lost(
        run("B", 0, lost, overtaker, earmarks=(earmark,)), lost, "5", cycles(LOG.splitlines()), BEGIN_S
    )
    assert text == (
        wording("benchmarks.impact_slots.freed_by", freed="n[1-2]", preempted_by="main", preempt_s=12.0)
        + "; "
        + wording("benchmarks.impact_slots.job_got", number=1, nodes="n2", began_s=13, by=" by main")
        + "; "
        + wording(
            "benchmarks.impact_slots.cycle_of",
            after=2,
            begin_s=wording("benchmarks.impact_slots.planned_it", when="30.0 s", start_s=120, nodes="n[1,3]")
            + "; "
            + wording("benchmarks.impact_slots.earmarked", nodes="n[1-2]", since_s=4.0, until="and still")
            + "; started by backfill at 75.0",
        )
        + " on n3"
    )
    bare = slots.why_lost(run("B", 0, lost), lost, "6", cycles(LOG.splitlines()), BEGIN_S)
    assert (
        "nobody got them; "
        + wording("benchmarks.impact_slots.cycle_of", after=2, begin_s=30.0)
        + " "
        + wording("benchmarks.impact_slots.did_not_come_to_it")
        + "; "
        + wording("benchmarks.impact_slots.not_earmarked")
        in bare
    )


def test_jobs_that_backfill_could_not_start_when_it_would_have_are_counted_with_bftd_and_without() -> None:
    prompt = job(0, 0.0, 1.0, 5.0)
    a = run("A", 0, prompt, job(1, 0.0, 4.0, 9.0, failed_s=3.0))
    b = run("B", 0, job(0, 0.0, 31.0, 40.0, failed_s=1.0), job(1, 0.0, 4.0, 9.0, failed_s=3.0))
    found = figures([a, b])
    assert found["late_starts"] == {"a": 1, "b": 2}
    assert found["late_by_s"]["b"]["mean"] == pytest.approx((30.0 + 1.0) / 2)


def test_earmarks_are_counted_by_what_became_of_them_and_by_what_they_kept_while_jobs_started() -> None:
    earmarks = (
        EarmarkRow(0, ("n1", "n2"), 10.0, 20.0, "started", ("n2",), 14.5),
        EarmarkRow(1, ("n3",), -5.0, 10.0, "no longer fits"),
        EarmarkRow(1, ("n3",), 10.0, 15.0, "moved"),
        EarmarkRow(1, ("n4",), 15.0, 20.0, "backed off"),
        EarmarkRow(None, ("n4",), 90.0, None, ""),
    )
    # The last job starts at 50 s; 4 nodes.
    found = figures([run("B", 0, job(0, 0.0, 50.0, 60.0), earmarks=earmarks)])["earmarks"]
    assert (found["made"], found["led_to_start"], found["wasted"]) == (4, 1, 2)
    assert found["by_end"] == {"started": 1, "no longer fits": 1, "backed off": 1}
    assert found["kept_node_s"] == pytest.approx(14.5 + 10.0 + 5.0 + 5.0)
    assert found["wasted_node_s"] == pytest.approx(10.0 + 5.0)
    assert found["kept_share"] == pytest.approx(34.5 / 200.0)
    assert found["useful_share"] == pytest.approx(1 / 3)
