"""What `milp.solve` says of its plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milp import Plan, solve, solving, verify


def test_without_explain_no_sentence_is_written_and_nothing_else_differs(trainer, problem, monkeypatch) -> None:
    asked = problem(5, trainer("a", current=("n0",)), trainer("b"))
    told = solve(asked)
    assert told.reasons.keys() == {"a", "b"}
    monkeypatch.setattr(solving, "sentences", lambda *_: pytest.fail("wrote sentences"))
    silent = solve(asked, explain=False)
    assert silent.reasons == {}
    assert replace(silent, reasons=told.reasons, wall_s=told.wall_s) == told
    verify(asked, silent)


def test_without_explain_not_even_a_kept_map_has_sentences(trainer, problem) -> None:
    capped = problem(4, trainer("a", current=("n0",)))
    assert solve(capped, "highs", time_limit_s=0).reasons.keys() == {"a"}
    assert solve(capped, "highs", time_limit_s=0, explain=False).reasons == {}


def test_a_plan_knows_the_very_problem_that_it_was_verified_for(trainer, problem) -> None:
    asked = problem(3, trainer())
    plan = solve(asked)
    assert plan.verified_for is asked
    assert replace(plan).verified_for is None
    with pytest.raises(TypeError):
        Plan({}, {}, 0.0, 0.0, 0.0, "optimal", "hand", 0.0, {}, verified_for=asked)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="verified_for"):
        replace(plan, verified_for=asked)


@pytest.mark.parametrize("field", ["assignment", "counts", "reasons"])
def test_a_verified_plan_stays_as_it_was_verified(trainer, problem, field: str) -> None:
    plan = solve(problem(3, trainer()))
    with pytest.raises(TypeError):
        getattr(plan, field)["a"] = ()
