"""The faults of a simulated world, each at a moment drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Protocol

from bftd.simulation.world.network import Network

_APART_S = 300.0
"""Each kind of fault strikes this far apart, on average."""

_SLOWEST = 3000.0


class Site(Protocol):
    """The world, as faults strike it."""

    network: Network
    struck: list[str]
    """The kinds of the faults so far."""

    def log(self, who: str, text: str) -> None:
        """Write a line to the world's log."""

    async def restart_daemon(self, after_s: float) -> None:
        """Kill the daemon, and start it again."""

    async def restart_driver(self, after_s: float) -> None:
        """Kill a driver, and have Slurm start its job again."""

    async def no_answers(self, for_s: float) -> None:
        """Have slurmctld answer no command."""

    async def cut_off_node(self, for_s: float) -> None:
        """Have nothing pass between a node and the drivers' host."""

    def kill_agent(self) -> None:
        """Kill an agent, with its workers."""

    def kill_worker(self) -> None:
        """Kill a worker."""


async def _daemon(site: Site, random: Random) -> None:
    await site.restart_daemon(random.expovariate(1 / 20.0))


async def _driver(site: Site, random: Random) -> None:
    await site.restart_driver(random.expovariate(1 / 30.0))


async def _slurmctld(site: Site, random: Random) -> None:
    await site.no_answers(random.expovariate(1 / 60.0))


async def _slow(site: Site, random: Random) -> None:
    site.network.slow = _SLOWEST ** random.random()
    site.log("fault", f"the network is {site.network.slow:.0f} times as slow")
    await asyncio.sleep(random.expovariate(1 / 20.0))
    site.network.slow = 1.0


async def _reset(site: Site, random: Random) -> None:
    if site.network.ends:
        end = random.choice(site.network.ends)
        site.log("fault", f"a connection of {end.process.name} to {end.other.process.name} is reset")
        site.network.reset(end)


async def _cut(site: Site, random: Random) -> None:
    await site.cut_off_node(random.expovariate(1 / 10.0))


async def _agent(site: Site, random: Random) -> None:
    site.kill_agent()


async def _worker(site: Site, random: Random) -> None:
    site.kill_worker()


KINDS: Mapping[str, Callable[[Site, Random], Awaitable[None]]] = {
    "daemon": _daemon,
    "driver": _driver,
    "slurmctld": _slurmctld,
    "slow": _slow,
    "reset": _reset,
    "cut": _cut,
    "agent": _agent,
    "worker": _worker,
}
"""The kinds of faults by name."""


async def strike(site: Site, kinds: Iterable[str], seed: int) -> None:
    """Strike with faults of these kinds until cancelled; one that has begun is over before the next of its kind."""
    random = Random(seed)
    strikes = [_one(site, kind, Random(random.getrandbits(64))) for kind in sorted(kinds)]
    await asyncio.gather(*strikes)


async def _one(site: Site, kind: str, random: Random) -> None:
    while True:
        await asyncio.sleep(random.expovariate(1 / _APART_S))
        site.struck.append(kind)
        await KINDS[kind](site, random)
