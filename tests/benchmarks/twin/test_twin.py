"""The simulated slurmctld reproduces recorded clusters, and bftd's cost on it stays within the gate."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from functools import cache

import pytest

from benchmarks import twin
from benchmarks.backfill.recording import load
from benchmarks.backfill.replay import RECORDINGS
from benchmarks.twin import __main__ as program
from benchmarks.twin import speed
from benchmarks.twin.__main__ import WITHOUT, Condition, compared, courses_of
from benchmarks.twin.recorded import Likeness, likeness
from benchmarks.twin.streams import Shape
from bftd.config.keys import PoolConfig
from bftd.simulation.slurm.courses import Course
from bftd.simulation.slurm.harvester import HarvestSettings

pytestmark = pytest.mark.slow

# In the others two jobs swapped nodes within a second early: what follows is another course.
ON_COURSE = [f"bf30-22.05.8-{seed}" for seed in (1, 2, 3, 11)] + [f"default-22.05.8-{seed}" for seed in (1, 2, 3)]
ON_COURSE.append("default-24.11.5-11")
SHAPE = Shape()
GATE_PERCENT = 2.0
BFTD = Condition("bftd", HarvestSettings())
NO_EARMARKS = Condition("bftd without earmarks", HarvestSettings(PoolConfig(earmark=False)))


@cache
def like(name: str) -> Likeness:
    return likeness(load(RECORDINGS / f"{name}.xz"), 20)


@pytest.mark.parametrize("name", ON_COURSE)
def test_jobs_start_when_and_where_slurm_started_them(name: str) -> None:
    found = like(name)
    assert found.jobs >= 59
    assert found.nearest_within_cycle >= 0.95
    assert found.nearest_same_nodes >= 0.9
    assert found.within_cycle >= 0.65


def test_the_mean_wait_of_most_recordings_is_that_of_slurm() -> None:
    found = [like(file.stem) for file in sorted(RECORDINGS.glob("*.xz")) if file.stem.startswith(("bf30", "default"))]
    apart = [abs(one.simulated_wait_s / one.wait_s - 1.0) for one in found]
    assert statistics.median(apart) <= 0.03


@cache
def courses_without(seed: int) -> list[Course]:
    return courses_of(seed, WITHOUT, SHAPE, 2)


def percent_of(condition: Condition, streams: range) -> tuple[float, float]:
    """What a condition costs the mean wait in percent, and the half-width of its interval."""
    found: list[list[list[Course]]] = [
        [
            courses_without(seed),
            courses_of(seed, condition, SHAPE, 1, 2),
        ]
        for seed in streams
    ]
    (row,) = compared(found, [condition])
    wait = row["wait"]
    assert isinstance(wait, dict)
    return wait["percent"], wait["percent_half_width"]


def test_bftd_costs_the_queue_no_more_than_the_gate_lets_it() -> None:
    percent, half_width = percent_of(BFTD, range(1, 301))
    assert half_width < 2.0
    assert percent <= GATE_PERCENT


def test_the_gate_shuts_where_nodes_are_not_earmarked() -> None:
    percent, _ = percent_of(NO_EARMARKS, range(1, 61))
    assert percent > GATE_PERCENT


def test_the_benchmark_compares_every_condition_with_slurm_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert twin.__doc__
    monkeypatch.setattr("sys.argv", ["twin", "--streams", "3", "--courses", "1", "--jobs", "12", "--json"])
    assert program.main() == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["conditions"]] == [one.name for one in program.CONDITIONS]
    assert all(one["wait"]["streams"] == 3 for one in told["conditions"])
    by_name = {one["name"]: one for one in told["conditions"]}
    assert by_name["without bftd, again"]["harvested_node_s"] == 0.0
    assert by_name["bftd"]["harvested_node_s"] > 0.0


def test_the_speed_is_told_of_streams_and_of_a_made_up_year(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["speed", "--streams", "1", "--jobs", "40", "--nodes", "512", "--json"])
    assert speed.main() == 0
    told = json.loads(capsys.readouterr().out)
    assert min(told["jobs_per_s"], told["jobs_per_s_with_pilots"], told["year_cpu_s"]) > 0.0
    assert (told["year_jobs"], told["year_nodes"]) == (40, 512)
    assert told["year_harvested_node_h"] > 0.0


def test_the_made_up_year_is_always_the_same_and_as_long_as_its_load_says() -> None:
    jobs = speed.made_up(3400, 2000, 0.9)
    assert jobs == speed.made_up(3400, 2000, 0.9)
    assert len(jobs) == 2000
    assert [job.number for job in jobs] == list(range(2000))
    assert sorted(job.submit_s for job in jobs) == [job.submit_s for job in jobs]
    assert all(job.component.need <= 3400 and 0.0 < job.run_s <= job.limit_s for job in jobs)
    lasts_s = jobs[-1].submit_s - jobs[0].submit_s
    load = sum(job.run_s * job.component.need for job in jobs) / (3400 * lasts_s)
    assert load == pytest.approx(0.9, rel=0.05)


def test_a_speed_beyond_its_bound_is_marked() -> None:
    slow = speed.Speed(4_999.0, 500.0, 10, 4, 1.0, 601.0, 0.0, 0.0)
    lines = speed.speeds(asdict(slow)).splitlines()[2:]
    assert ["missed" in line for line in lines] == [True, False, True]
