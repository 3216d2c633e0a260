"""Faults of Slurm, of nodes and of stopped processes; each mends what it has broken, even if it is cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol

from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.machine.network import Network
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.slurmctld import NodeCondition
from slurm_plugin.clients.client import CommandResult

_HOUR_S = 3600.0
_PINGS_S = 100.0
"""Slurm notices within this time that a slurmd does not answer (a third of SlurmdTimeout)."""

_CANCELS = 0.1
"""Few trainers are cancelled: there is no other after one."""

_DOWN_S = 300.0
"""Slurm takes a node for down whose slurmd has not answered for so long (SlurmdTimeout)."""


class SlurmSite(Protocol):
    """The world, as these faults strike it."""

    network: Network
    host: str
    """The host of the daemon and the drivers."""

    @property
    def cluster(self) -> SimulatedCluster:
        """The cluster."""

    def processes(self, kind: str) -> Sequence[Process]:
        """Return the living processes of a kind: daemon, driver, agent, node process or worker."""

    async def cancel_driver(self, random: Random, requeue_after_s: float | None) -> None:
        """Have Slurm end a driver's job, and start it again unless it is to be over."""

    def log(self, who: str, text: str) -> None:
        """Write a line to the world's log."""


@dataclass
class _Mended:
    """A fault that is over with the block, even if the world has had enough of faults; not if the world has ended."""

    mend: Callable[[], None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not GeneratorExit:
            self.mend()


# -- slurmctld ---


async def _frozen(site: SlurmSite, random: Random) -> None:
    """It stops for a while, up to an hour, and then does all that it was asked."""
    for_s = random.uniform(0.0, _HOUR_S) if random.random() < 0.1 else random.expovariate(1 / 60.0)
    if site.cluster.is_away:
        return
    site.log("fault", f"slurmctld is frozen for {for_s:.1f} s")
    site.cluster.halt(refuses=False)
    with _Mended(site.cluster.come_back):
        await asyncio.sleep(for_s)


async def _restart(site: SlurmSite, random: Random) -> None:
    """It ends and is started again, with all of its state but plans and counters."""
    await _ended(site, random.expovariate(1 / 5.0), 0.0, "slurmctld ends")


async def _fail_over(site: SlurmSite, random: Random) -> None:
    """It ends, and a backup goes on with a state that lacks the last seconds."""
    await _ended(site, random.expovariate(1 / 30.0), random.uniform(0.0, 10.0), "slurmctld fails")


async def _ended(site: SlurmSite, for_s: float, lost_s: float, what: str) -> None:
    if site.cluster.is_away:
        return
    site.log("fault", f"{what} for {for_s:.1f} s, with the last {lost_s:.1f} s lost")
    site.cluster.halt(refuses=True)
    with _Mended(partial(site.cluster.start_again, lost_s)):
        await asyncio.sleep(for_s)


async def _late(site: SlurmSite, random: Random) -> None:
    """It does what it is asked at once, and says so late, or too late."""
    late_s = 20.0 ** random.random()
    site.log("fault", f"slurmctld answers {late_s:.1f} s late")
    site.cluster.late_s = late_s
    with _Mended(partial(setattr, site.cluster, "late_s", 0.0)):
        await asyncio.sleep(random.expovariate(1 / 60.0))


async def _mangled(site: SlurmSite, random: Random) -> None:
    """Each answer about nodes and jobs may be there in part, or make no sense."""
    share = random.random()
    site.log("fault", f"{100 * share:.0f}% of slurmctld's answers are mangled")

    def mangle(text: str) -> CommandResult:
        return mangled(text, random) if random.random() < share else CommandResult(0, text, "")

    site.cluster.mangle = mangle
    with _Mended(partial(setattr, site.cluster, "mangle", None)):
        await asyncio.sleep(random.expovariate(1 / 20.0))


def mangled(text: str, random: Random) -> CommandResult:
    """Return an answer in part, or with something in it that makes no sense, in one of many ways."""
    lines = text.splitlines(keepends=True)
    place = random.randrange(len(lines)) if lines else 0
    way = random.randrange(6)
    if way == 0:
        return CommandResult(0, "", "")
    if way == 1:
        return CommandResult(0, text, "error: Zero Bytes were received")
    if way == 2:
        return CommandResult(0, text[: random.randrange(len(text) + 1)], "")
    if way == 3:  # the first line may be a heading
        return CommandResult(0, "".join(line for line in lines if line is lines[0] or random.random() < 0.5), "")
    if way == 4:
        return CommandResult(0, "".join([*lines[:place], "slurmctld: error: \x00\x1b[1m?\n", *lines[place:]]), "")
    at = random.randrange(len(text)) if text else 0
    return CommandResult(0, text[:at] + random.choice("0?\x1f,=\n") + text[at + 1 :], "")


async def _requeue(site: SlurmSite, random: Random) -> None:
    """A regular job that runs waits again."""
    if not site.cluster.is_away and (job := site.cluster.requeue_one(random)):
        site.log("fault", f"job {job} is requeued")


async def _user_cancel(site: SlurmSite, random: Random) -> None:
    """A user ends a pilot by hand."""
    if not site.cluster.is_away and (pilots := list(site.cluster.pilots)):
        pilot = random.choice(pilots)
        site.log("fault", f"its user cancels pilot {pilot}")
        site.cluster.cancel(pilot)


async def _driver_cancel(site: SlurmSite, random: Random) -> None:
    """A user ends a trainer, or its time is over."""
    if random.random() < _CANCELS:
        await site.cancel_driver(random, None)


async def _driver_requeue(site: SlurmSite, random: Random) -> None:
    """Slurm requeues a driver's job."""
    await site.cancel_driver(random, random.uniform(1.0, 150.0))


# -- nodes ---


def _condition(site: SlurmSite, node: str, what: str, **changes: Any) -> _Mended:
    before = {name: getattr(NodeCondition(), name) for name in changes}
    site.log("fault", f"{node} {what}")
    site.cluster.set_condition(node, **changes)
    return _Mended(partial(site.cluster.set_condition, node, **before))


async def _completing(site: SlurmSite, random: Random) -> None:
    """The epilog of a node takes minutes."""
    node, epilog_s = random.choice(site.cluster.nodes), random.uniform(30.0, 600.0)
    with _condition(site, node, f"has an epilog of {epilog_s:.0f} s", epilog_s=epilog_s):
        await asyncio.sleep(random.expovariate(1 / 300.0))


async def _drained(site: SlurmSite, random: Random) -> None:
    """An administrator drains a node, or Slurm does."""
    node, reason = random.choice(site.cluster.nodes), random.choice(["Kill task failed", "new memory"])
    with _condition(site, node, f"is drained ({reason})", drained=reason):
        await asyncio.sleep(random.expovariate(1 / 200.0))


async def _outsider(site: SlurmSite, random: Random) -> None:
    """A node leaves the harvested partition."""
    with _condition(site, random.choice(site.cluster.nodes), "leaves the partition", outsider=True):
        await asyncio.sleep(random.expovariate(1 / 200.0))


async def _held(site: SlurmSite, random: Random) -> None:
    """Slurm gives an idle node to no pilot."""
    with _condition(site, random.choice(site.cluster.nodes), "is given to no pilot", held=True):
        await asyncio.sleep(random.expovariate(1 / 60.0))


async def _silent(site: SlurmSite, random: Random) -> None:
    """A node's slurmd does not answer for a while, and what runs there goes on."""
    node = random.choice(site.cluster.nodes)
    await _unheard(site, random, node, "has a slurmd that does not answer", random.expovariate(1 / 200.0))


async def _unheard(site: SlurmSite, random: Random, node: str, what: str, for_s: float) -> None:
    cluster = site.cluster
    if cluster.conditions[node].silent:
        return
    site.log("fault", f"{node} {what} for {for_s:.1f} s")
    cluster.set_condition(node, silent=True)
    noticed_s = random.uniform(0.0, _PINGS_S)
    with _Mended(partial(cluster.return_node, node)):
        await asyncio.sleep(min(for_s, noticed_s))
        cluster.set_condition(node, noticed=for_s > noticed_s)
        if for_s > _DOWN_S + noticed_s:
            await asyncio.sleep(_DOWN_S)
            site.log("fault", f"{node} is down")
            cluster.fail_node(node)
            await asyncio.sleep(for_s - _DOWN_S - noticed_s)
        else:
            await asyncio.sleep(max(0.0, for_s - noticed_s))


async def _reboot(site: SlurmSite, random: Random) -> None:
    """A node goes without a word, and boots."""
    cluster, node = site.cluster, random.choice(site.cluster.nodes)
    if cluster.conditions[node].silent:
        return
    cut = frozenset({node, site.host})
    site.network.cuts.add(cut)
    cluster.set_condition(node, gone=True)
    for pilot in [one for one in cluster.pilots.values() if one.node == node]:
        if pilot.step is not None:
            pilot.step.kill()

    def boot() -> None:
        cluster.fail_node(node)  # Slurm sees that it has booted
        cluster.set_condition(node, gone=False)
        cluster.return_node(node)
        site.network.cuts.discard(cut)

    with _Mended(boot):
        await _unheard(site, random, node, "is gone", random.uniform(60.0, 600.0))


# -- processes ---


def _stopped(kind: str, mean_s: float, *, clings: bool = False) -> Callable[[SlurmSite, Random], Awaitable[None]]:
    async def stop(site: SlurmSite, random: Random) -> None:
        processes, for_s = site.processes(kind), random.expovariate(1.0 / mean_s)
        if processes:
            process = random.choice(processes)
            site.log("fault", f"{process.name} {'hangs' if clings else 'is stopped'} for {for_s:.1f} s")
            process.stop(clings=clings)
            with _Mended(process.go_on):
                await asyncio.sleep(for_s)

    return stop


SLURM_KINDS: Mapping[str, Callable[[SlurmSite, Random], Awaitable[None]]] = {
    "frozen": _frozen,
    "restart": _restart,
    "failover": _fail_over,
    "late": _late,
    "mangled": _mangled,
    "requeue": _requeue,
    "usercancel": _user_cancel,
    "drivercancel": _driver_cancel,
    "driverrequeue": _driver_requeue,
    "completing": _completing,
    "drained": _drained,
    "outsider": _outsider,
    "held": _held,
    "silent": _silent,
    "reboot": _reboot,
    "stopdaemon": _stopped("daemon", 20.0),
    "stopdriver": _stopped("driver", 10.0),
    "stopagent": _stopped("agent", 10.0),
    "stopnode": _stopped("node process", 20.0),
    "stopworker": _stopped("worker", 20.0),
    "hangworker": _stopped("worker", 40.0, clings=True),
}
"""The kinds of faults by name."""
