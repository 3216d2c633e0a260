"""The benchmark of one driver with many nodes runs from end to end on few, and its figures are there."""

from __future__ import annotations

import pytest

from benchmarks.drivers import capacity, gloo_questions
from tests.support.messages import wording

pytestmark = pytest.mark.slow


@pytest.mark.horovod
def test_half_of_a_few_played_nodes_vanish_and_the_others_are_one_group_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_REST_S", 0.1)
    found = capacity.many(6, 2)
    assert found[wording("benchmarks.drivers_capacity.ranks_given")] > 0
    assert found[wording("benchmarks.drivers_capacity.first_step")] > 0
    assert found["open files"] > 6 * 3


@pytest.mark.horovod
def test_restarts_are_counted_from_when_they_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_RESTART_AGENTS", 3)
    monkeypatch.setattr(capacity, "_WARM_RESTARTS", 1)
    found = capacity.restarts(2, workers=1)
    assert (found["workers"], found["restarts"]) == (3, 2)
    assert found["a restart s"] > 0


@pytest.mark.horovod
def test_every_question_of_gloo_is_answered() -> None:
    found = gloo_questions.measure(6)
    assert found["questions"] == 60
    assert found["in s"] > 0


def test_the_table_tells_least_and_most_of_what_was_repeated_only() -> None:
    names = "a restart s", "driver KiB a restart", "helper KiB a restart"
    runs = [dict.fromkeys(names, value) for value in (1.0, 3.0, 2.0)]
    for repeated, figure in ((runs, "2 (1-3)"), (runs[:1], "1")):
        rows = capacity.table({"restarts": capacity.spread(repeated)}).splitlines()[2:]
        assert [row.count(f"{figure} ") for row in rows] == [1, 2]
