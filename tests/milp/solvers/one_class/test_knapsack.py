"""The dynamic program alone, against every combination of candidates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.solvers.one_class.knapsack import Candidates, cheapest

pytestmark = pytest.mark.slow

# Quarters add up without rounding, so that a total on the limit is within it.
LOSSES = st.integers(0, 12).map(lambda quarters: quarters / 4)
CHOICES = st.lists(st.dictionaries(st.integers(0, 8), LOSSES, min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=400, deadline=None)
@given(CHOICES, st.integers(0, 25), LOSSES, LOSSES)
def test_the_cheapest_combination_that_fits_is_found_unless_it_exceeds_the_limit(
    choices: list[dict[int, float]], capacity: int, price: float, limit: float
) -> None:
    def total(counts: tuple[int, ...]) -> float:
        lost = sum(choice[count] for choice, count in zip(choices, counts, strict=True))
        return lost + price * (capacity - sum(counts))

    fitting = [counts for counts in itertools.product(*choices) if sum(counts) <= capacity]
    best = min(map(total, fitting), default=np.inf)
    found = cheapest(candidates(choices), capacity, price, limit)
    if best > limit:
        assert found is None
    else:
        assert found is not None
        assert sum(found) <= capacity
        assert total(tuple(found.tolist())) == pytest.approx(best, abs=1e-12)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(CHOICES.map(lambda rows: rows[0]), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(0, 80),
    LOSSES,
    LOSSES,
    st.none() | LOSSES,
    st.randoms(use_true_random=False),
)
def test_many_trainers_with_equal_choices_are_decided_together_and_no_worse(
    kinds: list[tuple[dict[int, float], int]], capacity: int, price: float, limit: float, reach: float | None, random
) -> None:
    order = list(range(sum(times for _, times in kinds)))
    random.shuffle(order)
    members, least = [], {0: 0.0}
    for choice, times in kinds:
        members.append(sorted(order[:times]))
        del order[:times]
        for _ in range(times):
            after: dict[int, float] = {}
            for used, lost in least.items():
                for count, loss in choice.items():
                    if used + count <= capacity:
                        after[used + count] = min(after.get(used + count, np.inf), lost + loss)
            least = after
    best = min((lost + price * (capacity - used) for used, lost in least.items()), default=np.inf)
    found = cheapest(candidates([choice for choice, _ in kinds]), capacity, price, limit, members=members, reach=reach)
    if best <= limit and (reach is None or best <= reach):
        assert found is not None
    if found is not None:
        kind_of = {row: choice for (choice, _), rows in zip(kinds, members, strict=True) for row in rows}
        lost = sum(kind_of[row][count] for row, count in enumerate(found.tolist()))
        total = lost + price * (capacity - sum(found.tolist()))
        assert sum(found) <= capacity
        assert total <= limit
        assert total == best or (reach is not None and best > reach)
        for rows in members:  # of equal trainers the earlier ones get more
            assert sorted(found[rows], reverse=True) == found[rows].tolist()


def candidates(choices: list[dict[int, float]]) -> Candidates:
    flat = sorted((row, count, loss) for row, choice in enumerate(choices) for count, loss in choice.items())
    rows, counts, losses = zip(*flat, strict=True)
    return Candidates(np.array(rows), np.array(counts), np.array(losses, float))
