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

from elastic.driver.saving.step_barrier import SaveRequests
from elastic.link.peer import Peer
from elastic.link.step_barrier import StepBarrier
from elastic.link.wire import Message
from tests.elastic.fakes import until
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


class Worker:
    """A worker's step barrier at the other end of a connection that takes its time, but keeps the order."""

    def __init__(
        self,
        requests: SaveRequests,
        delay_s: Callable[[], float] = lambda: 0.0,
        by_clock: bool = False,
        size: int = 1,
    ) -> None:
        self.step_barrier = StepBarrier()
        self.step_barrier.by_clock, self.step_barrier.size = by_clock, size
        self.told: list[Message] = []
        self.deaf = False
        self._requests = requests
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
        if not self.deaf and (answer := self.step_barrier.answer(message)):
            self._requests.received(self.peer, answer)


@pytest.fixture
def requests() -> SaveRequests:
    return SaveRequests()


def scene(body: Callable[[SaveRequests], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(body(SaveRequests()), STILL_S)

    asyncio.run(run())


async def make(requests: SaveRequests, *workers: Worker, pause: bool = True, limit_s: float = STILL_S) -> bool:
    return await requests.make([worker.peer for worker in workers], pause=pause, limit_s=limit_s)


def ops(worker: Worker) -> list[str]:
    return [message["op"] for message in worker.told]


async def test_a_step_that_nobody_has_ended_is_opened_on_all(requests: SaveRequests) -> None:
    quick, slow = Worker(requests), Worker(requests)
    quick.step_barrier.passed(8, 1.0)
    slow.step_barrier.passed(7, 1.0)
    assert await make(requests, quick, slow)
    await until("told", lambda: len(slow.told) == 3)
    for worker in (quick, slow):
        assert ops(worker) == ["where", "request_save", "confirm_save"]
        assert worker.step_barrier.passed(9, 2.0) is not None


async def test_a_worker_that_was_quicker_has_a_later_step_tried_and_the_first_gate_is_taken_away(
    requests: SaveRequests,
) -> None:
    quick, slow = Worker(requests), Worker(requests)
    slow.step_barrier.passed(1, 1.0)
    put = quick.step_barrier.answer

    def overtaken(message: Message) -> Message | None:
        if message["op"] == "request_save" and message["step"] == 2:
            quick.step_barrier.passed(2, 2.0)
        return put(message)

    quick.step_barrier.answer = overtaken  # type: ignore[method-assign]
    assert await make(requests, quick, slow)
    await until("told", lambda: len(slow.told) == 6)
    assert ops(slow) == ["where", "request_save", "withdraw_save", "where", "request_save", "confirm_save"]
    assert slow.step_barrier.passed(2, 3.0) is None
    assert slow.step_barrier.passed(3, 4.0) is not None


async def test_no_gate_is_left_when_a_worker_does_not_answer_or_is_lost(requests: SaveRequests) -> None:
    for lost in (False, True):
        well, ill = Worker(requests), Worker(requests)
        well.step_barrier.passed(1, 1.0)
        put = ill.step_barrier.answer
        ill.step_barrier.answer = lambda message, put=put: put(message) if message["op"] == "where" else None  # type: ignore[method-assign,misc]
        asking = asyncio.ensure_future(make(requests, well, ill, limit_s=STILL_S if lost else 0.05))
        await until("it is requested", lambda well=well: "request_save" in ops(well))
        if lost:
            requests.gone(ill.peer)
        assert not await asking
        await until("withdrawn", lambda well=well: ops(well)[-1] == "withdraw_save")
        assert well.step_barrier.passed(2, 2.0) is None


async def test_regression_a_resize_before_any_worker_was_connected_ended_the_driver(requests: SaveRequests) -> None:
    assert not await make(requests)
    assert not await make(requests, pause=False)


async def test_an_answer_that_comes_late_is_not_taken_for_one_to_the_next_question(requests: SaveRequests) -> None:
    worker = Worker(requests)
    worker.step_barrier.passed(1, 1.0)
    asking = asyncio.ensure_future(make(requests, worker))
    await asyncio.sleep(0)
    requests.received(worker.peer, {"op": "accepted", "number": 7})
    requests.received(worker.peer, {"op": "late", "number": 7})
    assert await asking
    await until("told", lambda: len(worker.told) == 3)
    assert [(message["op"], message["step"]) for message in worker.told[1:]] == [
        ("request_save", 2),
        ("confirm_save", 2),
    ]


async def test_a_script_that_counts_no_steps_is_not_waited_for(requests: SaveRequests) -> None:
    one, other = Worker(requests), Worker(requests)
    assert not await make(requests, one, other)
    assert ops(one) == ["where"]


async def test_a_script_that_saves_by_its_own_interval_is_left_alone(requests: SaveRequests) -> None:
    for by_clock in (False, True):
        worker = Worker(requests, by_clock=by_clock)
        worker.step_barrier.passed(1, 1.0)
        assert await make(requests, worker, pause=False) is by_clock
        if by_clock:
            await until("confirmed", lambda worker=worker: ops(worker)[-1] == "confirm_save")
            found = worker.step_barrier.passed(2, 2.0)
            assert found is not None
            assert not found.pause


async def test_regression_a_worker_that_still_saved_was_asked_for_the_next_save(requests: SaveRequests) -> None:
    saving, other = Worker(requests, by_clock=True, size=2), Worker(requests, by_clock=True, size=2)
    for worker in (saving, other):
        worker.step_barrier.passed(1, 1.0)
    assert await make(requests, saving, other, pause=False)
    await until("confirmed", lambda: ops(saving)[-1] == ops(other)[-1] == "confirm_save")
    assert not await make(requests, saving, other, pause=False), "it is about to"
    for worker in (saving, other):
        assert worker.step_barrier.passed(2, 2.0) is not None
    other.step_barrier.passed(3, 3.0)
    assert not await make(requests, saving, other, pause=False)
    assert other.step_barrier.passed(4, 4.0) is None
    saving.step_barrier.passed(3, 15.0)
    asked: list[float] = []
    for worth in (False, True):
        found = await requests.make(
            [saving.peer, other.peer],
            pause=False,
            limit_s=STILL_S,
            worth=lambda save_s, worth=worth: asked.append(save_s) or worth,  # type: ignore[misc,func-returns-value]
        )
        assert found is worth
    assert asked == [12.0, 12.0]


async def test_regression_a_part_of_a_group_saved_while_the_others_ended_their_first_step_and_hung(
    requests: SaveRequests,
) -> None:
    quick, slow = Worker(requests, by_clock=True, size=2), Worker(requests, by_clock=True)
    quick.step_barrier.passed(1, 1.0)
    assert not await make(requests, quick, pause=False)
    slow.step_barrier.size = 0
    assert not await make(requests, quick, slow, pause=False)
    assert ops(quick) == ["where", "where"]
    slow.step_barrier.size = 2
    slow.step_barrier.passed(1, 1.0)
    assert await make(requests, quick, slow, pause=False)


async def test_a_resize_is_not_put_off_by_a_save(requests: SaveRequests) -> None:
    worker = Worker(requests, by_clock=True)
    worker.step_barrier.passed(1, 1.0)
    assert await make(requests, worker, pause=False)
    await until("confirmed", lambda: ops(worker)[-1] == "confirm_save")
    assert worker.step_barrier.passed(2, 2.0) is not None
    assert await make(requests, worker, pause=True)


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
            request = worker.step_barrier.passed(step, now_s)
            if request is not None:
                saves.append(step)
                together.wait(STILL_S)
                if request.pause:
                    return

    async def body(requests: SaveRequests) -> None:
        workers = [Worker(requests, lambda: drawn.random() * 0.002, by_clock=True, size=count) for _ in range(count)]
        threads = [
            threading.Thread(target=train, args=(worker, saves, random.Random(seed + place)), daemon=True)
            for place, (worker, saves) in enumerate(zip(workers, saved, strict=True))
        ]
        for thread in threads:
            thread.start()
        while not await make(requests, *workers, pause=False):
            await asyncio.sleep(0)
        while not await make(requests, *workers, pause=True):
            await asyncio.sleep(0)
        while any(thread.is_alive() for thread in threads):
            assert not together.broken
            await asyncio.sleep(0.001)

    scene(body)
    assert saved == [saved[0]] * count
    assert len(saved[0]) in (1, 2)  # the pause may be requested for a step before that of the save
