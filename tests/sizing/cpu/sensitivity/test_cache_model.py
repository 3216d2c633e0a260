"""The memory axis: the formula against an epoch played item by item, and the matrix that is made of it."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sizing.cpu.sensitivity import cache_model, search
from sizing.cpu.sensitivity.cache_model import Loading
from sizing.cpu.sensitivity.matrix import CpuMemory

GB = 10**9
ITEMS = 2_000


def played_s(loading: Loading, rate: float, memory_bytes: float, chance: random.Random) -> float:
    """Seconds of the third epoch of a loader with a cache that never evicts and 32 items ahead, item by item.

    In each epoch the order is another. What is fetched stays in the cache while it fits; one item is fetched at
    a time and one is worked on.
    """
    item_bytes = loading.dataset_bytes / ITEMS
    items_most = int((memory_bytes - loading.process_bytes) / item_bytes)
    work_s = loading.samples / ITEMS / rate
    cache: set[int] = set()
    now_s = took_s = 0.0
    for _ in range(3):
        fetched_s = [now_s]
        worked_s = [now_s] * 32
        for item in chance.sample(range(ITEMS), ITEMS):
            speed = loading.memory_bytes_per_s if item in cache else loading.disk_bytes_per_s
            if len(cache) < items_most:
                cache.add(item)
            fetched_s.append(max(fetched_s[-1], worked_s[-32]) + item_bytes / speed)
            worked_s.append(max(fetched_s[-1], worked_s[-1]) + work_s)
        took_s, now_s = worked_s[-1] - now_s, worked_s[-1]
    return took_s


@settings(max_examples=25, deadline=None)
@given(
    st.floats(10.0, 10_000.0),
    st.floats(0.0, 1.2),
    st.floats(1e8, 2e9),
    st.integers(0, 1000),
)
def test_an_epoch_played_item_by_item_is_never_faster_than_the_formula_and_a_tenth_slower_at_most(
    rate: float, part: float, disk: float, seed: int
) -> None:
    loading = Loading(1_000.0, 100 * GB, 10 * GB, disk, 5e9)
    memory_bytes = 10 * GB + part * 100 * GB
    [told] = cache_model.memory_rates(rate, loading, [memory_bytes])
    played = loading.samples / played_s(loading, rate, memory_bytes, random.Random(seed))
    assert 0.88 * told <= played <= 1.001 * told


LOADING = Loading(
    samples=1_000.0, dataset_bytes=100 * GB, process_bytes=20 * GB, disk_bytes_per_s=GB, memory_bytes_per_s=10 * GB
)


def test_below_the_memory_of_the_processes_the_job_does_not_run_and_with_all_data_cached_it_is_as_fast_as_it_can() -> (
    None
):
    slow, none, half, full, more = cache_model.memory_rates(
        50.0, LOADING, [19 * GB, 20 * GB, 70 * GB, 120 * GB, 500 * GB]
    )
    assert slow == 0.0
    assert none == pytest.approx(1_000 / 100)
    assert half == pytest.approx(1_000 / (50 + 5))
    assert full == more == 50.0


def test_a_job_that_reads_little_is_as_fast_with_no_cache() -> None:
    assert cache_model.memory_rates(9.0, LOADING, [20 * GB, 120 * GB]) == (9.0, 9.0)


def test_the_axis_has_the_least_memory_with_which_fetching_does_not_slow_the_job_and_nothing_beyond_what_there_is() -> (
    None
):
    axis = cache_model.memory_axis(50.0, LOADING, 110 * GB)
    assert axis[0] == 20 * GB
    assert axis[-1] == 110 * GB
    rates = cache_model.memory_rates(50.0, LOADING, axis)
    first = next(at for at, rate in zip(axis, rates, strict=True) if rate == pytest.approx(50.0))
    assert LOADING.fetch_s(first) == pytest.approx(1_000 / 50)
    assert LOADING.fetch_s(first - GB) > 1_000 / 50


def test_of_a_data_set_that_no_memory_holds_the_axis_divides_what_there_is() -> None:
    huge = replace(LOADING, dataset_bytes=10_000 * GB)
    axis = cache_model.memory_axis(50.0, huge, 100 * GB)
    assert axis == tuple(20 * GB + 10 * GB * part for part in range(9))
    rates = cache_model.memory_rates(50.0, huge, axis)
    assert all(a < b for a, b in itertools.pairwise(rates))


def test_memory_that_the_data_do_not_fill_is_no_part_of_the_axis() -> None:
    assert max(cache_model.memory_axis(50.0, LOADING, 500 * GB)) == 120 * GB


def test_where_the_processes_need_more_than_there_is_the_axis_is_what_there_is_and_nothing_runs() -> None:
    axis = cache_model.memory_axis(50.0, LOADING, 10 * GB)
    assert axis == (10 * GB,)
    assert cache_model.memory_rates(50.0, LOADING, axis) == (0.0,)


@example(1.0, 1.0, 1.0, 5e-324, 1000.0, 1.0)
@given(
    st.floats(1e-3, 1e6),
    st.floats(1, 1e9),
    st.floats(1, 1e16),
    st.floats(0, 1e13),
    st.floats(1e3, 1e11),
    st.floats(1, 1e13),
)
def test_whatever_the_sizes_are_the_axis_makes_a_matrix_in_which_more_memory_is_never_slower(
    rate: float, samples: float, data: float, base: float, disk: float, most: float
) -> None:
    loading = Loading(samples, data, base, disk, 5e9)
    axis = cache_model.memory_axis(rate, loading, most)
    found = search.search((1, 2, 3), {1: rate / 3, 2: rate, 3: rate}.__getitem__)
    made = cache_model.matrix(found, 2, loading, axis)
    assert all(a <= b * (1 + 1e-9) for row in made.rates for a, b in itertools.pairwise(row))
    assert made.best <= rate
    assert made.demand().cpus == 1.0


def test_a_matrix_is_for_each_gpu_and_says_which_rates_were_measured() -> None:
    rates = {2: 20.0, 4: 40.0, 6: 50.0, 8: 50.0}
    found = search.search(tuple(rates), rates.__getitem__)
    made = cache_model.matrix(found, 2, LOADING, [20 * GB, 120 * GB])
    assert made.gpus == 2
    assert made.cpus == (1.0, 2.0, 3.0, 4.0)
    assert made.memory_bytes == (10 * GB, 60 * GB)
    assert made.rate(CpuMemory(3.0, 60 * GB)) == 50.0
    assert made.rate(CpuMemory(3.0, 10 * GB)) == pytest.approx(10.0)
    tried = ["measured" if cpus in found.tried else "interpolated" for cpus in rates]
    assert list(made.origins) == tried
    assert made.demand() == CpuMemory(3.0, 60 * GB)


def test_with_all_data_in_memory_a_job_is_as_fast_as_it_was_however_slowly_one_thread_copies() -> None:
    found = search.search((1, 2), {1: 500.0, 2: 1_000.0}.__getitem__)  # 100 GB a second, at ten of one thread
    axis = cache_model.memory_axis(found.best, LOADING, 500 * GB)
    made = cache_model.matrix(found, 1, LOADING, axis)
    assert [row[-1] for row in made.rates] == [500.0, 1_000.0]
    assert made.rates[1][0] == pytest.approx(1_000 / 100)
    assert made.demand() == CpuMemory(2, 120 * GB)


def test_without_a_data_set_memory_counts_for_nothing() -> None:
    found = search.search((1, 2), {1: 1.0, 2: 2.0}.__getitem__)
    made = cache_model.matrix(found, 0, None, [3 * GB])
    assert (made.gpus, made.rates, made.demand()) == (1, ((1.0,), (2.0,)), CpuMemory(2.0, 3 * GB))


def test_the_demand_of_a_searched_matrix_is_that_of_the_search_and_not_of_the_noise() -> None:
    found = search.search((1, 2), {1: 0.96, 2: 1.0}.__getitem__)
    made = cache_model.matrix(found, 1, None, [GB])
    assert made.demand().cpus == 1.0
    assert replace(made, searched=None).demand().cpus == 2.0


@pytest.mark.parametrize("field", ["samples", "dataset_bytes", "disk_bytes_per_s", "memory_bytes_per_s"])
def test_what_must_be_more_than_0_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        replace(LOADING, **{field: 0.0})
