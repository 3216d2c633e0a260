"""Multifactor priority: the factors, Fair Tree, and the order that they give the queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.model import SimulatedPartition
from bftd.simulation.slurm.priority import Association, FairTree, Multifactor
from tests.bftd.simulation.slurm.test_controller import T0, job, ran, site

USERS = (
    Association("physics", shares=3),
    Association("biology", shares=1),
    Association("physics", user="ann"),
    Association("physics", user="bob"),
    Association("biology", user="cid"),
)


def factors(*used: tuple[str, str, float], of: tuple[Association, ...] = USERS) -> dict[tuple[str, str], float]:
    tree = FairTree(Multifactor(associations=of))
    for account, user, node_s in used:
        tree.add(account, user, 1, node_s)
    return tree.factors()


def test_the_factors_are_weighed_and_added() -> None:
    settings = Multifactor(
        age=1000, job_size=100, partition=10, fair_share=2000, qos_weight=50, qos={"low": 1, "high": 5}
    )
    assert settings.of(302_400.9, 0.25, 0.5, "low", 0.5) == 500 + 25 + 5 + 10 + 1000
    assert settings.of(1e9, 1.0, 0.0, "none", 0.0) == 1100
    assert Multifactor().of(0.0, 1.0, 1.0, "", 1.0) == 1
    assert Multifactor(job_size=100, favor_small=True).of(0.0, 0.25, 0.0, "", 0.0) == 75


def test_fair_tree_puts_all_users_of_a_less_served_account_first() -> None:
    found = factors(("physics", "ann", 100.0), ("physics", "bob", 50.0), ("biology", "cid", 100.0))
    assert found == {("physics", "bob"): 1.0, ("physics", "ann"): 2 / 3, ("biology", "cid"): 1 / 3}


def test_users_that_have_used_nothing_are_level() -> None:
    assert set(factors().values()) == {1.0}
    found = factors(("physics", "ann", 1.0))
    assert found == {("biology", "cid"): 1.0, ("physics", "bob"): 2 / 3, ("physics", "ann"): 1 / 3}


def test_usage_halves_in_its_half_life() -> None:
    tree = FairTree(Multifactor(associations=USERS, half_life_s=1000.0))
    tree.add("physics", "ann", 4, 0.0)
    tree.usage["physics", "ann"] = 8.0
    tree.decay(1000.0)
    assert tree.usage["physics", "ann"] == pytest.approx(4.0, rel=1e-3)


@given(st.lists(st.tuples(st.sampled_from(USERS[2:]), st.floats(0.0, 1e6)), max_size=8))
def test_ranks_are_parts_of_the_users_and_the_best_has_all(used: list[tuple[Association, float]]) -> None:
    found = factors(*((one.account, one.user, node_s) for one, node_s in used))
    assert len(found) == 3
    assert max(found.values()) == 1.0
    assert all(value * 3 == pytest.approx(round(value * 3)) and value > 0.0 for value in found.values())


@given(st.floats(1.0, 1e5), st.floats(1.0, 1e5))
def test_of_two_users_with_equal_shares_the_one_that_has_used_less_is_first(one: float, other: float) -> None:
    found = factors(("physics", "ann", one), ("physics", "bob", other))
    assert (found["physics", "ann"] > found["physics", "bob"]) == (one < other)


def test_what_a_user_has_run_puts_the_next_job_behind_another_users() -> None:
    where = site(priority=Multifactor(fair_share=1000, associations=USERS))
    jobs = [
        job(0, 4, run_s=700, limit_s=720, account="physics", user="ann"),
        job(1, 4, 100.0, account="physics", user="ann"),
        job(2, 4, 110.0, account="biology", user="cid"),
    ]
    _, again, other = ran(where, *jobs)
    assert other.start_s < again.start_s


def test_the_priority_is_calculated_anew_only_every_period() -> None:
    partitions = (SimulatedPartition(0b1111, factor=10), SimulatedPartition(0b1111, factor=5))
    settings = Multifactor(age=1000, partition=100, max_age_s=1000.0, calc_period_s=300.0)
    controller = Controller(
        site(priority=settings, partitions=partitions),
        [
            job(0, 4, run_s=3000, limit_s=3600, partitions=(0,)),
            job(1, 4, 1.0, partitions=(0,)),
            job(2, 4, 2.0, partitions=(1,)),
        ],
        1,
    )
    seen: list[list[float]] = []
    for at_s in (250.0, 310.0):
        controller.at(T0 + at_s, lambda _: seen.append([-line.place[0] % 2**33 for line in controller.queue]))
    controller.run(10.0, until_s=T0 + 400.0)
    assert seen == [[100.0, 50.0], [399.0, 348.0]]


def test_what_was_used_many_half_lives_ago_no_longer_counts() -> None:
    where = site(priority=Multifactor(fair_share=1000, associations=USERS, half_life_s=1000.0))
    jobs = [
        job(0, 4, run_s=700, limit_s=720, account="physics", user="ann"),
        job(1, 4, 20_000.0, run_s=500, limit_s=720, account="physics", user="bob"),
        job(2, 4, 20_320.0, account="physics", user="bob"),
        job(3, 4, 20_330.0, account="physics", user="ann"),
    ]
    _, _, recent, long_ago = ran(where, *jobs)
    assert long_ago.start_s < recent.start_s
