"""Which faults and jobs a seed draws, and what a run's figures make of what happened."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from benchmarks.chaos import model, page
from benchmarks.chaos.model import BOUND_S, KINDS, OF_SLURM, RULES, SETTLED_S, RegularStart, Struck, TrainerEnd
from benchmarks.chaos.observer import Observer
from benchmarks.chaos.trainers import Trainer, wrong_steps

GIVE_BACKS_S = {"p50": 0.1, "p99": 0.4, "max": 0.5, "count": 20}


def struck(kind: str, begin_s: float, end_s: float | None = None) -> Struck:
    return Struck(kind, "n1", begin_s, begin_s if end_s is None else end_s)


def trained(*rows_s: float, **fields: Any) -> TrainerEnd:
    told = {"steps": len(rows_s), "steps_trained_again": 0, "jobs": 1}
    return TrainerEnd("torchrun", True, True, 0, list(rows_s), told, **fields)


def test_a_seed_draws_the_same_faults_again_and_each_kind_as_often() -> None:
    drawn = list(islice(model.faults(7, KINDS), 3 * len(KINDS)))
    assert drawn == list(islice(model.faults(7, tuple(reversed(KINDS))), len(drawn)))
    assert drawn != list(islice(model.faults(8, KINDS), len(drawn)))
    assert {kind: sum(fault.kind == kind for fault in drawn) for kind in KINDS} == dict.fromkeys(KINDS, 3)
    assert list(islice(model.regular_jobs(7), 5)) == list(islice(model.regular_jobs(7), 5))


def test_thirty_minutes_have_a_hundred_faults() -> None:
    took_s = sum(fault.after_s + fault.length_s for fault in islice(model.faults(1, KINDS), 100))
    assert took_s < 30 * 60


def test_whom_a_fault_strikes_is_drawn_with_it() -> None:
    for fault in islice(model.faults(1, KINDS), 50):
        assert fault.of(["only"]) == "only"
        assert fault.of("abc") == "abc"[int(3 * fault.pick)]


def test_a_job_waits_from_its_submission_and_not_for_slurm_that_is_away() -> None:
    job = RegularStart("1", 100.0, 120.0)
    assert model.delay_s(job, []) == 20.0
    assert model.delay_s(job, [struck("kill_daemon", 99.0, 119.0)]) == 20.0
    away = struck("restart_slurmctld", 99.0, 105.0)
    assert model.delay_s(job, [away]) == pytest.approx(20.0 - 5.0 - SETTLED_S)
    assert model.delay_s(job, [away, struck("cut_network", 119.0, 130.0)]) == 0.0
    assert model.delay_s(job, [struck("restart_slurmctld", 121.0, 125.0)]) == 20.0
    assert model.delay_s(RegularStart("1", 100.0), []) is None


def test_every_fault_of_slurm_is_a_kind() -> None:
    assert set(KINDS) >= OF_SLURM


def test_a_recovery_ends_when_the_last_trainer_that_paused_trains_again() -> None:
    steady = trained(*(0.5 * step for step in range(100)))
    paused = trained(1.0, 1.5, 9.0, 9.5)
    assert model.recovery_s(struck("kill_worker", 2.0), [steady]) == 0.0
    assert model.recovery_s(struck("kill_worker", 2.0), [steady, paused]) == 7.0
    assert model.recovery_s(struck("stop_worker", 2.0, 6.0), [paused]) == 3.0
    assert model.recovery_s(struck("kill_worker", 20.0), [paused]) == 0.0


def test_what_breaks_a_rule_counts_once_and_a_late_job_is_among_it() -> None:
    violations = model.Violations()
    for _ in range(3):
        violations.add("two_pilots", "1 and 2 on n1")
    violations.add("orphan", "17", "a process")
    jobs = [RegularStart("5", 0.0, 1.0), RegularStart("6", 0.0, BOUND_S + 1.0), RegularStart("7", 0.0)]
    found = model.figures(1.0, [struck("kill_worker", 1.0)], jobs, [trained(0.0, 0.5)], GIVE_BACKS_S, 1, violations)
    expected = {"two_pilots": 1, "orphan": 1, "late_regular_job": 2}
    assert found["violations"] == {rule: expected.get(rule, 0) for rule in RULES}
    assert found["faults"] == {"kill_worker": 1}
    assert found["regular_job_delay_max_s"] == BOUND_S + 1.0
    assert found["samples"]["regular_job_delay_s"] == [1.0, BOUND_S + 1.0, None]
    assert found["give_back_s"] == {"p50": 0.1, "p99": 0.4, "max": 0.5}
    assert found["trainers"][0].items() >= {"name": "torchrun", "finished": True, "steps_counted_twice": 0}.items()
    assert "**missed**" in page.table(found)
    assert page.figures(found)["violations"].value == 4


def test_a_good_run_misses_nothing_on_the_page() -> None:
    jobs = [RegularStart("5", 0.0, 1.0)]
    found = model.figures(
        1.0, [struck("kill_worker", 1.0)], jobs, [trained(0.0, 0.5)], GIVE_BACKS_S, 0, model.Violations()
    )
    assert "missed" not in page.table(found)
    assert sum(found["violations"].values()) == 0


@pytest.mark.parametrize(
    ("backend", "values", "wrong"),
    [
        ("torchrun", ["a", "b", "c"], []),
        ("torchrun", ["a", "x", "c"], [2]),
        ("horovod", [1.0, 2.0 + 1e-5, 3.0], []),
        ("horovod", [1.0, 2.1, 3.0], [2]),
    ],
)
def test_each_step_is_compared_with_the_undisturbed_run(backend: str, values: list[Any], wrong: list[int]) -> None:
    right = dict(enumerate(["a", "b", "c"] if backend == "torchrun" else [1.0, 2.0, 3.0], 1))
    rows = [{"at_s": 0.0, "step": step, "value": value} for step, value in enumerate(values, 1)]
    assert wrong_steps(Trainer(backend, rows=rows), right) == wrong
    again = {"at_s": 9.0, "step": 1, "value": "y" if backend == "torchrun" else 7.0}
    assert wrong_steps(Trainer(backend, rows=[*rows, again]), right) == sorted({1, *wrong})
    assert wrong_steps(Trainer(backend, rows=rows[:1] + rows[2:]), right) == [2], "a step was left out"


@pytest.mark.parametrize(
    ("jobs", "broken"),
    [
        ({"1": ("elastic", "n1"), "2": ("elastic", "n2"), "3": ("batch", "n3")}, []),
        ({"1": ("elastic", "n1"), "2": ("elastic", "n1")}, ["two_pilots"]),
        ({"1": ("elastic", "n1"), "3": ("batch", "n1")}, ["regular_with_pilot"]),
        ({"3": ("batch", "n1"), "4": ("bft-driver", "n1")}, []),
    ],
)
def test_a_node_has_one_pilot_or_a_regular_job(jobs: dict[str, tuple[str, str]], broken: list[str]) -> None:
    violations = model.Violations()
    site: Any = None
    observer = Observer(site, site, violations)
    observer._look_at_jobs({id_: ((partition,), (node,)) for id_, (partition, node) in jobs.items()})
    assert [rule for rule, count in violations.counts.items() if count] == broken
