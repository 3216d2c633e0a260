"""The faults of a simulated world: a list that is drawn beforehand, so that it can be shortened and given again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

import milp
from bftd.simulation.world.faults.host_faults import HOST_KINDS, Host
from bftd.simulation.world.faults.slurm_faults import SLURM_KINDS
from bftd.simulation.world.machine.network import End

_SLOWEST = 3000.0
_PARTS, _PARTS_S = 8, 60.0
"""One of so many parts of checkpoints is harmed, if they come within this time."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A fault: when it strikes, in seconds from the world's beginning, its kind, and the seed of what it chooses."""

    at_s: float
    kind: str
    seed: int


class Site(Host, Protocol):
    """The world, as faults strike it."""

    struck: list[str]
    """The kinds of the faults so far."""

    async def restart_daemon(self, after_s: float) -> None:
        """Kill the daemon, and start it again."""

    async def restart_driver(self, random: Random, after_s: float) -> None:
        """Kill a driver, and have Slurm start its job again."""

    async def no_answers(self, for_s: float) -> None:
        """Have slurmctld answer no command."""

    async def cut_off_node(self, random: Random, for_s: float) -> None:
        """Have nothing pass between a node and the drivers' host."""

    def kill_agent(self, random: Random) -> None:
        """Kill an agent, with its workers."""

    def kill_worker(self, random: Random) -> None:
        """Kill a worker."""

    async def break_solver(self, for_s: float, random: Random) -> None:
        """Have the solver raise, or return plans that are none."""

    def break_script(self, random: Random) -> None:
        """Have a script fail at one of its next steps, once or each time."""


async def _daemon(site: Site, random: Random) -> None:
    await site.restart_daemon(random.expovariate(1 / 20.0))


async def _driver(site: Site, random: Random) -> None:
    await site.restart_driver(random, random.expovariate(1 / 30.0))


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
    await site.cut_off_node(random, random.expovariate(1 / 10.0))


async def _checkpoint(site: Site, random: Random) -> None:
    """A part of a checkpoint is altered on its way, or the connection ends in its midst."""
    passing, at, network = random.randrange(_PARTS), random.getrandbits(32), site.network

    def harm(end: End, part: bytes) -> bytes:
        nonlocal passing
        passing -= 1
        if passing >= 0:
            return part
        network.harm = None
        what = f"a part of a checkpoint from {end.process.name} to {end.other.process.name}"
        if at % 2:
            site.log("fault", f"{what} is the last of its connection")
            network.reset(end)
            return part[: at % len(part)]
        site.log("fault", f"{what} is altered")
        place = at % len(part)
        return part[:place] + bytes([part[place] ^ 1]) + part[place + 1 :]

    network.harm = harm
    await asyncio.sleep(_PARTS_S)
    network.harm = None


async def _agent(site: Site, random: Random) -> None:
    site.kill_agent(random)


async def _worker(site: Site, random: Random) -> None:
    site.kill_worker(random)


async def _script(site: Site, random: Random) -> None:
    site.break_script(random)


async def _solver(site: Site, random: Random) -> None:
    await site.break_solver(random.expovariate(1 / 60.0), random)


KINDS: Mapping[str, Callable[[Site, Random], Awaitable[None]]] = {
    "daemon": _daemon,
    "driver": _driver,
    "slurmctld": _slurmctld,
    "slow": _slow,
    "reset": _reset,
    "cut": _cut,
    "checkpoint": _checkpoint,
    "agent": _agent,
    "worker": _worker,
    **SLURM_KINDS,
    **HOST_KINDS,
    "script": _script,
    "solver": _solver,
}
"""The kinds of faults by name."""


def drawn(kinds: Iterable[str], apart_s: float, until_s: float, seed: str) -> tuple[Fault, ...]:
    """Draw faults, those of each kind `apart_s` apart on average, by themselves whatever other kinds there are."""
    found = []
    for kind in kinds:
        random, at_s = Random(f"{seed} {kind}"), 0.0
        while (at_s := at_s + random.expovariate(1 / apart_s)) < until_s:
            found.append(Fault(round(at_s, 3), kind, random.getrandbits(32)))
    return tuple(sorted(found))


class Solver:
    """Solves the daemon's problems; while it has a source of randomness, it raises, or returns a plan that is none."""

    def __init__(self) -> None:
        self.fails: Random | None = None

    def __call__(self, problem: milp.Problem, *arguments: Any, **more: Any) -> milp.Plan:
        """See milp.solve."""
        plan = milp.solve(problem, *arguments, **more)
        if self.fails is None:
            return plan
        if self.fails.random() < 0.5:
            raise RuntimeError("the licence server is away")
        everything = tuple(node.name for node in problem.nodes)
        return replace(plan, assignment=dict.fromkeys(plan.assignment, everything))


async def strike(site: Site, faults: Sequence[Fault]) -> None:
    """Strike with these faults, from now on; one that has begun is over before the next of its kind."""
    begun_s = asyncio.get_running_loop().time()
    kinds = dict.fromkeys(fault.kind for fault in faults)
    await asyncio.gather(*(_strike(site, [one for one in faults if one.kind == kind], begun_s) for kind in kinds))


async def _strike(site: Site, faults: Sequence[Fault], begun_s: float) -> None:
    loop = asyncio.get_running_loop()
    for fault in faults:
        await asyncio.sleep(max(0.0, begun_s + fault.at_s - loop.time()))
        site.struck.append(fault.kind)
        await KINDS[fault.kind](site, Random(fault.seed))
