"""What a driver sends to Slurm to end its pilots: once where that works, until it works where it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from elastic.driver.pilots import cancellation
from elastic.driver.pilots.cancellation import Endings
from slurm_plugin.errors import CommandError, SnapshotError
from slurm_plugin.submission.submission import Leftover, PilotRequest
from tests.elastic.fakes import until
from tests.support.messages import fragment, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

PILOT = PilotRequest("n1", "elastic", 600.0, "bft-pilot", "bft 7 n1.1")


class Slurm:
    """Notes what is cancelled; the first `failing` orders fail, and none returns before `open` is set."""

    def __init__(self, failing: int = 0) -> None:
        self.orders: list[tuple[list[str], str | None]] = []
        self.failing = failing
        self.open = threading.Event()
        self.open.set()

    def cancel(self, job_ids: list[str], signal: str | None = None) -> None:
        assert self.open.wait(STILL_S)
        self.orders.append((job_ids, signal))
        if len(self.orders) <= self.failing:
            raise CommandError("scancel failed: slurmctld is away")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "_AGAIN_S", 0.01)
    monkeypatch.setattr(cancellation, "_LONGEST_S", 0.02)


def scene(slurm: Slurm, body: Callable[[Endings], Awaitable[None]]) -> list[str]:
    """Runs with the orders of a driver, which are closed after it; returns the trainer's log."""
    lines: list[str] = []

    async def run() -> None:
        orders = Endings(slurm, lines.append)
        await asyncio.wait_for(body(orders), STILL_S)
        await orders.close()

    asyncio.run(run())
    return lines


def test_several_parts_of_the_driver_that_end_one_pilot_cost_slurm_one_order() -> None:
    slurm = Slurm()
    slurm.open.clear()

    async def body(orders: Endings) -> None:
        asked = [asyncio.ensure_future(orders.cancel(["7"])) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(order.done() for order in asked), "an order is over when Slurm has taken it"
        slurm.open.set()
        await asyncio.gather(*asked)
        await orders.cancel(["7", "8"])

    assert scene(slurm, body) == []
    assert slurm.orders == [(["7"], "KILL"), (["8"], "KILL")]


def test_a_job_that_is_over_is_forgotten_whether_it_was_cancelled_or_came_to_its_end() -> None:
    async def body(orders: Endings) -> None:
        for number in range(100):
            job = str(number)
            await orders.cancel([job])
            orders.empty(job)  # its srun came back after it was cancelled
            orders.forget(job)
        kept = [orders._taken, orders._empty, orders._running, orders._forgotten, orders._waiting]
        assert kept == [set(), set(), {}, set(), []]

    assert scene(Slurm(), body) == []


def test_an_order_that_failed_is_given_again_by_the_next_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "_AGAIN_S", 100.0)
    slurm = Slurm(failing=1)

    async def body(orders: Endings) -> None:
        await orders.cancel(["7"])
        await orders.cancel(["7"])

    scene(slurm, body)
    assert [ids for ids, _ in slurm.orders] == [["7"], ["7"]]


def test_regression_an_order_that_slurm_did_not_take_was_given_up_with_its_pilot() -> None:
    slurm = Slurm(failing=4)

    async def body(orders: Endings) -> None:
        await orders.cancel(["7"])
        orders.forget("7")
        await until("taken", lambda: len(slurm.orders) == 5 and not orders._failed)
        assert (orders._taken, orders._forgotten) == (set(), set())
        await asyncio.sleep(0.1)

    [line] = scene(slurm, body)
    assert says(line, "elastic.endings.order_repeated")
    assert [ids for ids, _ in slurm.orders] == [["7"]] * 5, "and no more after that"


def test_at_the_end_of_the_driver_slurm_is_asked_a_few_times_more_and_one_line_names_what_may_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(failing=1000)

    async def body(orders: Endings) -> None:
        monkeypatch.setattr(cancellation, "_AGAIN_S", 100.0)
        await orders.cancel(["7", "8"])
        monkeypatch.setattr(cancellation, "_AGAIN_S", 0.01)

    *_, last = scene(slurm, body)
    assert last == wording("elastic.endings.order_not_taken", jobs="7, 8", jobs2="7 8")
    assert len(slurm.orders) == 1 + cancellation._CLOSING_TRIES


def test_a_driver_does_not_wait_for_ever_for_a_slurm_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "_CLOSING_S", 0.05)
    slurm = Slurm()
    slurm.open.clear()

    async def body(orders: Endings) -> None:
        asked = asyncio.ensure_future(orders.cancel(["7"]))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.5, slurm.open.set)  # the command's own time-out
        assert not asked.done()

    assert "scancel 7" in scene(slurm, body)[-1]


def test_regression_what_a_refused_request_left_was_not_looked_for_again_when_squeue_did_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancellation, "_SETTLED_S", 0.2)
    begun: list[float] = []

    def clear(leftover: Leftover) -> None:
        begun.append(asyncio.run(_now()))
        if len(begun) < 4:
            raise SnapshotError("squeue gave no answer for 5 s: is slurmctld up?")

    async def body(orders: Endings) -> None:
        orders.clear(Leftover(PILOT), clear)
        await until("cleared", lambda: not orders._clearing)

    assert scene(Slurm(), body) == []
    assert len(begun) >= 4
    assert begun[-1] - begun[0] >= 0.15, "a late request is looked for once more when it must have come to its end"


async def _now() -> float:
    return asyncio.get_running_loop().time()


def test_a_pilot_that_could_not_be_withdrawn_is_ended_in_the_background_and_at_the_end_named() -> None:
    slurm = Slurm(failing=1000)

    def clear(leftover: Leftover) -> None:
        assert leftover.job_id
        slurm.cancel([leftover.job_id], "KILL")

    async def body(orders: Endings) -> None:
        orders.clear(Leftover(PILOT, "9"), clear)
        orders.clear(Leftover(PILOT), clear=lambda _: slurm.cancel([]))
        await until("tried again", lambda: len(slurm.orders) > 4)

    lines = scene(slurm, body)
    assert says(lines[-2], "elastic.endings.order_not_taken", jobs2=9)
    assert lines[-1] == wording("elastic.endings.fate_unknown", nodes="n1")


def test_jobs_that_are_to_end_while_slurm_is_busy_share_an_order() -> None:
    slurm = Slurm()
    slurm.open.clear()

    async def body(orders: Endings) -> None:
        asked = [asyncio.ensure_future(orders.cancel([str(number)])) for number in range(20)]
        await asyncio.sleep(0.01)
        asked += [asyncio.ensure_future(orders.cancel([f"1{number:03}"])) for number in range(20)]
        slurm.open.set()
        await asyncio.gather(*asked)

    scene(slurm, body)
    assert len(slurm.orders) <= 3
    assert sorted(job for jobs, _ in slurm.orders for job in jobs) == sorted(
        [str(number) for number in range(20)] + [f"1{number:03}" for number in range(20)]
    )


def test_what_a_request_without_an_answer_may_have_left_is_looked_for_a_last_time_at_the_end() -> None:
    looked: list[str] = []

    async def body(orders: Endings) -> None:
        orders.clear(Leftover(PILOT), clear=lambda leftover: looked.append(leftover.request.node))
        await until("looked", lambda: looked)

    [line] = scene(Slurm(), body)
    assert looked == ["n1", "n1"]
    assert says(line, "elastic.endings.fate_unknown", nodes=fragment("n1"))
