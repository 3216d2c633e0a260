"""What a driver sends to Slurm to end its pilots."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from elastic.driver.pilots import PilotStarter
from slurm_plugin.errors import CommandError
from tests.elastic.fakes import settings_for


class Slurm:
    """Notes what is cancelled; the first `failing` orders fail, and none returns before `open` is set."""

    def __init__(self, failing: int = 0) -> None:
        self.orders: list[tuple[list[str], str | None]] = []
        self.failing = failing
        self.open = threading.Event()

    def cancel(self, job_ids: list[str], signal: str | None = None) -> None:
        self.open.wait(10)
        self.orders.append((job_ids, signal))
        if len(self.orders) <= self.failing:
            raise CommandError("scancel failed: slurmctld is away")


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


def starter(slurm: Slurm, folder: Path) -> PilotStarter:
    made = PilotStarter(settings_for(folder), 1, "secret", print)
    made._client = slurm  # type: ignore[assignment]
    return made


def test_several_parts_of_the_driver_that_end_one_pilot_cost_slurm_one_order(slurm: Slurm, tmp_path: Path) -> None:
    async def body() -> None:
        pilots = starter(slurm, tmp_path)
        orders = [asyncio.ensure_future(pilots.cancel(["7"])) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(order.done() for order in orders), "an order is over when Slurm has taken it"
        slurm.open.set()
        await asyncio.gather(*orders)
        await pilots.cancel(["7", "8"])

    asyncio.run(body())
    assert slurm.orders == [(["7"], "KILL"), (["8"], "KILL")]


def test_a_job_that_is_over_is_forgotten_whether_it_was_cancelled_or_came_to_its_end(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.open.set()

    async def body() -> PilotStarter:
        pilots = starter(slurm, tmp_path)
        for number in range(100):
            job = str(number)
            await pilots.cancel([job])
            pilots._empty.add(job)  # its srun came back after it was cancelled
            pilots.forget(job)
        return pilots

    pilots = asyncio.run(body())
    assert (pilots._cancelled, pilots._empty, pilots._cancelling) == (set(), set(), {})


def test_an_order_that_failed_is_given_again_by_the_next_who_asks(tmp_path: Path) -> None:
    slurm = Slurm(failing=1)
    slurm.open.set()

    async def body() -> None:
        pilots = starter(slurm, tmp_path)
        await pilots.cancel(["7"])
        await pilots.cancel(["7"])

    asyncio.run(body())
    assert [ids for ids, _ in slurm.orders] == [["7"], ["7"]]
