"""Rounds with observers are held against those without."""

from __future__ import annotations

import pytest

from benchmarks.scale import observers
from benchmarks.scale.observers import Round

pytestmark = pytest.mark.slow


def test_each_round_is_held_against_the_one_beside_it() -> None:
    alone = [Round([(1.0, 1.0)], [], 0.5), Round([(3.0, 1.0)], [], 0.5)]
    looked_at = [Round([(1.0, 1.1)], [], 0.5), Round([(3.0, 1.4)], [], 1.0)]
    growth = observers.compared(alone, looked_at, lambda each: each.whole[0])
    assert {name: round(value, 6) for name, value in growth.items()} == {"median": 0.075, "least": 0.05, "most": 0.1}
    assert observers.compared(alone, looked_at, lambda each: each.cpu_s)["most"] == 1.0


def test_an_answer_that_was_refused_does_not_count_as_fast() -> None:
    told = observers._answered([(0.2, 200, 900), (0.001, 503, 60), (0.1, 200, 800)])
    assert (told["asked"], told["answered"], told["statuses"]) == (3, 2, [200, 503])
    assert (told["median_s"], told["most_s"], told["bytes"]) == (0.2, 0.2, 900)


def test_the_table_marks_a_growth_beyond_its_bound() -> None:
    told = observers._told([Round([(1.0, 0.5)], [0.002], 0.5)])
    growth = {"median": observers.BOUND + 0.01, "least": 0.0, "most": 0.2}
    found = {"alone": told, "looked_at": told, "growth": growth, "growth_of_processor_time": growth, "answers": {}}
    assert "missed" in observers.table(found)
    assert "missed" not in observers.table(found | {"growth": growth | {"median": 0.0}})
