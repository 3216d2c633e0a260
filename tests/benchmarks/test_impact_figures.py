"""From the records of runs to figures: statistics, node-seconds, demands, tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.impact import occupancy, record, report, stats
from benchmarks.impact.demands import judged
from benchmarks.impact.figures import figures
from benchmarks.impact.record import EarmarkRow, JobRow, Kind, PilotRow, Run
from tests.support.messages import pattern, says, wording

pytestmark = pytest.mark.slow

NODES = ("n1", "n2")


def job(number: int, submit_s: float, start_s: float | None, end_s: float | None, **fields: Any) -> JobRow:
    row = JobRow(
        number, "plain", submit_s, start_s, None, None, None, 0, start_s, end_s, NODES if start_s is not None else ()
    )
    return replace(row, **fields)


def run(kind: Kind, pair: int, *jobs: JobRow, pilots: tuple[PilotRow, ...] = (), **fields: Any) -> Run:
    made = Run(
        recipe="default",
        release="22.05.8",
        kind=kind,
        pair=pair,
        seed=1,
        count=len(jobs),
        nodes=4,
        training="sleeping" if kind == "B" else "none",
        length_s=100.0,
        controller_cpu_s=1.0,
        rpcs={"REQUEST_NODE_INFO": 100, "REQUEST_JOB_INFO": 200, "REQUEST_PARTITION_INFO": 300},
        plan_reads=100,
        jobs=jobs,
        pilots=pilots,
    )
    return replace(made, **fields)


def test_waits_of_the_same_job_are_compared_and_a_job_that_never_started_has_waited_to_the_end() -> None:
    a = run("A", 0, job(0, 0.0, 1.0, 5.0), job(1, 10.0, 12.0, 20.0))
    b = run("B", 0, job(0, 0.0, 1.5, 5.0), job(1, 10.0, None, None))
    found = figures([a, b])
    assert found["ba_mean_diff_s"] == pytest.approx((0.5 + 88.0) / 2)
    assert found["ba_max_diff_s"] == pytest.approx(88.0)
    assert found["never_started"] == 1


def test_runs_without_bftd_are_compared_with_each_other_in_both_directions() -> None:
    runs = [run("A", pair, job(0, 0.0, 1.0 + pair, 5.0)) for pair in range(3)]
    found = figures(runs)
    assert found["aa_pairs"] == 3
    assert found["aa_mean_diff_s"] == pytest.approx((1 + 2 + 1) / 3)
    low, high = found["aa_mean_diff_interval_s"]
    assert (low, high) == pytest.approx((-2.0, 2.0))


def test_streams_of_several_seeds_are_compared_each_with_its_own() -> None:
    runs = [
        run(kind, pair, job(0, 0.0, 1.0 + 10 * seed + pair + (kind == "B"), 50.0), seed=seed)
        for seed in (1, 2)
        for pair in range(2)
        for kind in ("A", "B")
    ]
    found = figures(runs)
    assert (found["pairs"], found["seeds"], found["aa_pairs"]) == (4, [1, 2], 2)
    assert found["aa_mean_diff_s"] == pytest.approx(1.0)
    assert found["ba_mean_diff_by_pair_s"] == pytest.approx([1.0] * 4)
    assert report.summary(runs, measure_scale=False, log=print)["default"]["pairs"] == 4


def test_waits_with_bftd_are_compared_with_those_after_a_start_that_displaces_jobs_as_well() -> None:
    def started(recipe: str, seed: int, pair: int, start_s: float) -> Run:
        return run("B", pair, job(0, 0.0, start_s, 50.0), seed=seed, recipe=recipe)

    runs = [started("default-displaced", seed, 0, 10.0 * seed) for seed in (1, 2)]
    runs += [started("default", 1, 0, 13.0), started("default", 1, 1, 15.0), started("default", 2, 0, 21.0)]
    found = report.summary(runs, measure_scale=False, log=print)["default"]
    assert found["bd_mean_diff_by_seed_s"] == pytest.approx([4.0, 1.0])
    assert found["bd_mean_diff_s"] == pytest.approx(2.5)


def test_jobs_that_began_by_their_plan_are_compared_by_how_late_they_were() -> None:
    def planned(number: int, start_s: float, **fields: Any) -> JobRow:
        return job(number, 0.0, start_s, 60.0, **{"planned_s": 30.0, "last_plan_s": 30.0, **fields})

    a = run("A", 0, planned(0, 30.1), planned(1, 29.9), *(job(number, 0.0, 44.0, 60.0) for number in (2, 3, 4)))
    b = run(
        "B",
        0,
        planned(0, 30.4),
        planned(1, 30.0),
        planned(2, 44.0, preempt_s=37.0),
        planned(3, 44.0, last_plan_s=44.0),
        planned(4, 20.0),
    )
    found = figures([a, b])
    assert found["planned_jobs"] == {"a": 2, "b": 2}
    assert found["planned_mean_diff_s"] == pytest.approx(0.2)


def test_harvested_is_what_pilots_had_of_what_was_idle_without_them() -> None:
    # 4 nodes for 40 s until the last start; the job of two nodes leaves 4 x 40 - 2 x 30 = 100 node-seconds idle.
    jobs = (job(0, 0.0, 0.0, 30.0), job(1, 0.0, 40.0, 50.0))
    pilots = (PilotRow("n3", -5.0, 30.0), PilotRow("n4", 20.0, 90.0))
    found = figures([run("A", 0, *jobs), run("B", 0, *jobs, pilots=pilots)])
    assert found["idle_share"] == pytest.approx(100 / 160)
    assert found["harvested_share"] == pytest.approx((30 + 20) / 100)


def test_a_queue_stands_while_a_job_that_could_run_waits() -> None:
    first = job(0, 0.0, 0.1, 30.0)
    waiting = job(1, 5.0, 35.0, 40.0)
    dependent = job(2, 6.0, 50.0, 60.0, depends_on=1)
    reserved = job(3, 0.0, 99.0, None, kind="reservation")
    assert occupancy.queue_intervals(run("A", 0, first, waiting, dependent, reserved)) == [(5.0, 35.0), (40.0, 50.0)]


def test_the_pollers_requests_are_counted_without_the_benchmarks_own() -> None:
    one = run("A", 0, job(0, 0.0, 1.0, 2.0))
    assert figures([one])["rpc_per_poll"] == pytest.approx(4.0)
    more = {"REQUEST_STATS_INFO": 4, "REQUEST_BUILD_INFO": 2}  # one of the statistics is the benchmark's own
    assert figures([replace(one, rpcs={**one.rpcs, **more})])["rpc_per_poll"] == pytest.approx(4.05)


def test_regression_the_greeting_of_a_look_at_the_settings_is_a_request_of_the_pollers_too() -> None:
    one = run("A", 0, job(0, 0.0, 1.0, 2.0))
    greeted = replace(one, rpcs={**one.rpcs, "REQUEST_BUILD_INFO": 2, "REQUEST_PING": 2})
    assert figures([greeted])["rpc_per_poll"] == pytest.approx(4.04)


INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair))))


@given(INTERVALS, st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair))))
@settings(deadline=None)
def test_overlap_with_a_union_counts_every_second_once(windows: list[tuple[int, int]], one: tuple[int, int]) -> None:
    seconds = {second for begin, end in windows for second in range(begin, end)}
    joined = occupancy.union(windows)
    assert sum(end - begin for begin, end in joined) == len(seconds)
    assert occupancy.overlap_s(one, joined) == len(seconds & set(range(*one)))


def test_the_interval_of_a_mean_holds_the_mean_and_is_the_same_each_time() -> None:
    values = [0.1, 0.4, 0.2, 5.0, 0.3]
    interval = stats.mean_interval(values)
    assert interval is not None
    assert interval[0] < 1.2 < interval[1]
    assert interval == stats.mean_interval(values)
    assert stats.mean_interval([1.0]) is None


def test_the_interval_of_like_runs_is_the_same_in_both_directions() -> None:
    interval = stats.pair_mean_interval([[1.0] * 10, [2.0] * 10])
    assert interval == pytest.approx((-2.0, 2.0))


def test_a_demand_is_met_missed_or_not_measured() -> None:
    quiet = run("A", 0, job(0, 0.0, 1.0, 5.0))
    late = run("B", 0, job(0, 0.0, 30.0, 35.0, preempt_s=1.0))
    rows = {row["demand"]: row["met"] for row in judged("default", figures([quiet, late]))}
    assert rows["slots lost"] is False
    assert rows[wording("benchmarks.impact_demands.requests_a_poll")] is True
    assert rows[wording("benchmarks.impact_demands.displaced")] is None


def test_each_recipe_is_held_to_demands_of_its_own() -> None:
    runs = [run("A", 0, job(0, 0.0, 1.0, 5.0)), run("B", 0, job(0, 0.0, 1.0, 5.0))]
    told = {name: {row["demand"]: row["bound"] for row in judged(name, figures(runs))} for name in ("default", "slow")}
    assert (told["default"]["held"], told["slow"]["held"]) == (0.85, 0.74)
    assert "slots lost" not in told["slow"]
    assert judged("sbatch", figures(runs)) == []


def test_the_makespan_is_to_the_end_of_the_last_job() -> None:
    a = run("A", 0, job(0, 0.0, 1.0, None, run_s=99.0), job(1, 0.0, 50.0, None, run_s=10.0))
    b = run("B", 0, job(0, 0.0, 3.0, None, run_s=99.0), job(1, 0.0, 50.0, None, run_s=10.0))
    found = figures([a, b])
    assert found["makespan_s"] == {"a": 100.0, "b": 102.0}
    assert found["makespan_longer_share"] == pytest.approx(0.02)


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = run(
        "B",
        0,
        job(0, 0.0, 1.0, 5.0, preempt_s=0.6, preempted_by="backfill", failed_s=0.6, freed=("n3",), lost="why"),
        pilots=(PilotRow("n3", 1.0, 2.0),),
        earmarks=(EarmarkRow(0, ("n3", "n4"), 0.5, None, "", ("n3",)), EarmarkRow(None, ("n1",), 0.5, 2.5, "gone")),
        cycles_s=(0.01, 9.5),
    )
    record.save(made, tmp_path / "runs" / "one.jsonl")
    assert record.load_all(tmp_path / "runs") == [made]


def test_a_file_that_is_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"row": "job"}\n')
    with pytest.raises(ValueError, match=pattern("benchmarks.impact_record.not_a_run", path="other.jsonl")):
        record.load(tmp_path / "other.jsonl")


def test_regression_a_run_of_older_recipes_is_not_taken_for_one_of_the_same_name(tmp_path: Path) -> None:
    record.save(run("A", 0, job(0, 0.0, 1.0, 5.0)), tmp_path / "one.jsonl")
    text = (tmp_path / "one.jsonl").read_text()
    (tmp_path / "one.jsonl").write_text(text.replace(f', "format": {record.FORMAT}', ""))
    with pytest.raises(ValueError, match=pattern("benchmarks.impact_record.older_version")):
        record.load_all(tmp_path)


def test_the_tables_tell_of_every_recipe_and_demand() -> None:
    earmark = EarmarkRow(0, ("n3",), 0.5, 1.0, "started")
    lost = job(0, 0.0, 9.0, 12.0, preempt_s=1.0, freed=("n1",), lost="nobody got them")
    runs = [run(kind, pair, job(0, 0.0, 1.0, 5.0)) for kind in ("A", "B") for pair in range(2)]
    runs += [
        run("B", pair, lost, recipe="default-no-earmarks", earmarks=(earmark,), note="it was late") for pair in range(2)
    ]
    found = report.summary(runs, measure_scale=False, log=lambda text: None)
    assert found["default"]["pairs"] == 2
    assert found["slow"] is None
    text = report.markdown(found)
    assert "| default | 1 | 22.05.8 | 2 (1) |" in text
    # Without bftd it is the same, whether bftd would earmark nodes or not.
    assert "| default-no-earmarks | 1 | 22.05.8 | 2 (1) | 2 | 2 (2 to nobody) | 8.00 / 8.00 (2 jobs) |" in text
    assert "| default-no-earmarks | 1 | 22.05.8 | 2 (1) | 2 | 2 | 0 |" in text
    assert "| default-no-earmarks | 22.05.8 | 1.0 | 0 | 8.00 | 0 | nobody got them |" in text
    assert says(
        text,
        "benchmarks.impact_figures.note",
        kind="| default-no-earmarks | 22.05.8 | B",
        seed=1,
        pair=1,
        note="it was late |",
    )
    assert (
        "| default | " + wording("benchmarks.impact_demands.requests_a_poll") + " | 4.00 | at most 4.07 | met |" in text
    )
