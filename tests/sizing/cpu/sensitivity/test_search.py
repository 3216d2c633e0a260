"""The search of CPUs: what it finds on curves of every form, with how few points, and what it makes of noise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sizing.base.errors import SizingError
from sizing.cpu.sensitivity import search
from sizing.cpu.sensitivity.matrix import SATURATED
from sizing.cpu.sensitivity.search import SearchState
from tests.support.messages import pattern

RISING = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=70).map(sorted)
RECORDED = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 12.0, 24.0)


def searched(rates: Sequence[float], cpus: Sequence[float] = (), threshold: float = search.THRESHOLD) -> SearchState:
    """A search on these rates, by default of 1, 2, 3... CPUs, in which nothing is measured twice."""
    cpus = cpus or range(1, len(rates) + 1)
    left = dict(zip(cpus, rates, strict=True))
    return search.search(cpus, left.pop, threshold)


def whole(most: int) -> range:
    return range(1, most + 1)


@given(RISING)
def test_on_every_rising_curve_it_loses_less_than_the_threshold_and_tries_few(rates: list[float]) -> None:
    found = searched(rates)
    demand = rates[int(found.demand) - 1]
    assert demand * (1 + found.threshold) >= rates[-1]
    assert len(found.tried) <= search.points_most(len(rates))
    assert found.best == rates[-1]
    assert found.following() is None


@given(st.lists(st.floats(0.0, 0.9), max_size=40).map(sorted), st.lists(st.floats(0.985, 1.0), max_size=40).map(sorted))
def test_it_is_the_full_sweep_where_the_last_cpus_that_count_bring_more_than_the_threshold(
    below: list[float], plateau: list[float]
) -> None:
    rates = [*below, *plateau, 1.0]
    assert searched(rates).demand == search.sweep(whole(len(rates)), rates) == len(below) + 1


@given(st.integers(1, 128), st.floats(0.5, 200.0))
def test_it_is_within_one_step_of_the_full_sweep_on_any_curve_that_rises_in_proportion_and_then_is_flat(
    most: int, knee: float
) -> None:
    rates = [min(cpus, knee) for cpus in whole(most)]
    assert abs(searched(rates).demand - search.sweep(whole(most), rates)) <= 1


@given(RISING)
def test_with_a_threshold_of_two_percent_it_is_the_full_sweep_on_every_rising_curve(rates: list[float]) -> None:
    assume(not any(rate == pytest.approx(SATURATED * rates[-1]) for rate in rates))  # 1 / 0.98 is no float
    found = searched(rates, threshold=1 / SATURATED - 1)
    assert found.demand == search.sweep(whole(len(rates)), rates)


@given(st.integers(1, 24), st.randoms(use_true_random=False))
def test_noise_of_three_percent_on_a_plateau_moves_it_by_one_step_or_an_eighth(
    knee: int, chance: random.Random
) -> None:
    exact = [0.8 * cpus / knee if cpus < knee else 1.0 for cpus in whole(24)]
    found = searched([rate * chance.uniform(0.97, 1.03) for rate in exact])
    assert knee <= found.demand <= max(knee + 1, knee * 1.125)


def test_a_curve_that_rises_again_after_a_flat_part_is_followed_to_its_end() -> None:
    rates = [1.0] * 10 + [2.0] * 6 + [3.0] * 8
    found = searched(rates)
    assert found.demand == search.sweep(whole(24), rates) == 17
    assert len(found.tried) <= 7


def test_a_curve_that_bends_slowly_is_left_where_more_cpus_return_less_than_half_of_their_share() -> None:
    rates = [cpus / (cpus + 2) for cpus in whole(24)]
    found = searched(rates)
    assert (found.demand, search.sweep(whole(24), rates)) == (11, 19)
    assert rates[18] / rates[10] - 1 < 0.5 * (19 / 11 - 1)


def test_a_loader_that_needs_the_last_cpus_gets_them_though_the_threshold_is_reached_with_fewer() -> None:
    found = searched([float(cpus) for cpus in whole(24)])
    assert found.within == 22
    assert found.demand == 24


def test_where_more_cpus_are_slower_the_best_that_was_seen_counts() -> None:
    rates = [min(cpus, 4) - 0.1 * max(0, cpus - 4) for cpus in whole(16)]
    found = searched(rates)
    assert found.demand == 4
    assert found.best == 4.0
    shown = search.curve(found)
    assert [shown[cpus] for cpus in whole(16)] == sorted(shown.values())
    assert shown[16] == 4.0


@pytest.mark.parametrize(("gain", "demand"), [(1.08, 1), (2.0, 2)])
def test_of_two_cpus_the_second_is_asked_for_where_it_brings_more_than_the_threshold(gain: float, demand: int) -> None:
    found = searched([1.0, gain])
    assert (found.demand, list(found.tried)) == (demand, [2, 1])


def test_one_cpu_is_measured_once_and_is_the_demand() -> None:
    found = searched([3.0])
    assert (found.demand, dict(found.tried)) == (1, {1: 3.0})
    assert search.points_most(1) == 1


def test_cpus_with_which_the_job_does_not_run_are_not_enough() -> None:
    assert searched([0.0, 0.0, 0.0, 1.0, 1.0]).demand == 4


def test_a_search_that_was_broken_off_has_a_demand_and_goes_on_from_its_points() -> None:
    rates = dict(zip(RECORDED, (0.3, 0.66, 1.0, 1.25, 1.53, 1.75, 2.0, 2.94, 2.94), strict=True))
    whole_search = search.search(RECORDED, rates.__getitem__)
    found, seen = search.begin(RECORDED), []
    while (at := found.following()) is not None:
        found = SearchState(found.cpus, found.tell(at, rates[at]).tried)  # as from a cache
        seen.append(found.demand)
    assert found == whole_search
    assert seen == [24.0, 24.0, 24.0, 24.0, 12.0]


def test_a_first_point_that_was_slower_than_one_with_fewer_cpus_is_named_and_once_told_again_counts() -> None:
    exact = dict(zip(whole(24), map(float, whole(24)), strict=True))
    found = search.begin(tuple(exact)).tell(24, 11.0)  # its data came from the disk
    assert found.slower is None
    found = found.tell(12, exact[12])
    assert found.slower == 24
    found = found.tell(24, exact[24])
    assert (found.slower, found.within, found.following()) == (None, 24, 18)


def test_a_point_that_is_a_little_slower_than_one_with_fewer_cpus_is_noise() -> None:
    assert SearchState((1, 2), {2: 0.96, 1: 1.0}).slower is None


def test_points_that_are_known_already_make_the_search_shorter() -> None:
    known = SearchState(tuple(RECORDED), {24.0: 2.0, 3.0: 1.0, 4.0: 2.0})
    assert known.following() is None
    assert known.demand == 4.0


@pytest.mark.parametrize("cpus", [(), (0, 1), (2, 1), (1, 1)])
def test_cpus_that_do_not_ascend_from_above_0_are_refused(cpus: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        search.begin(cpus)


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=pattern("sizing.cpu_search.bad_rate")):
        search.search([1, 2], lambda cpus: rate)


def test_no_throughput_with_all_cpus_is_one_line_that_says_what_to_do() -> None:
    with pytest.raises(SizingError, match="^" + pattern("sizing.cpu_search.no_throughput", most="8 CPUs")):
        search.search([1, 8], lambda cpus: 0.0)
    with pytest.raises(SizingError, match="any CPUs"):
        _ = search.begin([1, 8]).demand


@given(RISING)
def test_the_curve_goes_through_what_was_tried_and_never_falls(rates: list[float]) -> None:
    found = searched(rates)
    shown = search.curve(found)
    assert list(shown) == list(whole(len(rates)))
    assert all(shown[cpus] == rate for cpus, rate in found.tried.items())
    assert all(a <= b + 1e-9 for a, b in zip(shown.values(), list(shown.values())[1:], strict=False))


@given(st.integers(1, 64), st.floats(0.1, 50.0))
def test_of_a_job_that_gains_less_with_each_cpu_the_curve_promises_no_more_than_there_is(
    most: int, half: float
) -> None:
    rates = [cpus / (cpus + half) for cpus in whole(most)]
    shown = search.curve(searched(rates))
    assert all(shown[cpus] <= rate + 1e-9 for cpus, rate in zip(whole(most), rates, strict=True))
