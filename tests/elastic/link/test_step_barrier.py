"""Save requests at the end of a step: all workers save at it, or none does."""

from __future__ import annotations

import threading

import pytest

from elastic.link.step_barrier import QUESTIONS, SaveRequest, StepBarrier
from tests.support.waiting import STILL_S


def request(barrier: StepBarrier, step: int, *, number: int = 1, pause: bool = False) -> str:
    answer = barrier.answer({"op": "request_save", "step": step, "number": number, "pause": pause})
    assert answer is not None
    assert answer["number"] == number
    return str(answer["op"])


def test_a_step_that_has_ended_gets_no_save_request() -> None:
    barrier = StepBarrier()
    barrier.passed(7, 1.0)
    assert [request(barrier, step) for step in (6, 7, 8)] == ["late", "late", "accepted"]


def test_a_step_has_one_request_so_a_second_one_cannot_withdraw_the_first() -> None:
    barrier = StepBarrier()
    request(barrier, 4)
    assert request(barrier, 4, number=2, pause=True) == "late"
    barrier.answer({"op": "withdraw_save", "step": 4, "number": 2})
    barrier.answer({"op": "confirm_save", "step": 4, "number": 1})
    assert barrier.passed(4, 1.0) == SaveRequest(1, pause=False, confirmed=True)


def test_a_step_with_a_confirmed_request_is_passed_once_without_a_wait() -> None:
    barrier = StepBarrier()
    request(barrier, 2, pause=True)
    assert barrier.answer({"op": "confirm_save", "step": 2, "number": 1}) is None
    assert barrier.passed(1, 1.0) is None
    assert barrier.passed(2, 2.0) == SaveRequest(1, pause=True, confirmed=True)
    assert barrier.passed(3, 3.0) is None


def test_a_driver_of_0_1_is_understood_until_1_1() -> None:
    barrier, old = StepBarrier(), {"step": 2, "number": 1, "pause": False}
    assert {"gate", "open", "clear"} <= QUESTIONS
    assert barrier.answer({"op": "gate", **old}) == {"op": "gated", "number": 1}
    assert barrier.answer({"op": "gate", **old, "number": 2}) == {"op": "late", "number": 2}
    barrier.answer({"op": "clear", **old})
    barrier.answer({"op": "gate", **old, "number": 3})
    barrier.answer({"op": "open", **old, "number": 3})
    assert barrier.passed(2, 1.0) == SaveRequest(3, pause=False, confirmed=True)


@pytest.mark.parametrize(("word", "saves"), [("confirm_save", True), ("withdraw_save", False)])
def test_who_ends_a_step_with_a_request_waits_until_the_others_have_answered(word: str, saves: bool) -> None:
    barrier, found = StepBarrier(), list[SaveRequest | None]()
    request(barrier, 1)
    training = threading.Thread(target=lambda: found.append(barrier.passed(1, 1.0)), daemon=True)
    training.start()
    training.join(0.05)
    assert training.is_alive()
    barrier.answer({"op": word, "step": 1, "number": 1})
    training.join(STILL_S)
    assert [one is not None for one in found] == [saves]


def test_a_request_that_was_jumped_over_is_forgotten() -> None:
    barrier = StepBarrier()
    request(barrier, 3)
    assert barrier.passed(5, 1.0) is None  # a script that counts in fives
    barrier.answer({"op": "confirm_save", "step": 3, "number": 1})
    assert barrier.passed(3, 2.0) is None


def test_where_a_worker_is_it_tells_with_its_pace() -> None:
    barrier = StepBarrier()
    still = {"op": "at", "by_clock": False, "size": 0, "busy": False, "save_s": 0.0}
    assert barrier.answer({"op": "where"}) == {**still, "step": 0, "step_s": 0.0}
    barrier.passed(8, 10.0)
    barrier.passed(9, 10.5)
    assert barrier.answer({"op": "where"}) == {**still, "step": 9, "step_s": 0.5}


def test_what_a_save_costs_is_what_its_step_takes_more_than_others_and_is_no_pace() -> None:
    barrier, told = StepBarrier(), list[tuple[bool, float, float]]()

    def look() -> None:
        answer = barrier.answer({"op": "where"})
        assert answer is not None
        told.append((answer["busy"], answer["step_s"], answer["save_s"]))

    for step in range(1, 4):
        barrier.passed(step, float(step))
    request(barrier, 4)
    look()  # a save is requested
    barrier.answer({"op": "confirm_save", "step": 4, "number": 1})
    look()  # and is open, and not come to
    assert barrier.passed(4, 4.0) is not None
    look()  # the script saves
    barrier.passed(5, 17.0)
    look()
    barrier.passed(6, 18.0)
    look()
    assert told == [(True, 1.0, 0.0)] * 3 + [(False, 1.0, 12.0)] * 2


def test_what_comes_after_the_save_and_before_the_next_step_is_no_part_of_its_cost() -> None:
    barrier = StepBarrier()
    barrier.passed(1, 1.0)
    barrier.saved(1.5)  # of the script's own accord
    barrier.passed(2, 2.0)
    request(barrier, 3)
    barrier.answer({"op": "confirm_save", "step": 3, "number": 1})
    barrier.passed(3, 3.0)
    barrier.saved(15.0)
    answer = barrier.answer({"op": "where"})
    assert answer is not None
    assert answer["busy"], "it has not come to the next step"
    barrier.passed(4, 615.0)
    answer = barrier.answer({"op": "where"})
    assert answer is not None
    assert (answer["busy"], answer["save_s"], answer["step_s"]) == (False, 12.0, 1.0)
