"""The orders in which rounds serve jobs."""

from __future__ import annotations

import pytest

from sizing.base.errors import UsageError
from studies.synergy.job_orders import LEVEL_GPU_S, ORDERS, Standing, fifo, ftf, las, order, srtf
from tests.studies.synergy.toys import job
from tests.support.messages import fragment, pattern

pytestmark = pytest.mark.slow


def standing(at_s: float = 0.0, left: float = 1.0, attained: float = 0.0, now_s: float = 0.0) -> Standing:
    """A job of 1000 s with its proportional share, of which a share is left."""
    one = job("x", at_s=at_s, duration_s=1000.0)
    return Standing(one, left * one.iterations, 3.0, attained, now_s)


def test_first_come_is_first_served() -> None:
    assert fifo(standing(at_s=1.0)) < fifo(standing(at_s=2.0))


def test_remaining_time_is_that_with_a_proportional_share() -> None:
    assert srtf(standing(left=0.25)) == 250.0


def test_attained_service_counts_by_levels_each_twice_as_long() -> None:
    assert [las(standing(attained=share * LEVEL_GPU_S)) for share in (0, 0.99, 1, 1.99, 2, 3.99, 4, 7.99, 8)] == [
        *(0, 0, 1, 1, 2, 2, 3, 3, 4)
    ]


def test_who_is_the_furthest_behind_its_finish_alone_goes_first() -> None:
    fresh, waited, done = standing(), standing(now_s=500.0), standing(left=0.5, now_s=500.0)
    assert ftf(waited) < ftf(fresh)
    assert ftf(fresh) == ftf(done), "a job that ran all the time is where it would be alone"
    assert ftf(standing(left=0.1, now_s=500.0)) > ftf(fresh), "one that was faster than with its share can wait"
    # the same 500 s are worse for a shorter job
    short = job("y", duration_s=100.0)
    assert ftf(Standing(short, short.iterations, 3.0, 0.0, 500.0)) < ftf(waited)


def test_nearly_equal_finishes_are_equal() -> None:
    assert ftf(standing(now_s=500.0)) == ftf(standing(now_s=501.0))
    assert ftf(standing(now_s=500.0)) > ftf(standing(now_s=600.0))


def test_an_order_that_there_is_not_is_refused_in_a_line() -> None:
    assert [order(name) for name in ORDERS] == list(ORDERS.values())
    for name, words in (
        ("srft", pattern("sizing.fields.hint", near=fragment("srtf"))),
        ("nothing like it", "one of fifo, srtf, las, ftf"),
    ):
        with pytest.raises(UsageError, match=words):
            order(name)
