"""The search against all choices there are: never a better one, nothing overdrawn, and more depth is never worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from studies.crius.search import EPSILON, Change, Choice, Offer, search
from studies.simulation.types import Allocation

pytestmark = pytest.mark.slow

TYPES = ("a", "b", "c")
Job = tuple[Allocation, dict[Allocation, float]]
cells = st.builds(Allocation, st.sampled_from(TYPES), st.sampled_from([1, 2, 4, 8]))
values = st.one_of(st.floats(0, 3, allow_nan=False), st.sampled_from([0.5, 1.0, 1.5, 2.0]))
jobs_of = st.lists(st.tuples(cells, st.dictionaries(cells, values, max_size=4)), max_size=7)


def need(allocation: Allocation, instead: Allocation | None = None) -> tuple[int, ...]:
    found = [allocation.gpus * (allocation.gpu_type == each) for each in TYPES]
    if instead is not None:
        found = [more - instead.gpus * (instead.gpu_type == each) for more, each in zip(found, TYPES, strict=True)]
    return tuple(found)


def changes_of(jobs: Sequence[Job]) -> list[Change]:
    return [
        Change(number, cell, value - 1.0, need(cell, held))
        for number, (held, others) in enumerate(jobs)
        for cell, value in others.items()
        if cell != held
    ]


def all_choices(
    offers: Sequence[Offer], changes: Sequence[Change], free: Sequence[int], depth: int
) -> Iterator[tuple[float, Offer | None, tuple[Change, ...]]]:
    by_job: dict[int, list[Change]] = {}
    for change in changes:
        by_job.setdefault(change.job, []).append(change)
    for offer in offers or [None]:
        for count in range(depth + 1):
            for some in combinations(by_job, count):
                for picked in product(*(by_job[number] for number in some)):
                    needs = [each.need for each in picked] + ([offer.need] if offer else [])
                    if all(sum(each[place] for each in needs) <= idle for place, idle in enumerate(free)):
                        yield (offer.value if offer else 0.0) + sum(each.gain for each in picked), offer, picked


def check(found: Choice, free: Sequence[int], depth: int, with_offer: bool) -> None:
    needs = [each.need for each in found.changes] + ([found.offer.need] if found.offer else [])
    assert all(sum(each[place] for each in needs) <= idle for place, idle in enumerate(free))
    assert len(found.changes) <= depth
    assert len({each.job for each in found.changes}) == len(found.changes)
    assert (found.offer is not None) == with_offer
    assert found.gain == pytest.approx((found.offer.value if found.offer else 0) + sum(e.gain for e in found.changes))
    assert found.gain > 0


@settings(max_examples=300, deadline=None)
@given(jobs_of, st.lists(st.tuples(cells, values), max_size=4), st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 3))
def test_the_best_choice_is_the_best_of_all_there_are(
    jobs: list[Job], wanted: list[tuple[Allocation, float]], free: tuple[int, ...], depth: int
) -> None:
    offers = [Offer(cell, value, need(cell)) for cell, value in wanted]
    changes = changes_of(jobs)
    best = max((gain for gain, _, _ in all_choices(offers, changes, free, depth)), default=0.0)
    found = search(offers, changes, free, depth)
    if found is None:
        assert best <= 1e-6
        return
    check(found, free, depth, bool(offers))
    assert found.exact
    assert found.gain == pytest.approx(best, abs=1e-6)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.randoms(use_true_random=False), st.sampled_from([3, 20, 10_000]))
def test_more_depth_is_never_worse_even_when_the_search_is_cut_short(rng: Random, most: int) -> None:
    kinds = [Allocation(gpu_type, gpus) for gpu_type in TYPES for gpus in (1, 2, 4, 8)]
    jobs: list[Job] = [
        (rng.choice(kinds), {cell: rng.uniform(0, 3) for cell in rng.sample(kinds, 4)}) for _ in range(20)
    ]
    offers = [Offer(cell, 1.0, need(cell)) for cell in rng.sample(kinds, rng.randint(0, 3))]
    free = tuple(rng.randint(0, 4) for _ in TYPES)
    gains = []
    for depth in range(5):
        found = search(offers, changes_of(jobs), free, depth, nodes_max=most)
        gains.append(found.gain if found else 0.0)
        if found:
            check(found, free, depth, bool(offers))
    assert all(after >= before - 10 * EPSILON for before, after in pairwise(gains))


def test_a_job_is_placed_by_freeing_gpus_and_not_at_the_price_of_throughput() -> None:
    held, half = Allocation("a", 8), Allocation("a", 4)
    wanted = [Offer(half, 0.9, need(half))]
    cheap, dear = Change(0, half, -0.3, need(half, held)), Change(1, half, -0.95, need(half, held))
    found = search(wanted, [dear, cheap], (0, 0, 0), 1)
    assert found is not None
    assert (found.offer, found.changes, found.gain) == (wanted[0], (cheap,), pytest.approx(0.6))
    assert search(wanted, [dear], (0, 0, 0), 1) is None
    assert search(wanted, [cheap], (0, 0, 0), 0) is None


def test_two_moves_in_a_ring_are_found_though_neither_fits_alone() -> None:
    one, other = Allocation("a", 4), Allocation("b", 4)
    there, back = Change(0, other, 0.5, need(other, one)), Change(1, one, 0.5, need(one, other))
    assert search([], [there, back], (0, 0, 0), 1) is None
    found = search([], [there, back], (0, 0, 0), 2)
    assert found is not None
    assert found.gain == 1.0


def test_nothing_to_choose_from_is_no_choice() -> None:
    assert search([], [], (1, 1, 1), 3) is None
    assert search([Offer(Allocation("a", 2), 1.0, (2, 0, 0))], [], (1, 1, 1), 3) is None


def test_of_equal_choices_always_the_same_one_is_taken() -> None:
    cell = Allocation("a", 1)
    offers = [Offer(Allocation(each, 1), 1.0, need(Allocation(each, 1))) for each in TYPES]
    changes = [Change(number, cell, 0.5, (1, 0, 0)) for number in range(20)]
    seen = {search(offers, changes, (2, 2, 2), 2) for _ in range(3)}
    assert len(seen) == 1
