"""From the records of runs to figures: statistics, node-seconds, demands, tables."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.impact.analysis import occupancy, report, stats
from benchmarks.impact.analysis.demands import judged
from benchmarks.impact.analysis.figures import figures
from benchmarks.impact.record import JobRow, Kind, PilotRow, Run

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
    assert found["ba"]["mean_s"] == pytest.approx((0.5 + 88.0) / 2)
    assert found["ba_max_diff_s"] == pytest.approx(88.0)
    assert found["never_started"] == 1


def test_runs_without_bftd_are_compared_with_each_other_in_both_directions() -> None:
    runs = [run("A", pair, job(0, 0.0, 1.0 + pair, 5.0)) for pair in range(3)]
    found = figures(runs)
    assert found["aa_pairs"] == 3
    assert found["aa_mean_diff_s"] == pytest.approx((1 + 2 + 1) / 3)
    assert found["aa_max_diff_s"] == pytest.approx(2.0)


def test_waits_with_bftd_are_compared_with_those_after_a_start_that_displaces_jobs_as_well() -> None:
    def started(recipe: str, seed: int, pair: int, start_s: float) -> Run:
        return run("B", pair, job(0, 0.0, start_s, 50.0), seed=seed, recipe=recipe)

    runs = [started("default-displaced", seed, 0, 10.0 * seed) for seed in (1, 2)]
    runs += [started("default", 1, 0, 13.0), started("default", 1, 1, 15.0), started("default", 2, 0, 21.0)]
    found = report.summary(runs, measure_scale=False, log=print)["default"]
    assert found["bd"]["by_seed_s"] == pytest.approx({1: 4.0, 2: 1.0})
    assert found["bd"]["mean_s"] == pytest.approx(2.5)


def test_a_stream_counts_once_however_many_runs_and_jobs_it_has() -> None:
    def started(kind: Kind, seed: int, pair: int, *starts_s: float) -> Run:
        return run(kind, pair, *(job(number, 0.0, start_s, 50.0) for number, start_s in enumerate(starts_s)), seed=seed)

    runs = [started("A", 1, 0, 10.0, 20.0), started("A", 1, 1, 12.0, 22.0), started("B", 1, 0, 16.0, 22.0)]
    runs += [started("A", 2, 0, 30.0, 30.0), started("B", 2, 0, 30.0, 31.0), started("B", 2, 1, 31.0, 32.0)]
    runs += [started("A", 3, 0, 30.0, 30.0)]
    assert figures(runs)["ba"]["by_seed_s"] == pytest.approx({1: 3.0, 2: 1.0})
    assert figures(runs)["ba"]["mean_s"] == pytest.approx(2.0)
    more = [replace(one, pair=one.pair + 9) for one in runs if one.seed == 1]
    assert figures([*runs, *more])["ba"] == figures(runs)["ba"]


def test_the_interval_and_the_power_are_those_of_as_many_streams() -> None:
    four = stats.of_streams([21.0, 2.0, 18.0, 12.0], 147.0)
    assert four["mean_s"] == pytest.approx(13.25)
    assert four["interval_s"] == pytest.approx((13.25 - 13.3, 13.25 + 13.3), abs=0.1)
    # The spread of four is that of chance: by the one that the simulation has, 0 is not told from 13 s.
    assert (four["spread_of"], four["spread_s"]) == ("simulation", pytest.approx(13.0))
    assert four["tells_s"] == pytest.approx(20.7, abs=0.1)
    assert four["streams_needed"] == 289

    many = stats.of_streams([-12.5, 12.5] * 150, 147.0)
    assert (many["spread_of"], many["streams_needed"]) == ("streams", 268)
    assert many["interval_s"] == pytest.approx((-1.42, 1.42), abs=0.01)
    assert many["tells_s"] == pytest.approx(many["interval_s"][1])


@pytest.mark.parametrize("differences", [[], [24.3]])
def test_fewer_than_two_streams_have_no_interval_and_tell_nothing(differences: list[float]) -> None:
    found = stats.of_streams(differences, 147.0 if differences else None)
    assert (found["interval_s"], found["tells_s"]) == (None, None)


@given(shift=st.floats(-100.0, 100.0), values=st.lists(st.floats(-50.0, 50.0), min_size=2, max_size=40))
def test_a_constant_cost_moves_the_interval_and_leaves_its_width(shift: float, values: list[float]) -> None:
    before, after = (stats.of_streams([value + by for value in values], 147.0) for by in (0.0, shift))
    assert after["interval_s"] == pytest.approx(tuple(end + shift for end in before["interval_s"]), abs=1e-6)
    assert after["tells_s"] == pytest.approx(before["tells_s"], abs=1e-6)


def test_the_interval_holds_the_truth_in_95_of_100_cases() -> None:
    random = Random(1)
    for streams in (2, 4, 12):
        drawn = [stats.of_streams([random.gauss(1.5, 13.0) for _ in range(streams)], 147.0) for _ in range(4000)]
        held = sum(low <= 1.5 <= high for low, high in (one["interval_s"] for one in drawn)) / len(drawn)
        assert held == pytest.approx(0.95, abs=0.012)


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


def test_a_demand_is_met_missed_or_not_measured() -> None:
    quiet = run("A", 0, job(0, 0.0, 1.0, 5.0))
    late = run("B", 0, job(0, 0.0, 30.0, 35.0, preempt_s=1.0))
    rows = {row["demand"]: row["met"] for row in judged("default", figures([quiet, late]))}
    assert rows["slots lost"] is False
    assert True in rows.values()
    without = {row["demand"]: row["met"] for row in judged("default", figures([quiet]))}
    assert without["slots lost"] is None


def test_waits_of_few_streams_are_no_demand_since_a_cost_of_one_percent_would_meet_most_bounds() -> None:
    found = figures([run("A", 0, job(0, 0.0, 1.0, 5.0)), run("B", 0, job(0, 0.0, 2.0, 6.0))])
    far = {**found, "ba": stats.of_streams([1000.0] * 4, 147.0), "bd": {}, "makespan_longer_share": 9.0}
    assert judged("default", far) == judged("default", found)
