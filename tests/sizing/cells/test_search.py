"""The search against the enumeration of all combinations."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.cells import search
from sizing.cells.pipeline_time import Hiding, StageTimes, iteration_s

pytestmark = pytest.mark.slow

SECONDS = st.one_of(st.floats(0.0, 10.0), st.sampled_from([0.0, 1.0, 2.0, 3.0]))
OPTION = st.builds(StageTimes, work_s=SECONDS, bucket_s=SECONDS, buckets=st.integers(0, 3), update_s=SECONDS)
OPTIONS = st.lists(st.lists(OPTION, min_size=1, max_size=3), min_size=1, max_size=5)


def enumerated(options: list[list[StageTimes]], transfer: search.Transfer, micro_batches: int, hiding: Hiding) -> float:
    return min(
        iteration_s(search.timed(options, transfer, chosen), micro_batches, hiding)
        for chosen in itertools.product(*(range(len(each)) for each in options))
    )


@settings(max_examples=300)
@given(OPTIONS, st.integers(1, 20), st.sampled_from(["all", "buckets", "none"]), st.randoms(use_true_random=False))
def test_the_sweep_finds_what_enumerating_all_combinations_finds(
    options: list[list[StageTimes]], micro_batches: int, hiding: Hiding, rng: random.Random
) -> None:
    moves = {(i, a, b): rng.choice([0.0, rng.uniform(0, 5)]) for i in range(6) for a in range(3) for b in range(3)}

    def transfer(stage: int, before: int, own: int) -> float:
        return moves[stage, before, own]

    chosen = search.best(options, transfer, micro_batches, hiding)
    took_s = iteration_s(search.timed(options, transfer, chosen), micro_batches, hiding)
    assert took_s == pytest.approx(enumerated(options, transfer, micro_batches, hiding), abs=1e-9)


def test_a_way_that_is_longer_but_quick_to_reach_is_not_forgotten() -> None:
    """Where nothing hides, a stage pays for what it sends on: the cheaper way behind it may be dear to reach."""
    options = [[StageTimes(2.0)], [StageTimes(1.0), StageTimes(1.5)], [StageTimes(0.0)]]
    moves = {(1, 0, 0): 0.6, (1, 0, 1): 0.0, (2, 0, 0): 0.0, (2, 1, 0): 0.2}

    def transfer(*key: int) -> float:
        return moves[key]  # type: ignore[index]

    assert search.best(options, transfer, 1, "none") == (0, 0, 0)
    assert search.best(options, transfer, 10, "none") == (0, 1, 0)


@pytest.mark.parametrize("hiding", ["buckets", "none"])
def test_thirty_two_stages_of_three_splits_are_searched_in_moments(hiding: Hiding) -> None:
    rng = random.Random(1)
    options = [
        [StageTimes(rng.uniform(1, 2), bucket_s=rng.uniform(0, 2), buckets=2, update_s=rng.random()) for _ in range(3)]
        for _ in range(32)
    ]
    moves = {(i, a, b): rng.uniform(0, 0.3) for i in range(32) for a in range(3) for b in range(3)}
    began = time.process_time()
    chosen = search.best(options, lambda *key: moves[key], 128, hiding)
    assert time.process_time() - began < 5
    took_s = iteration_s(search.timed(options, lambda *key: moves[key], chosen), 128, hiding)
    # no single change of a stage makes it better
    for stage, own in itertools.product(range(32), range(3)):
        other = [*chosen[:stage], own, *chosen[stage + 1 :]]
        assert took_s <= iteration_s(search.timed(options, lambda *key: moves[key], other), 128, hiding) + 1e-9
