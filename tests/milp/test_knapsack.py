"""The dynamic program alone, against every combination of candidates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.solvers.knapsack import Candidates, cheapest

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


def candidates(choices: list[dict[int, float]]) -> Candidates:
    flat = sorted((row, count, loss) for row, choice in enumerate(choices) for count, loss in choice.items())
    rows, counts, losses = zip(*flat, strict=True)
    return Candidates(np.array(rows), np.array(counts), np.array(losses, float))
