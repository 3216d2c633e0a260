"""The limits of QOS and associations: what they bound, and that no schedule exceeds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.limits import Limits, Most, QosLimits, Running
from bftd.simulation.slurm.model import JobRun
from tests.bftd.simulation.slurm.test_controller import T0, job, ran, site

LIMITS = Limits(
    qos={"small": QosLimits(group=Most(nodes=4), user=Most(jobs=1)), "wide": QosLimits(account=Most(jobs=2))},
    accounts={"physics": Most(nodes=5), "lasers": Most(jobs=2)},
    users={("lasers", "ann"): Most(jobs=1)},
    parents={"lasers": "physics", "physics": "root"},
)


def test_a_job_counts_for_its_qos_its_user_and_every_account_above() -> None:
    assert LIMITS.bounds("small", "lasers", "ann") == (
        (("qos", "small"), inf, 4),
        (("qos of user", "small", "ann"), 1, inf),
        (("user", "lasers", "ann"), 1, inf),
        (("account", "lasers"), 2, inf),
        (("account", "physics"), inf, 5),
    )
    assert LIMITS.bounds("", "other", "ann") == ()
    assert Limits(accounts={"a": Most(1)}, parents={"a": "b", "b": "a"}).bounds("", "a", "") == (
        (("account", "a"), 1, inf),
    )


def test_what_ends_makes_room() -> None:
    running, bounds = Running(), ((("account", "a"), 2.0, 4.0),)
    running.add(bounds, 3)
    assert (running.allows(bounds, 1), running.allows(bounds, 2)) == (True, False)
    running.add(bounds, 1)
    assert not running.allows(bounds, 0)
    running.add(bounds, -3, -1)
    assert running.allows(bounds, 3)


def test_a_job_at_a_limit_is_passed_over_and_closes_no_nodes() -> None:
    where = site(limits=Limits(users={("a", "ann"): Most(jobs=1)}))
    one, other, behind = ran(
        where,
        job(0, 1, account="a", user="ann"),
        job(1, 3, 10.0, account="a", user="ann"),
        job(2, 1, 20.0, account="a", user="bob"),
        phase_s=59.0,
    )
    assert other.start_s >= one.end_s
    assert (behind.by, behind.wait_s <= 5.0) == ("main", True)


def test_backfill_makes_no_plan_for_a_job_at_a_limit() -> None:
    where = site(limits=Limits(qos={"q": QosLimits(group=Most(nodes=3))}), sched_interval_s=1e6, batch_delay_s=1e6)
    jobs = job(0, 3, qos="q", run_s=500, limit_s=600), job(1, 2, 5.0, qos="q"), job(2, 1, 5.0, limit_s=7200.0)
    _, bounded, behind = ran(where, *jobs, phase_s=1.0)
    assert behind.start_s < T0 + 40.0
    assert bounded.start_s > T0 + 500.0


shapes = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.floats(0, 200),
        st.floats(1, 200),
        st.sampled_from(["small", "wide", ""]),
        st.sampled_from(["lasers", "physics", "other"]),
        st.sampled_from(["ann", "bob"]),
    ),
    min_size=1,
    max_size=14,
)


@given(shapes=shapes, seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_no_limit_is_ever_exceeded_and_every_job_runs(
    shapes: list[tuple[int, float, float, str, str, str]], seed: int
) -> None:
    times_s = sorted(shape[1] for shape in shapes)
    jobs = [
        job(number, size, times_s[number], run_s, 240.0, qos=qos, account=account, user=user)
        for number, (size, _, run_s, qos, account, user) in enumerate(shapes)
    ]
    runs = Controller(replace(site(8), limits=LIMITS), jobs, seed).run()
    assert all(run.start_s < inf for run in runs)
    below = {"physics": ("physics", "lasers"), "lasers": ("lasers",)}
    groups: list[tuple[Callable[[JobRun], bool], float, float]] = [
        (lambda run: run.job.qos == "small", inf, 4),
        (lambda run: run.job.qos == "small" and run.job.user == "ann", 1, inf),
        (lambda run: run.job.qos == "small" and run.job.user == "bob", 1, inf),
        (lambda run: run.job.qos == "wide" and run.job.account == "other", 2, inf),
        (lambda run: run.job.account in below["physics"], inf, 5),
        (lambda run: run.job.account in below["lasers"], 2, inf),
        (lambda run: run.job.account == "lasers" and run.job.user == "ann", 1, inf),
    ]
    for belongs, most_jobs, most_nodes in groups:
        mine = [run for run in runs if belongs(run)]
        for at_s in {run.start_s for run in mine}:
            there = [run for run in mine if run.start_s <= at_s < run.end_s]
            assert len(there) <= most_jobs
            assert sum(run.nodes.bit_count() for run in there) <= most_nodes


def test_a_backfill_cycle_starts_no_more_jobs_than_a_limit_allows() -> None:
    limits = Limits(qos={"q": QosLimits(group=Most(jobs=1))})
    where = site(limits=limits, sched_interval_s=1e6, batch_delay_s=1e6)
    _, first, second, other = ran(
        where, job(0, 4), job(1, 1, 10.0, qos="q"), job(2, 1, 11.0, qos="q"), job(3, 1, 12.0), phase_s=5.0
    )
    assert (first.by, other.by) == ("backfill", "backfill")
    assert second.start_s >= first.end_s
