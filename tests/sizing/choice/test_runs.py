"""Runs: their length, their time limit and their lines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import DoesNotFit, NoProfile
from sizing.base.estimate import Estimate
from sizing.choice import limits
from sizing.choice.layout import TimedLayout
from sizing.choice.runs import JobRun, best_of_shapes, survey
from sizing.choice.timers.timers import TimerChain
from sizing.inventory.shapes import GpuShape
from tests.sizing.choice.cells_of import NOW_S, TOO_LARGE, Table, estimate, pool, run, timed
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow

NOTHING = Estimate(0, 0, 0, "assumed")


def test_a_run_is_its_steps_and_the_start_up_from_end_to_end() -> None:
    (found,), _ = survey([pool(count=1, gpus=1)], Table({("new", 1, 1): 2.0}), 1000)
    assert found.run_s == Estimate(2120, 1030, 4600, "assumed")
    assert found.gpu_hours.value == pytest.approx(2120 / 3600)
    (measured,), _ = survey([pool(count=1, gpus=1)], Table({("new", 1, 1): 2.0}, "measured"), 1000)
    assert measured.run_s.origin == "measured"


def test_a_run_longer_than_the_partitions_max_time_is_out_with_the_reason() -> None:
    table = Table({("new", 1, 1): 10.0, ("new", 2, 1): 5.0, ("new", 4, 1): 2.5})
    found, out = survey([pool(count=1, max_time_s=3600)], table, 1000, NOTHING)
    assert [each.shape.gpus for each in found] == [4]
    reasons = {(each.shape.gpus, each.stages): each.why for each in out}
    assert reasons[2, 1] == wording("sizing.limits.too_long", words="1 h 23 min", origin="assumed", max_time_s="1 h")
    assert reasons[4, 2] == TOO_LARGE


def test_only_the_fastest_stages_of_a_request_are_asked_for() -> None:
    table = Table({("new", 4, 1): 3.0, ("new", 4, 2): 2.0, ("new", 4, 4): 2.5, ("new", 2, 1): 5.0})
    found, _ = survey([pool(count=1)], table, 100, NOTHING)
    assert [(each.shape.gpus, each.stages) for each in best_of_shapes(found)] == [(4, 2), (2, 1)]


def test_an_assumed_pipeline_has_to_be_a_tenth_faster() -> None:
    steps = {("new", 4, 1): 3.0, ("new", 4, 2): 2.8}
    for origin, stages in (("assumed", 1), ("interpolated", 2)):
        found, _ = survey([pool(count=1)], Table(steps, origin), 100, NOTHING)  # type: ignore[arg-type]
        assert [each.stages for each in best_of_shapes(found)] == [stages]
    found, _ = survey([pool(count=1)], Table(steps), 100, NOTHING, max_stages=1)
    assert [each.stages for each in found] == [1]


def lines_of(each: JobRun) -> dict[str, str]:
    return {line.option: line.value for line in each.lines()}


def test_the_time_limit_is_the_high_end_rounded_up_to_five_minutes_within_max_time() -> None:
    assert lines_of(run(3600))["time"] == "02:00:00"
    assert lines_of(run(3601))["time"] == "02:05:00"
    assert lines_of(run(100_000))["time"] == "2-07:35:00"
    cut = run(3600, max_time_s=4500)
    assert lines_of(cut)["time"] == "01:15:00"
    assert cut.may_be_cut
    assert says(cut.lines()[-1].why, "sizing.runs.all_allowed")
    assert not run(3600, max_time_s=7200).may_be_cut


def test_the_lines_ask_for_one_task_a_node_and_say_how_the_model_lies_on_the_gpus() -> None:
    each = run(3600, gpus=8)
    assert lines_of(each) == {
        "partition": "new",
        "nodes": "2",
        "ntasks-per-node": "1",
        "gres": "gpu:a100:4",
        "cpus-per-task": "64",
        "mem": "512G",
        "time": "02:00:00",
    }
    assert {line.option: line.why for line in each.lines()}["nodes"] == "8 GPUs: dp 8"


def test_gpus_that_nobody_else_can_have_are_counted() -> None:
    whole, exclusive = (
        JobRun.of(timed(1.0, GpuShape(replace(pool(), exclusive=alone), 1, 2)), estimate(3600))
        for alone in (False, True)
    )
    assert (whole.gpu_hours.value, exclusive.gpu_hours.value) == (2, 4)


def test_json_has_each_number_with_its_origin() -> None:
    said = run(3600, start_in_s=60).to_json(NOW_S)
    assert said["run"] == {"value": 3600, "low": 1800, "high": 7200, "origin": "assumed"}
    assert said["ends"]["value"] == NOW_S + 3660
    assert said["step"]["origin"] == "assumed"


class Unprofiled:
    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        raise NoProfile("profile it by bft size profile")


def test_timers_are_asked_by_rank_and_why_the_first_did_not_know_is_kept() -> None:
    timer = TimerChain([Unprofiled(), Table({("new", 1, 1): 1.0})])
    assert timer.time(GpuShape(pool(), 1, 1), 1).step_s.origin == "assumed"
    assert list(timer.unknown.values()) == ["1 x a100: profile it by bft size profile"]
    first = TimerChain([Table({("new", 1, 1): 3.0}, "measured"), Table({("new", 1, 1): 1.0, ("new", 2, 1): 1.0})])
    assert first.time(GpuShape(pool(), 1, 1), 1).step_s.value == 3.0
    with pytest.raises(DoesNotFit):  # who knows that it does not fit is believed
        first.time(GpuShape(pool(), 1, 2), 1)


@given(st.integers(0, 10**9))
def test_a_time_limit_reads_back(seconds: int) -> None:
    assert limits.of_slurm(limits.slurm(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("10:30", 630),
        ("1:00:00", 3600),
        ("2-12", 216000),
        ("1-00:30", 88200),
        ("1-00:00:01", 86401),
        ("UNLIMITED", math.inf),
        ("0", math.inf),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_slurms_forms_of_a_time_limit_are_read(text: str, seconds: float | None) -> None:
    assert limits.of_slurm(text) == seconds


@pytest.mark.parametrize(
    ("count", "text"), [(0.03361, "0.0336"), (12.44, "12.4"), (999.4, "999"), (999.6, "1,000"), (33333, "33,300")]
)
def test_gpu_hours_have_three_figures_and_no_exponent(count: float, text: str) -> None:
    assert limits.hours(count) == text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45, "45 s"), (120, "2 min"), (3599, "1 h"), (5400, "1 h 30 min"), (176400, "2 d 1 h"), (172800, "2 d")],
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    assert limits.words(seconds) == words
