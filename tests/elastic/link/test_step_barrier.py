"""Gates in front of a step: all workers save at it, or none does."""

from __future__ import annotations

import threading

import pytest

from elastic.link.step_barrier import SaveRequest, StepBarrier
from tests.support.waiting import STILL_S


def gate(fence: StepBarrier, step: int, *, number: int = 1, pause: bool = False) -> str:
    answer = fence.answer({"op": "gate", "step": step, "number": number, "pause": pause})
    assert answer is not None
    assert answer["number"] == number
    return str(answer["op"])


def test_a_step_that_has_ended_gets_no_gate() -> None:
    fence = StepBarrier()
    fence.passed(7, 1.0)
    assert [gate(fence, step) for step in (6, 7, 8)] == ["late", "late", "gated"]


def test_a_step_has_one_gate_so_a_second_agreement_cannot_take_the_first_ones_away() -> None:
    fence = StepBarrier()
    gate(fence, 4)
    assert gate(fence, 4, number=2, pause=True) == "late"
    fence.answer({"op": "clear", "step": 4, "number": 2})
    fence.answer({"op": "open", "step": 4, "number": 1})
    assert fence.passed(4, 1.0) == SaveRequest(1, pause=False, opened=True)


def test_an_open_gate_is_passed_once_without_a_wait() -> None:
    fence = StepBarrier()
    gate(fence, 2, pause=True)
    assert fence.answer({"op": "open", "step": 2, "number": 1}) is None
    assert fence.passed(1, 1.0) is None
    assert fence.passed(2, 2.0) == SaveRequest(1, pause=True, opened=True)
    assert fence.passed(3, 3.0) is None


@pytest.mark.parametrize(("word", "saves"), [("open", True), ("clear", False)])
def test_who_comes_to_a_gate_waits_until_the_others_have_answered(word: str, saves: bool) -> None:
    fence, found = StepBarrier(), list[SaveRequest | None]()
    gate(fence, 1)
    training = threading.Thread(target=lambda: found.append(fence.passed(1, 1.0)), daemon=True)
    training.start()
    training.join(0.05)
    assert training.is_alive()
    fence.answer({"op": word, "step": 1, "number": 1})
    training.join(STILL_S)
    assert [one is not None for one in found] == [saves]


def test_a_gate_that_was_jumped_over_is_forgotten() -> None:
    fence = StepBarrier()
    gate(fence, 3)
    assert fence.passed(5, 1.0) is None  # a script that counts in fives
    fence.answer({"op": "open", "step": 3, "number": 1})
    assert fence.passed(3, 2.0) is None


def test_where_a_worker_is_it_tells_with_its_pace() -> None:
    fence = StepBarrier()
    still = {"op": "at", "by_clock": False, "busy": False, "save_s": 0.0}
    assert fence.answer({"op": "where"}) == {**still, "step": 0, "step_s": 0.0}
    fence.passed(8, 10.0)
    fence.passed(9, 10.5)
    assert fence.answer({"op": "where"}) == {**still, "step": 9, "step_s": 0.5}


def test_what_a_save_costs_is_what_its_step_takes_more_than_others_and_is_no_pace() -> None:
    fence, told = StepBarrier(), list[tuple[bool, float, float]]()

    def look() -> None:
        answer = fence.answer({"op": "where"})
        assert answer is not None
        told.append((answer["busy"], answer["step_s"], answer["save_s"]))

    for step in range(1, 4):
        fence.passed(step, float(step))
    gate(fence, 4)
    look()  # a gate is put
    fence.answer({"op": "open", "step": 4, "number": 1})
    look()  # and is open, and not come to
    assert fence.passed(4, 4.0) is not None
    look()  # the script saves
    fence.passed(5, 17.0)
    look()
    fence.passed(6, 18.0)
    look()
    assert told == [(True, 1.0, 0.0)] * 3 + [(False, 1.0, 12.0)] * 2


def test_what_comes_after_the_save_and_before_the_next_step_is_no_part_of_its_cost() -> None:
    fence = StepBarrier()
    fence.passed(1, 1.0)
    fence.saved(1.5)  # of the script's own accord
    fence.passed(2, 2.0)
    gate(fence, 3)
    fence.answer({"op": "open", "step": 3, "number": 1})
    fence.passed(3, 3.0)
    fence.saved(15.0)
    answer = fence.answer({"op": "where"})
    assert answer is not None
    assert answer["busy"], "it has not come to the next step"
    fence.passed(4, 615.0)
    answer = fence.answer({"op": "where"})
    assert answer is not None
    assert (answer["busy"], answer["save_s"], answer["step_s"]) == (False, 12.0, 1.0)
