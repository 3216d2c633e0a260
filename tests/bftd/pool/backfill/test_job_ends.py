"""When running jobs leave their nodes: groups of ends as Slurm makes them."""

from __future__ import annotations

from math import inf, nan

import pytest

from bftd.pool.backfill.job_ends import JobEnds
from bftd.pool.backfill.model import JobEnd, rank
from tests.bftd.pool.backfill.cases import NOW, nodes


def start(ends: dict[float, int], need: int, mask: int = -1, ready: int = 0) -> float | None:
    """Seconds from now until `need` nodes of a set are free."""
    found = JobEnds(ready, [JobEnd(NOW + at, taken) for at, taken in ends.items()], NOW).start(
        mask, 0, lambda free: free.bit_count() >= need
    )
    return None if found is None else found[0] - NOW


def test_a_job_starts_when_the_last_end_of_the_group_comes_that_makes_it_fit() -> None:
    # the first end, a minute from now, is rounded up to 90 s, and the first group reaches 30 s further
    assert start({60: nodes(0), 90: nodes(1), 120: nodes(2), 121: nodes(3)}, 1) == 120


@pytest.mark.parametrize(("first", "last"), [(60, 120), (61, 120), (89, 120), (90, 150)])
def test_the_first_group_ends_on_a_half_minute_and_exactly_there_is_in(first: int, last: int) -> None:
    assert start({first: nodes(0), last: nodes(1)}, 1) == last
    assert start({first: nodes(0), last + 1: nodes(1)}, 1) == first


def test_each_group_reaches_twice_as_far_from_the_first_end_as_the_one_before() -> None:
    ends = {60 + 30 * at: nodes(at) for at in range(1, 20)}
    assert [start(ends, need) for need in (1, 3, 4, 5, 8, 9, 17)] == [150, 150, 180, 240, 360, 360, 600]


def test_a_group_that_would_be_empty_is_passed_over() -> None:
    # after 30 s comes nothing for long: the second group reaches just as far as its first end needs
    assert start({60: nodes(0), 500: nodes(1), 570: nodes(2), 571: nodes(3)}, 2) == 570


def test_a_job_without_nodes_of_the_set_is_skipped_and_the_one_behind_it_joins_however_late_it_ends() -> None:
    ends = {60: nodes(0), 100: nodes(9), 5000: nodes(1)}
    assert start(ends, 1, mask=nodes(0, 1)) == 5000
    assert start({60: nodes(0), 5000: nodes(1)}, 1, mask=nodes(0, 1)) == 60


def test_jobs_that_end_at_once_follow_each_other_as_slurm_lists_them() -> None:
    def planned(first: str, second: str) -> float:
        # two jobs started in one cycle; only the first has a node of the set, and one that ends late has another
        ends = [
            JobEnd(NOW + 60, nodes(9), rank(second)),
            JobEnd(NOW + 60, nodes(0), rank(first)),
            JobEnd(NOW + 5000, nodes(1)),
        ]
        found = JobEnds(0, ends, NOW).start(nodes(0, 1), 0, bool)
        assert found is not None
        return found[0] - NOW

    assert planned("38", "47") == 5000
    assert planned("147", "38") == 60
    # a task of an array has been listed since it started, jobs since they were submitted
    assert planned("12_3", "47") == 60
    assert planned("47", "12_3") == 5000


def test_a_job_without_any_node_that_waiting_jobs_may_use_is_passed_over_as_well() -> None:
    ends = {60: nodes(0), 100: 0, 110: 0, 5000: nodes(1)}
    assert start(ends, 1) == 5000
    assert start({60: nodes(0), 200: 0, 5000: nodes(1)}, 1) == 60
    assert start({50: 0, **ends}, 1) == 5000


def test_a_last_group_ends_with_the_last_job_that_has_nodes_of_the_set() -> None:
    assert start({60: nodes(0), 80: nodes(1), 85: nodes(9)}, 1, mask=nodes(0, 1)) == 80


def test_nodes_that_are_ready_are_enough_at_once() -> None:
    assert start({60: nodes(0)}, 1, ready=nodes(3)) == 0
    assert start({60: nodes(0)}, 1, ready=nodes(3), mask=nodes(0)) == 60


def test_a_job_that_should_have_ended_is_taken_to_end_soon() -> None:
    assert start({-500: nodes(0)}, 1) == 1


def test_nodes_of_jobs_that_never_end_do_not_come() -> None:
    assert start({inf: nodes(0), nan: nodes(1)}, 1) is None
    assert start({inf: nodes(0), 60: nodes(1)}, 2) is None
    assert start({}, 1) is None


def test_a_node_of_two_jobs_is_free_when_the_later_one_ends() -> None:
    assert start({60: nodes(0), 3600: nodes(0, 1)}, 1) == 3600


def test_nodes_that_are_given_away_come_back_at_their_end() -> None:
    ends = JobEnds(nodes(0), [JobEnd(NOW + 600, nodes(1))], NOW)
    ends.ready = 0
    ends.add(nodes(0), NOW + 60, rank("5"))
    assert ends.start(-1, 0, lambda free: bool(free)) == (NOW + 60, nodes(0))


def test_newer_releases_take_what_has_ended_for_free_and_stop_where_they_would_look_next() -> None:
    ends = JobEnds(0, [JobEnd(NOW + at, nodes(number)) for number, at in enumerate((60, 600, 610, 625))], NOW)

    def found(need: int, begin: int, until: int) -> tuple[float, int] | None:
        return ends.start(-1, 0, lambda free: free.bit_count() >= need, NOW + begin, NOW + until)

    assert found(1, 60, 620) == (NOW, nodes(0))
    assert found(2, 60, 620) == (NOW + 610, nodes(0, 1, 2))
    assert found(2, 60, 3600) == (NOW + 625, nodes(0, 1, 2, 3))
    assert found(4, 60, 620) is None


def test_from_25_05_on_a_start_waits_only_for_the_jobs_on_chosen_nodes() -> None:
    """Slurm 26.05.5 planned so in tests/bftd/pool/backfill/test_job_ends_cluster.py."""
    ends = JobEnds(nodes(9), [JobEnd(NOW + at, nodes(number)) for number, at in enumerate((60, 600, 610, 625))], NOW)

    def found(need: int, *chosen: int, begin: float = -inf) -> tuple[float, int] | None:
        enough = lambda free: (free & ~nodes(9)).bit_count() >= need  # noqa: E731
        return ends.start(-1, 0, enough, begin, inf, lambda free: free & nodes(*chosen))

    assert found(2, 0, 1) == (NOW + 600, nodes(0, 1, 2, 3, 9))
    assert found(2, 0, 2, 9) == (NOW + 610, nodes(0, 1, 2, 3, 9))
    assert found(2, 0, 3) == (NOW + 625, nodes(0, 1, 2, 3, 9))
    assert found(2, 0, 9, begin=NOW + 100) == (NOW + 625, nodes(0, 1, 2, 3, 9))


def test_an_enormous_time_is_no_error() -> None:
    assert start({60: nodes(0), 1e300: nodes(1)}, 2) == pytest.approx(1e300)
