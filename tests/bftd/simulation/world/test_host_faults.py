"""Faults of hosts in the simulated world: each strikes, and trainers end well through it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from bftd.core.model.timing import CLOCK_STEP_S
from bftd.http.connections import OF_A_USER_MOST
from bftd.protocol.bounds import EPOCHS_OF_A_BLOCK
from bftd.simulation.world import world
from bftd.simulation.world.faults import hostile
from bftd.simulation.world.faults.host_faults import HOST_KINDS
from bftd.simulation.world.faults.kinds import KINDS
from bftd.simulation.world.machine.disk import HOME, LEDGER
from bftd.simulation.world.machine.loop import HostClock
from bftd.simulation.world.programs import HOST
from bftd.simulation.world.world import WorldSettings

pytestmark = pytest.mark.slow

SMALL = WorldSettings(seed=1, hours=0.08, nodes=3, trainers=2, steps=35)

Strike = Callable[[Any, Random], Awaitable[None]]
Lived = Callable[[Strike], list[str]]


@pytest.fixture
def lived(monkeypatch: pytest.MonkeyPatch) -> Lived:
    """The log of a small world in which something strikes some times, and no rule breaks."""

    def live(work: Strike, times: int = 3) -> list[str]:
        async def strike(site: Any, *_: object) -> None:
            random = Random(5)
            for _ in range(times):
                await asyncio.sleep(60.0)
                site.struck.append("disk")  # trainers have had some fault of a host
                await work(site, random)

        monkeypatch.setattr(world, "strike", strike)
        result = world.run(SMALL)
        assert not result.violation
        assert count(result.log, r"world: \d+ \(0, ") == SMALL.trainers
        return result.log

    return live


def count(log: list[str], what: str) -> int:
    return sum(re.search(what, line) is not None for line in log)


def test_a_process_that_is_killed_in_an_operation_on_its_disk_is_started_again(lived: Lived) -> None:
    log = lived(HOST_KINDS["torn"])
    assert count(log, "world: .* starts") > 1 + SMALL.trainers


@pytest.mark.parametrize("disk", [LEDGER, HOME])
@pytest.mark.parametrize("trouble", ["full", "failing"])
def test_a_disk_in_trouble_is_told_of_and_nothing_is_lost(lived: Lived, disk: str, trouble: str) -> None:
    async def strike(site: Any, _: Random) -> None:
        setattr(site.disks[disk], trouble, True)
        await asyncio.sleep(40.0)
        setattr(site.disks[disk], trouble, False)

    log = lived(strike)
    assert count(log, "bftd: ERROR" if disk == LEDGER else "driver .* cannot be (saved|read)")


def test_a_checkpoint_that_does_not_arrive_as_it_was_sent_is_sent_again(lived: Lived) -> None:
    async def strike(site: Any, random: Random) -> None:
        for _ in range(8):
            harm = asyncio.create_task(KINDS["checkpoint"](site, random))
            await asyncio.sleep(20.0)
            harm.cancel()

    log = lived(strike, times=1)
    assert all(count(log, f"checkpoint .*{what}") for what in ("altered", "the last"))


def test_a_slow_disk_delays_and_breaks_nothing(lived: Lived) -> None:
    async def strike(site: Any, _: Random) -> None:
        for disk in site.disks.values():
            disk.slow = 3000.0
        await asyncio.sleep(60.0)

    lived(strike, times=1)


def test_S4_a_driver_whose_registration_the_daemons_host_has_lost_goes_on(lived: Lived) -> None:
    epochs: list[int] = []

    async def strike(site: Any, random: Random) -> None:
        await site.restart_driver(random, 1.0)
        await asyncio.sleep(0.5)
        await site.lose_power(LEDGER, 1.0)
        await asyncio.sleep(20.0)
        epochs.extend(trainer.epoch for trainer in site.daemon.service.core.trainers.values() if trainer.active)

    log = lived(strike)
    assert max(epochs) > EPOCHS_OF_A_BLOCK
    assert not count(log, "has taken over")


def test_drivers_whose_host_loses_its_power_go_on_from_what_they_stored(lived: Lived) -> None:
    async def strike(site: Any, _: Random) -> None:
        await site.lose_power(HOME, 5.0)

    log = lived(strike)
    assert count(log, "world: driver .* starts") > SMALL.trainers


@pytest.mark.parametrize("by_s", [-7200.0, -4.0, 2.0, 100.0, 7200.0])
def test_a_clock_that_is_wrong_and_is_set_right_costs_no_trainer_anything(lived: Lived, by_s: float) -> None:
    unheard: list[bool] = []

    async def strike(site: Any, _: Random) -> None:
        for host in (HOST, *site.cluster.nodes):
            site.clocks[host] = HostClock(by_s, 1e-4, asyncio.get_running_loop().time())
        await asyncio.sleep(30.0)
        unheard.append(bool(site.cluster.refuses_host(HOST)))
        site.clocks.clear()

    log = lived(strike)
    assert count(log, "the clock went") == (6 if abs(by_s) > CLOCK_STEP_S else 0)
    assert unheard == [abs(by_s) > 300] * 3, "munge refuses a host whose clock is far off"


def test_answers_that_are_lost_and_requests_that_come_twice_count_once(lived: Lived) -> None:
    log = lived(HOST_KINDS["requests"])
    lost, doubled = next(
        (int(found[1]), int(found[2]))
        for line in reversed(log)
        if (found := re.search(r"(\d+) answers were lost so far, and (\d+) requests", line))
    )
    assert min(lost, doubled) > 5


@pytest.mark.parametrize("older", ["daemon", "drivers"])
def test_a_release_before_this_one_trains_on_through_an_upgrade(lived: Lived, older: str) -> None:
    async def strike(site: Any, random: Random) -> None:
        site.mail.older_daemon, site.older_drivers = older == "daemon", older == "drivers"
        await site.restart_daemon(2.0)
        await site.restart_driver(random, 2.0)
        await asyncio.sleep(60.0)
        site.mail.older_daemon = False
        await site.restart_daemon(2.0)

    lived(strike)


def test_a_second_daemon_on_one_ledger_ends_at_once_and_one_elsewhere_takes_nothing(lived: Lived) -> None:
    async def strike(site: Any, _: Random) -> None:
        same, elsewhere = site.start_second_daemon("", HOST), site.start_second_daemon("second", "admin2")
        await asyncio.sleep(40.0)
        assert same.refusal
        assert same.process.dead
        assert elsewhere.service is not None
        assert not elsewhere.service.core.leases
        elsewhere.process.kill()

    lived(strike, times=1)


@pytest.mark.parametrize("way", hostile._WAYS)
def test_a_hostile_user_harms_nobody(lived: Lived, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(hostile, "_WAYS", {way: hostile._WAYS[way]})
    log = lived(HOST_KINDS["hostile"], times=1)
    open_count = [int(found[1]) for line in log if (found := re.search(r" with (\d+) connections open", line))]
    assert 0 <= open_count[0] <= OF_A_USER_MOST
