"""Faults of hosts and of what runs on them beside the simulated programs: disks, clocks, second daemons, users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Protocol

from bftd.simulation.world.faults import hostile
from bftd.simulation.world.faults.slurm_faults import SlurmSite
from bftd.simulation.world.faults.wire import Mail
from bftd.simulation.world.machine.disk import Disk
from bftd.simulation.world.machine.loop import HostClock
from bftd.simulation.world.programs import HOST, SimulatedDaemon
from bftd.simulation.world.rules import Violation

_TORN_WITHIN_S = 60.0
_ADMIN = "admin2"
"""Another host, on which somebody starts a second daemon."""


class Host(SlurmSite, Protocol):
    """The world, as faults of hosts strike it."""

    disks: dict[str, Disk]
    clocks: dict[str, HostClock]
    mail: Mail
    older_drivers: bool
    """Whether drivers that start from now on are of the release before."""

    @property
    def daemon(self) -> SimulatedDaemon | None:
        """The daemon, if it runs."""

    async def restart_daemon(self, after_s: float) -> None:
        """Kill the daemon, and start it again."""

    async def restart_fallen(self, after_s: float) -> None:
        """Start again what has ended because of its disk."""

    async def lose_power(self, disk: str, after_s: float) -> None:
        """Kill all processes of a disk, lose what is not flushed, and start them again."""

    def start_second_daemon(self, folder: str, host: str) -> SimulatedDaemon:
        """Start one more daemon, whose ledger is in this folder of the world's ("": the first one's)."""


async def _torn(site: Host, random: Random) -> None:
    name, disk = random.choice(sorted(site.disks.items()))
    disk.kill_in = random.randint(0, 30)
    site.log("fault", f"a process is killed {disk.kill_in} operations of the {name} disk from now, in their midst")
    for _ in range(int(_TORN_WITHIN_S)):
        await asyncio.sleep(1.0)
        if disk.kill_in is None:
            break
    disk.kill_in = None
    await site.restart_fallen(random.expovariate(1 / 10.0))


async def _disk(site: Host, random: Random) -> None:
    name, disk = random.choice(sorted(site.disks.items()))
    trouble = random.choice(("full", "failing", "slow"))
    for_s = random.expovariate(1 / 30.0)
    site.log("fault", f"the {name} disk is {trouble} for {for_s:.1f} s")
    disk.full, disk.failing = trouble == "full", trouble == "failing"
    disk.slow = 10_000.0 ** random.random() if trouble == "slow" else 1.0
    await asyncio.sleep(for_s)
    disk.recover()
    site.log("fault", f"the {name} disk is well")
    await site.restart_fallen(random.expovariate(1 / 10.0))


async def _power(site: Host, random: Random) -> None:
    await site.lose_power(random.choice(sorted(site.disks)), random.expovariate(1 / 30.0))


async def _clock(site: Host, random: Random) -> None:
    host = random.choice((HOST, *site.cluster.nodes))
    step_s = random.choice((-1.0, 1.0)) * 14_400.0 ** random.random()
    drift, now_s = random.uniform(-1e-3, 1e-3), asyncio.get_running_loop().time()
    site.log("fault", f"the clock of {host} is set by {step_s:.1f} s, and goes wrong by {drift:.2g} s a second")
    site.clocks[host] = HostClock(step_s, drift, now_s)
    await asyncio.sleep(random.expovariate(1 / 60.0))
    site.log("fault", f"the clock of {host} is set to the true time")
    site.clocks.pop(host, None)


async def _requests(site: Host, random: Random) -> None:
    mail = site.mail
    mail.lost, mail.doubled = random.uniform(0.0, 0.5), random.uniform(0.0, 0.5)
    site.log("fault", f"{mail.lost:.0%} of answers to drivers are lost, {mail.doubled:.0%} of their requests doubled")
    await asyncio.sleep(random.expovariate(1 / 60.0))
    mail.lost = mail.doubled = 0.0
    site.log("fault", f"{mail.answers_lost} answers were lost so far, and {mail.requests_doubled} requests doubled")


async def _upgrade(site: Host, random: Random) -> None:
    site.mail.older_daemon, site.older_drivers = random.choice(((True, False), (False, True), (False, False)))
    old = "the daemon" if site.mail.older_daemon else "each driver from now on" if site.older_drivers else "nothing"
    site.log("fault", f"{old} is of the release before")
    await site.restart_daemon(random.expovariate(1 / 5.0))


async def _second(site: Host, random: Random) -> None:
    if site.daemon is not None and site.daemon.service is not None and random.random() < 0.5:
        daemon = site.start_second_daemon("", HOST)
        for _ in range(3):
            await asyncio.sleep(0)
        if not daemon.refusal:
            raise Violation("two daemons use one ledger")
    else:
        daemon = site.start_second_daemon("second", _ADMIN)
        try:
            await asyncio.sleep(random.expovariate(1 / 60.0))
        except asyncio.CancelledError:
            daemon.process.kill()
            raise
    site.log("fault", f"the second bftd: {daemon.refusal or 'it ends'}")
    daemon.process.kill()


async def _hostile(site: Host, random: Random) -> None:
    await hostile.attack(site.network, random, lambda text: site.log("fault", text))


HOST_KINDS: Mapping[str, Callable[[Host, Random], Awaitable[None]]] = {
    "torn": _torn,
    "disk": _disk,
    "power": _power,
    "clock": _clock,
    "requests": _requests,
    "upgrade": _upgrade,
    "second": _second,
    "hostile": _hostile,
}
"""The kinds of faults by name."""
