"""Effects of harvesting on single jobs: preemptions, lost slots, starts a cycle late, earmarks."""

from __future__ import annotations

import pytest

from benchmarks.impact import slots
from benchmarks.impact.analysis.figures import figures
from benchmarks.impact.record import EarmarkRow, PilotRow
from tests.benchmarks.impact.analysis.test_figures import job, run

pytestmark = pytest.mark.slow


def test_a_job_that_starts_long_after_a_preemption_for_it_has_lost_its_slot() -> None:
    b = run("B", 0, job(0, 0.0, 1.0, 5.0, preempt_s=0.6), job(1, 0.0, 14.0, 20.0, preempt_s=2.0))
    found = figures([b])
    assert found["preempt_to_start_s"]["max"] == pytest.approx(12.0)
    assert found["preempt_to_start_s"]["mean"] == pytest.approx(6.2)
    assert (found["slots_lost"], found["slots_lost_share"]) == (1, 0.5)
    assert [one["job"] for one in found["slots_lost_why"]] == [1]


def test_giving_back_takes_from_the_preemption_to_the_allocation_by_the_main_scheduler() -> None:
    quick = job(0, 0.0, 1.0, 5.0, preempt_s=0.6, allocated_s=0.7, started_by="main")
    slow = job(1, 0.0, 1.2, 5.0, preempt_s=0.6, allocated_s=0.9, started_by="main")
    late = job(2, 0.0, 31.0, 40.0, preempt_s=0.6, allocated_s=30.9, started_by="backfill")
    found = figures([run("B", 0, quick, slow, late, job(3, 0.0, 1.0, 5.0, preempt_s=0.6))])["give_back_s"]
    assert (found["jobs"], found["median"], found["max"]) == (2, pytest.approx(0.2), pytest.approx(0.3))


def test_a_job_starts_on_harvested_nodes_where_a_pilot_had_one_while_it_waited_and_nobody_after() -> None:
    waited = job(0, 10.0, 30.0, 50.0, nodes=("n1", "n2"))
    left = PilotRow("n2", 5.0, 20.0)
    assert slots.on_harvested(run("B", 0, waited, pilots=(left,)), waited)
    before = PilotRow("n2", 5.0, 9.0)
    elsewhere = PilotRow("n3", 5.0, 20.0)
    assert not slots.on_harvested(run("B", 0, waited, pilots=(before, elsewhere)), waited)
    between = job(1, 0.0, 21.0, 25.0, nodes=("n2",))
    assert not slots.on_harvested(run("B", 0, waited, between, pilots=(left,)), waited)


def test_it_is_told_who_took_the_nodes_from_a_job_that_lost_its_slot() -> None:
    lost = job(0, 0.0, 14.0, 20.0, preempt_s=2.3, freed=("n1",))
    overtaker = job(1, 0.0, 3.0, 9.0)
    pilots = (PilotRow("n1", -5.0, 2.0), PilotRow("n1", 10.0, 14.0))
    assert figures([run("B", 0, lost, pilots=pilots[:1])])["slots_lost_by"] == {"nobody": 1}
    assert figures([run("B", 0, lost, overtaker, pilots=pilots[:1])])["slots_lost_by"] == {"regular": 1}
    assert figures([run("B", 0, lost, pilots=pilots)])["slots_lost_by"] == {"pilot": 1}


def test_jobs_that_backfill_could_not_start_when_it_would_have_are_counted_with_bftd_and_without() -> None:
    prompt = job(0, 0.0, 1.0, 5.0)
    a = run("A", 0, prompt, job(1, 0.0, 4.0, 9.0, failed_s=3.0))
    b = run("B", 0, job(0, 0.0, 31.0, 40.0, failed_s=1.0), job(1, 0.0, 4.0, 9.0, failed_s=3.0))
    found = figures([a, b])
    assert found["late_starts"] == {"a": 1, "b": 2}
    assert found["late_by_s"]["b"]["mean"] == pytest.approx((30.0 + 1.0) / 2)
    assert [(one["job"], one["took_s"]) for one in found["late_starts_why"]] == [(0, 30.0), (1, 1.0)]
    assert found["late_s_per_job"] == pytest.approx(31.0 / 2)


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
