"""Agreeing on a step with workers that go on training meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.driver.saving.step_barrier import Agreement
from elastic.link.peer import Peer
from elastic.link.step_barrier import StepBarrier
from elastic.link.wire import Message
from tests.elastic.fakes import until
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


class Worker:
    """A worker's fence at the other end of a connection that takes its time, but keeps the order."""

    def __init__(
        self, agreement: Agreement, delay_s: Callable[[], float] = lambda: 0.0, by_clock: bool = False
    ) -> None:
        self.fence = StepBarrier()
        self.fence.by_clock = by_clock
        self.told: list[Message] = []
        self.deaf = False
        self._agreement = agreement
        self._delay_s = delay_s
        self._due_s = 0.0

    @property
    def peer(self) -> Peer:
        return cast(Peer, self)

    def send(self, message: Message) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = max(loop.time() + self._delay_s(), self._due_s)
        loop.call_at(self._due_s, self._heard, message)

    def _heard(self, message: Message) -> None:
        self.told.append(message)
        if not self.deaf and (answer := self.fence.answer(message)):
            self._agreement.received(self.peer, answer)


@pytest.fixture
def agreement() -> Agreement:
    return Agreement()


def scene(body: Callable[[Agreement], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(body(Agreement()), STILL_S)

    asyncio.run(run())


async def agree(agreement: Agreement, *workers: Worker, pause: bool = True, limit_s: float = STILL_S) -> bool:
    return await agreement.agree([worker.peer for worker in workers], pause=pause, limit_s=limit_s)


def ops(worker: Worker) -> list[str]:
    return [message["op"] for message in worker.told]


async def test_a_step_that_nobody_has_ended_is_opened_on_all(agreement: Agreement) -> None:
    quick, slow = Worker(agreement), Worker(agreement)
    quick.fence.passed(8, 1.0)
    slow.fence.passed(7, 1.0)
    assert await agree(agreement, quick, slow)
    await until("told", lambda: len(slow.told) == 3)
    for worker in (quick, slow):
        assert ops(worker) == ["where", "gate", "open"]
        assert worker.fence.passed(9, 2.0) is not None


async def test_a_worker_that_was_quicker_has_a_later_step_tried_and_the_first_gate_is_taken_away(
    agreement: Agreement,
) -> None:
    quick, slow = Worker(agreement), Worker(agreement)
    slow.fence.passed(1, 1.0)
    put = quick.fence.answer

    def overtaken(message: Message) -> Message | None:
        if message["op"] == "gate" and message["step"] == 2:
            quick.fence.passed(2, 2.0)
        return put(message)

    quick.fence.answer = overtaken  # type: ignore[method-assign]
    assert await agree(agreement, quick, slow)
    await until("told", lambda: len(slow.told) == 6)
    assert ops(slow) == ["where", "gate", "clear", "where", "gate", "open"]
    assert slow.fence.passed(2, 3.0) is None
    assert slow.fence.passed(3, 4.0) is not None


async def test_no_gate_is_left_when_a_worker_does_not_answer_or_is_lost(agreement: Agreement) -> None:
    for lost in (False, True):
        well, ill = Worker(agreement), Worker(agreement)
        well.fence.passed(1, 1.0)
        put = ill.fence.answer
        ill.fence.answer = lambda message, put=put: put(message) if message["op"] == "where" else None  # type: ignore[method-assign,misc]
        asking = asyncio.ensure_future(agree(agreement, well, ill, limit_s=STILL_S if lost else 0.05))
        await until("a gate is put", lambda well=well: "gate" in ops(well))
        if lost:
            agreement.gone(ill.peer)
        assert not await asking
        await until("taken away", lambda well=well: ops(well)[-1] == "clear")
        assert well.fence.passed(2, 2.0) is None


async def test_regression_a_resize_before_any_worker_was_connected_ended_the_driver(agreement: Agreement) -> None:
    assert not await agree(agreement)
    assert not await agree(agreement, pause=False)


async def test_an_answer_that_comes_late_is_not_taken_for_one_to_the_next_question(agreement: Agreement) -> None:
    worker = Worker(agreement)
    worker.fence.passed(1, 1.0)
    asking = asyncio.ensure_future(agree(agreement, worker))
    await asyncio.sleep(0)
    agreement.received(worker.peer, {"op": "gated", "number": 7})
    agreement.received(worker.peer, {"op": "late", "number": 7})
    assert await asking
    await until("told", lambda: len(worker.told) == 3)
    assert [(message["op"], message["step"]) for message in worker.told[1:]] == [("gate", 2), ("open", 2)]


async def test_a_script_that_counts_no_steps_is_not_waited_for(agreement: Agreement) -> None:
    one, other = Worker(agreement), Worker(agreement)
    assert not await agree(agreement, one, other)
    assert ops(one) == ["where"]


async def test_a_script_that_saves_by_its_own_interval_is_left_alone(agreement: Agreement) -> None:
    for by_clock in (False, True):
        worker = Worker(agreement, by_clock=by_clock)
        worker.fence.passed(1, 1.0)
        assert await agree(agreement, worker, pause=False) is by_clock
        if by_clock:
            await until("opened", lambda worker=worker: ops(worker)[-1] == "open")
            found = worker.fence.passed(2, 2.0)
            assert found is not None
            assert not found.pause


async def test_regression_a_worker_that_still_saved_was_asked_for_the_next_save(agreement: Agreement) -> None:
    saving, other = Worker(agreement, by_clock=True), Worker(agreement, by_clock=True)
    for worker in (saving, other):
        worker.fence.passed(1, 1.0)
    assert await agree(agreement, saving, other, pause=False)
    await until("opened", lambda: ops(saving)[-1] == ops(other)[-1] == "open")
    assert not await agree(agreement, saving, other, pause=False), "it is about to"
    for worker in (saving, other):
        assert worker.fence.passed(2, 2.0) is not None
    other.fence.passed(3, 3.0)
    assert not await agree(agreement, saving, other, pause=False)
    assert other.fence.passed(4, 4.0) is None
    saving.fence.passed(3, 15.0)
    asked: list[float] = []
    for worth in (False, True):
        found = await agreement.agree(
            [saving.peer, other.peer],
            pause=False,
            limit_s=STILL_S,
            worth=lambda save_s, worth=worth: asked.append(save_s) or worth,  # type: ignore[misc,func-returns-value]
        )
        assert found is worth
    assert asked == [12.0, 12.0]


async def test_a_resize_is_not_put_off_by_a_save(agreement: Agreement) -> None:
    worker = Worker(agreement, by_clock=True)
    worker.fence.passed(1, 1.0)
    assert await agree(agreement, worker, pause=False)
    await until("opened", lambda: ops(worker)[-1] == "open")
    assert worker.fence.passed(2, 2.0) is not None
    assert await agree(agreement, worker, pause=True)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(0, 1 << 16), st.sampled_from([0.0, 0.0005, 0.003]))
def test_workers_in_step_with_each_other_all_save_at_the_same_steps(count: int, seed: int, step_s: float) -> None:
    drawn = random.Random(seed)
    together = threading.Barrier(count)
    over = threading.Event()
    saved: list[list[int]] = [[] for _ in range(count)]

    def train(worker: Worker, saves: list[int], pace: random.Random) -> None:
        """Steps with a collective each, and one more in a save: ranks that disagree hang in them."""
        step, now_s = 0, 0.0
        while True:
            step, now_s = step + 1, now_s + 0.001
            if step_s:
                over.wait(pace.random() * step_s)
            together.wait(STILL_S)
            gate = worker.fence.passed(step, now_s)
            if gate is not None:
                saves.append(step)
                together.wait(STILL_S)
                if gate.pause:
                    return

    async def body(agreement: Agreement) -> None:
        workers = [Worker(agreement, lambda: drawn.random() * 0.002, by_clock=True) for _ in range(count)]
        threads = [
            threading.Thread(target=train, args=(worker, saves, random.Random(seed + place)), daemon=True)
            for place, (worker, saves) in enumerate(zip(workers, saved, strict=True))
        ]
        for thread in threads:
            thread.start()
        while not await agree(agreement, *workers, pause=False):
            await asyncio.sleep(0)
        while not await agree(agreement, *workers, pause=True):
            await asyncio.sleep(0)
        while any(thread.is_alive() for thread in threads):
            assert not together.broken
            await asyncio.sleep(0.001)

    scene(body)
    assert saved == [saved[0]] * count
    assert len(saved[0]) in (1, 2)  # the pause may be agreed for a step before that of the save
