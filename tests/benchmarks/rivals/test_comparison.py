"""The figures of the systems, and the tables made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.impact.record import JobRow, PilotRow, Run
from benchmarks.rivals import page
from benchmarks.rivals.comparison import Outcome, of_seed, over_seeds
from benchmarks.rivals.training import Costs, Group

pytestmark = pytest.mark.slow


def job(number: int, submit_s: float, start_s: float) -> JobRow:
    began_s, ended_s = start_s, start_s + 10.0
    return JobRow(number, "plain", submit_s, start_s, None, None, None, 0, began_s, ended_s, ("n1",))


def outcome(
    *starts_s: float, groups: tuple[Group, ...] = (), pilots: tuple[PilotRow, ...] = (), seed: int = 1
) -> Outcome:
    jobs = tuple(job(number, 10.0 * number, start_s) for number, start_s in enumerate(starts_s))
    run = Run("default", "22.05.8", "A", 0, seed, len(jobs), 2, "none", 100.0, 1.0, {}, 1, jobs, pilots)
    return Outcome(run, groups)


# Slurm alone starts the last job at 20 s: two nodes have 40 node-seconds until then, of which jobs use 20.
ALONE = {"nothing": outcome(0.0, 10.0, 20.0), "again": outcome(0.0, 12.0, 20.0)}
COSTS = Costs(step_s=0.5)


def test_samples_count_of_what_slurm_alone_left_idle_and_what_is_lost_or_only_held_apart() -> None:
    group = Group(1, tuple(0.5 * number for number in range(1, 21)), 12)
    mine = outcome(0.0, 10.0, 26.0, groups=(group,), pilots=(PilotRow("n2", 0.0, 15.0),))
    found = of_seed({**ALONE, "bftd": mine}, COSTS)["bftd"]
    assert found["until_s"] == 20.0
    assert found["idle_node_s"] == pytest.approx(21.0)  # 20 in the one run, 22 in the other
    assert (found["samples_kept"], found["samples_lost"]) == (12, 8)
    assert found["won_share"] == pytest.approx(6.0 / 21.0)
    assert found["lost_share"] == pytest.approx(4.0 / 21.0)
    assert found["untrained_node_s"] == pytest.approx(5.0)


def test_each_job_is_compared_with_the_mean_of_both_runs_without_training_and_the_second_of_these_with_the_first() -> (
    None
):
    found = of_seed({**ALONE, "bftd": outcome(1.0, 10.0, 26.0)}, COSTS)
    assert found["bftd"]["delays_s"] == [1.0, -1.0, 6.0]
    assert found["again"]["delays_s"] == [0.0, 2.0, 0.0]


def test_a_job_that_starts_long_after_slurm_preempted_for_it_has_lost_its_slot() -> None:
    one = outcome(0.0, 10.0, 20.0)
    jobs = (replace(one.run.jobs[0], preempt_s=0.0), replace(one.run.jobs[1], preempt_s=5.0), one.run.jobs[2])
    found = of_seed({**ALONE, "bftd": Outcome(replace(one.run, jobs=jobs), ())}, COSTS)["bftd"]
    assert (found["preempted_for"], found["slots_lost"]) == (2, 1)


def test_the_unit_of_every_interval_is_the_seed() -> None:
    names = ("scavenger", "allocations", "bftd")
    seeds = [of_seed({**ALONE, **{name: outcome(later_s, 11.0 + later_s, 20.0 + later_s) for name in names}}, COSTS)
             for later_s in (1.0, 3.0)]  # fmt: skip
    delay_s = over_seeds(seeds)["bftd"]["delay_s"]
    assert delay_s["mean"] == pytest.approx(2.0)
    low, high = delay_s["interval"]
    assert (low, high) == pytest.approx((2.0 - 12.71, 2.0 + 12.71), abs=0.01)
    alone = over_seeds(seeds[:1])["bftd"]
    assert alone["delay_s"]["interval"] is None
    assert alone["worst_delay_s"] == pytest.approx(1.0)


def test_a_table_shows_the_interval_of_three_seeds_and_the_values_of_two() -> None:
    values: dict[str, Any] = {"by_seed": [0.2, 0.4, 0.6], "interval": [-0.1, 0.9], "mean": 0.4}
    row: dict[str, Any] = {"worst_delay_s": 1.0, "slots_lost": 1, "preempted_for": 2}
    row |= dict.fromkeys(("won_share", "lost_share", "untrained_share", "delay_s"), values)
    names = ("nothing", "again", "scavenger", "allocations", "bftd")
    result = {"recipes": {"default": {"systems": dict.fromkeys(names, row)}}}
    line = page.table(result).splitlines()[-1]
    assert "| 40 % (-10 to 90) |" in line
    assert "| +0.4 s (−0.1 to +0.9) |" in line
    values |= {"by_seed": [0.2, 0.6]}
    assert "| 40 % (20 to 60) |" in page.table(result).splitlines()[-1]
