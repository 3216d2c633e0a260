"""A site's log as the input of the simulated slurmctld."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bftd.base.errors import UsageError
from bftd.simulation.price import workload as module
from bftd.simulation.price.workload import workload
from bftd.simulation.trace import TraceError
from tests.bftd.simulation.price.making import BEGIN_S, log_of, logged
from tests.support.messages import says, wording


def test_what_ran_before_the_period_is_on_its_nodes_and_what_waited_is_eligible_from_its_beginning() -> None:
    ran, waits, comes = logged(1, -500.0, -100.0, 900.0), logged(2, -400.0, 60.0, 90.0), logged(3, 30.0, 90.0, 99.0)
    load = workload(log_of(ran, waits, comes))
    assert [job.id for job in load.logged] == ["2", "1", "3"]
    before, running, new = load.jobs
    assert (running.submit_s, running.eligible_s, running.run_s) == (BEGIN_S - 100.0, BEGIN_S - 100.0, 1000.0)
    assert (before.submit_s, before.eligible_s) == (BEGIN_S - 400.0, BEGIN_S)
    assert new.eligible_s == BEGIN_S + 30.0
    np.testing.assert_array_equal(load.waits_s, [np.nan, np.nan, 60.0])


def test_a_wait_begins_when_the_job_is_eligible() -> None:
    load = workload(log_of(logged(1, 0.0, 100.0, 200.0, eligible_s=BEGIN_S + 70.0)))
    assert load.waits_s.tolist() == [30.0]
    assert load.jobs[0].submit_s == BEGIN_S


def test_partitions_have_the_nodes_that_their_jobs_had() -> None:
    one = logged(1, 0.0, 5.0, 9.0, partition="a", node_names="n[1-2]", nodes=2)
    two = logged(2, 1.0, 6.0, 9.0, partition="b,a", node_names="n[2-3]", nodes=2, required="n3")
    load = workload(log_of(one, two, size=9))
    assert load.site.numbering.names == ("n1", "n2", "n3")
    assert [part.mask for part in load.site.partitions] == [0b011, 0b110]
    assert [job.partitions for job in load.jobs] == [(0,), (1,)]
    assert load.jobs[1].component.required == 0b100


def test_without_names_the_size_is_that_of_the_log_or_the_most_nodes_in_use() -> None:
    jobs = logged(1, 0.0, 0.0, 90.0, nodes=3), logged(2, 1.0, 50.0, 90.0, nodes=2), logged(3, 2.0, 90.0, 95.0)
    assert len(workload(log_of(*jobs, size=7)).site.numbering.names) == 7
    assert len(workload(log_of(*jobs, size=None)).site.numbering.names) == 5
    assert says(workload(log_of(*jobs, size=4)).notes, "whatif.price.shared", in_use=5, size=4)


def test_slurms_own_settings_decide_where_the_log_has_them() -> None:
    job = logged(1, 0.0, 5.0, 9.0)
    slurm = {
        "SchedulerParameters": "bf_interval=300,bf_max_job_test=9",
        "PriorityType": "priority/multifactor",
        "PriorityWeightAge": "1000",
        "PriorityWeightFairshare": "50",
        "PriorityMaxAge": "1-00:00:00",
        "PriorityDecayHalfLife": "0",
    }
    load = workload(log_of(job, slurm=slurm))
    assert (load.site.scheduler.interval_s, load.site.scheduler.depth) == (300.0, 9)
    assert load.site.priority is not None
    assert (load.site.priority.age, load.site.priority.max_age_s) == (1000, 86_400.0)
    assert [one.user for one in load.site.priority.associations] == ["", "u1"]
    assert says(load.notes, "whatif.price.equal_shares")
    plain = workload(log_of(job))
    assert (plain.site.scheduler.interval_s, plain.site.priority) == (30.0, None)


def test_jobs_that_cannot_be_run_again_are_told_and_left_out() -> None:
    cancelled, waits = logged(1, 0.0, None, 50.0), logged(2, 1.0, None, None)
    runs, empty = logged(3, 2.0, 3.0, None, limit_s=None), logged(4, 4.0, 5.0, 5.0)
    load = workload(log_of(cancelled, waits, runs, empty))
    assert [job.id for job in load.logged] == ["2", "3", "4"]
    assert [job.run_s for job in load.jobs] == [3600.0, 36_000.0 - 3.0, 0.0]
    assert load.counted.tolist() == [False, True, True]
    assert says(load.notes, "whatif.price.left_the_queue", jobs="1 job")


def test_only_the_last_part_or_the_last_jobs_of_a_log_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(*(logged(number, 60.0 * number, 60.0 * number + 5.0, 60.0 * number + 9.0) for number in range(600)))
    assert len(workload(log, 300).jobs) == 300
    assert workload(log).end_s == log.jobs[-1].submit_s
    monkeypatch.setattr(module, "MOST_JOBS", 10)
    load = workload(log)
    assert load.counted.sum() == 10
    assert load.begin_s == log.jobs[-10].submit_s
    assert says(load.notes, "whatif.price.too_many", jobs=600, most=10)


def test_a_log_that_cannot_be_simulated_is_refused_in_one_line() -> None:
    job = logged(1, 0.0, 5.0, 9.0)
    with pytest.raises(UsageError) as wide:
        workload(log_of(job, size=10_000_000))
    assert str(wide.value) == wording("whatif.price.too_large", size="10,000,000", most=f"{module.MOST_NODES:,}")
    with pytest.raises(UsageError) as none:
        workload(log_of(logged(1, 0.0, None, 9.0)))
    assert str(none.value) == wording("whatif.price.no_wait")
    with pytest.raises(TraceError):
        workload(log_of(replace(job, node_names="n[1-")))


def test_jobs_whose_nodes_are_not_named_are_not_cut_to_the_nodes_of_the_others() -> None:
    log = log_of(logged(1, 0, 0, 600, nodes=64), logged(2, 10, 10, 600, node_names="n7"), size=100)
    load = workload(log)
    assert [job.component.need for job in load.jobs] == [64, 1]
    assert len(load.site.numbering.names) == 100
    assert list(load.notes) == []


def test_the_main_scheduler_and_preemption_go_by_the_parameters_of_the_log() -> None:
    told = {"SchedulerParameters": "sched_interval=20,preempt_youngest_first"}
    site = workload(log_of(logged(1, 0, 0, 600), slurm=told)).site
    assert (site.sched_interval_s, site.youngest_first) == (20.0, True)
    site = workload(log_of(logged(1, 0, 0, 600), slurm={"SchedulerParameters": "sched_interval=-1"})).site
    assert (site.sched_interval_s, site.youngest_first) == (60.0, False)
