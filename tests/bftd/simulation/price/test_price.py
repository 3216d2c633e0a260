"""The price of harvesting for the jobs of a log, and when there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.simulation.price import price, pricing
from bftd.simulation.price.model import Price, Reproduced
from bftd.simulation.price.waits import WEEKS_LEAST, Waits
from bftd.simulation.price.workload import Workload, workload
from bftd.simulation.slurm.courses import Course
from bftd.simulation.trace.job_model import JobLog, LoggedJob
from tests.bftd.simulation.price.making import BEGIN_S, busy, log_of, logged, priced
from tests.support.messages import says

WEEK_S = 7 * 86_400.0


@pytest.fixture(autouse=True)
def few_courses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bftd.simulation.price.pricing.COURSES", 3)


def test_a_log_that_slurm_made_is_reproduced_and_has_a_price() -> None:
    heard: list[float] = []
    found = price(busy(), jobs=1, progress=heard.append)
    assert (found.why_not, found.courses, found.nodes, found.jobs) == ("", 3, 8, 40)
    assert all(one.within for one in found.checks)
    everyone = found.waits[0]
    assert everyone.low_s <= everyone.mean_s <= everyone.high_s
    assert everyone.of_s == pytest.approx(found.checks[0].simulated_s)
    assert found.settings[0].wait == everyone
    assert {one.courses for one in found.settings} == {3}
    hours = found.period_s / 3600.0
    assert 0.0 < found.node_hours_per_week < 8 * 168.0
    assert 0.0 < found.node_hours_per_week * hours / 168.0 < 8 * hours
    assert 0.0 < found.delayed_share <= 1.0
    assert found.direct_s >= 0.0
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (told["reproduced"], told["waits"][0]["mean_s"]) == (True, everyone.mean_s)


def test_waits_that_the_simulation_does_not_reproduce_have_no_price() -> None:
    log = busy()
    late = tuple(
        replace(job, start_s=job.start_s + 7200.0, end_s=job.end_s + 7200.0)
        for job in log.jobs
        if job.start_s is not None and job.end_s is not None
    )
    found = price(replace(log, jobs=late, end_s=log.end_s + 7200.0), jobs=1)
    assert says(found.why_not, "whatif.price.not_reproduced")
    assert (found.waits, found.settings, found.worst) == ((), (), ())
    assert not found.checks[0].within
    assert found.checks[0].logged_s > found.checks[0].simulated_s
    assert found.to_json()["reproduced"] is False


def test_a_mean_is_reproduced_within_a_tenth_or_a_second() -> None:
    assert Reproduced("", 50, 100.0, 110.0).within
    assert not Reproduced("", 50, 100.0, 89.0).within
    assert Reproduced("", 50, 0.0, 1.0).within
    assert not Reproduced("", 50, 2.0, 3.5).within


@pytest.mark.parametrize(
    "jobs",
    [
        (logged(1, 0.0, 3.0, 60.0),),
        (logged(1, 0.0, 0.0, 0.0), logged(2, 0.0, 0.0, 0.0, limit_s=0.0)),
        (logged(7, 0.0, 1.0, 30.0), logged(7, 40.0, 41.0, 90.0)),
        (logged(1, 0.0, 1.0, 30.0), logged(2, 30_000.0, 30_001.0, 30_020.0)),
        (logged(1, 0.0, 1.0, None), logged(2, 5.0, None, None), logged(3, 6.0, None, 9.0)),
        (logged(1, 0.0, 1.0, 2.0, eligible_s=None),),
    ],
    ids=["one job", "no seconds", "one id twice", "a gap", "no ends", "never eligible"],
)
def test_an_odd_log_has_a_bounded_answer(jobs: tuple[LoggedJob, ...]) -> None:
    found = price(log_of(*jobs), jobs=1)
    assert found.checks
    assert found.checks[0].jobs == found.jobs
    json.dumps(found.to_json(), allow_nan=False)


def test_a_log_without_a_start_has_a_reason_in_place_of_a_price() -> None:
    assert says(price(log_of(logged(1, 0.0, None, 9.0)), jobs=1).why_not, "whatif.price.no_wait")
    assert says(price(log_of(), jobs=1).why_not, "whatif.price.no_wait")


def test_without_time_the_answer_is_that_it_takes_too_long() -> None:
    heard: list[float] = []
    found = price(busy(), jobs=1, limit_s=0.0, progress=heard.append)
    assert says(found.why_not, "whatif.price.too_slow", least=3, most=1)
    assert heard == sorted(heard)


def test_where_courses_take_too_long_the_last_jobs_of_the_log_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def slow(load: Workload, _: object) -> tuple[Price | None, float]:
        counts.append(int(load.counted.sum()))
        return (None, 0.4) if len(counts) == 1 else (priced(), 1.0)

    monkeypatch.setattr("bftd.simulation.price.pricing._priced", slow)
    log = log_of(*(logged(number, 60.0 * number, 60.0 * number + 5.0, 60.0 * number + 9.0) for number in range(600)))
    found = price(log)
    assert counts == [600, 120]
    assert says(found.notes, "whatif.price.too_many", jobs=600, most=120)


def test_courses_that_do_not_end_in_time_are_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pricing._Runner.run

    def run(self: Any, load: Any, wanted: Any, part: float, until: float) -> Any:
        found, reached = real(self, load, wanted, part, until)
        monkeypatch.setattr(pricing, "COURSES", 4)
        return (dict(list(found.items())[:5]) if until == 1.0 else found), reached

    monkeypatch.setattr(pricing._Runner, "run", run)
    found = price(busy(jobs=10), jobs=1)
    assert [(one.name, one.courses) for one in found.settings] == [("", 3), ("earmark false", 3)]
    assert says(found.notes, "whatif.price.courses_left_out", ended=3, courses=4)
    assert says(found.notes, "whatif.price.setting_left_out", least=3, setting="give-back 3 s")


def _waits(without: list[list[float]], with_bftd: list[list[float]], apart_s: float = 60.0) -> Waits:
    jobs = len(without[0])
    log = log_of(
        *(logged(number, apart_s * number, apart_s * number, apart_s * number + 9.0) for number in range(jobs)),
        hours=1.0 + apart_s * jobs / 3600.0,
    )
    courses = [[Course(tuple(waits), 0.0) for waits in each] for each in (without, with_bftd)]
    return Waits(workload(log), *courses)


def test_a_delay_of_every_job_is_the_price_and_its_interval_has_no_width() -> None:
    found = _waits([[10.0, 20.0]] * 3, [[11.0, 21.0]] * 3)
    everyone = found.all()
    assert (everyone.of_s, everyone.mean_s, everyone.low_s, everyone.high_s, everyone.null_s) == (
        15.0,
        1.0,
        1.0,
        1.0,
        0.0,
    )
    assert found.unit == "course"


def test_a_simulated_wait_begins_when_the_job_is_eligible() -> None:
    log = log_of(logged(1, 0.0, 100.0, 200.0, eligible_s=BEGIN_S + 70.0))
    assert Waits(workload(log), [Course((100.0,), 0.0)]).reproduced() == [Reproduced("", 1, 30.0, 30.0)]


def test_the_null_band_is_the_spread_of_courses_without_bftd() -> None:
    everyone = _waits([[10.0], [12.0], [14.0]], [[10.0], [12.0], [14.0]]).all()
    assert (everyone.mean_s, everyone.high_s) == (0.0, 0.0)
    assert everyone.null_s == pytest.approx(2.92 * np.sqrt(2.0) * 2.0, rel=0.02)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(0, 1e5), min_size=3, max_size=3), min_size=3, max_size=5), st.floats(-1e3, 1e3))
def test_what_every_wait_grows_by_moves_the_price_and_its_bounds(waits: list[list[float]], by_s: float) -> None:
    base = _waits(waits, waits[::-1]).all()
    moved = _waits(waits, [[one + by_s for one in course] for course in waits[::-1]]).all()
    for name in ("mean_s", "low_s", "high_s"):
        assert getattr(moved, name) - getattr(base, name) == pytest.approx(by_s, abs=1e-6)
    assert moved.null_s == base.null_s


def test_a_log_of_enough_weeks_has_an_interval_over_weeks() -> None:
    jobs = WEEKS_LEAST
    with_bftd = [[float(place) for place in range(jobs)]] * 3
    found = _waits([[0.0] * jobs] * 3, with_bftd, apart_s=WEEK_S)
    everyone = found.all()
    assert found.unit == "week"
    assert everyone.low_s < everyone.mean_s < everyone.high_s
    assert _waits([[0.0] * jobs] * 3, with_bftd, apart_s=WEEK_S / 2).unit == "course"


def test_the_jobs_that_lose_most_come_first_with_the_reason() -> None:
    without = [[10.0, 10.0, 0.0, 5.0], [10.0, 10.0, 900.0, 5.0], [10.0, 10.0, 0.0, 5.0]]
    found = _waits(without, [[30.0, 50.0, 700.0, 5.0]] * 3).worst(np.array([15.0, 1.0, 0.0, 0.0]))
    assert [(job.id, job.why) for job in found] == [("2", "chance"), ("1", "order"), ("0", "preempted")]
    assert [job.lost_s for job in found] == [pytest.approx(400.0), pytest.approx(40.0), pytest.approx(20.0)]


def test_jobs_that_never_start_in_the_simulation_do_not_count() -> None:
    found = _waits([[10.0, float("inf")]] * 3, [[11.0, 12.0]] * 3)
    assert found.counted.tolist() == [True, False]
    assert says(found.notes, "whatif.price.stuck", jobs="1 job")


def test_the_price_of_a_log_does_not_depend_on_the_number_of_processes() -> None:
    log: JobLog = busy(jobs=10)
    assert price(log, jobs=2) == price(log, jobs=1)
