"""Slurm in the simulated world: the simulated slurmctld behind the port that the daemon and the drivers know.

The scheduler, backfill and preemption are `bftd.simulation.slurm`; here are the pilots with their steps, and what the
commands show. Simplified: the commands answer at once or not at all, and a slurmctld that is away still schedules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from typing import Any

from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.lines import WaitingJob
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite
from bftd.simulation.slurm.nodes import bits
from bftd.simulation.world.loop import Process, SimulatedLoop
from slurm_plugin.errors import NoAnswer, SnapshotError
from slurm_plugin.read.client import CommandResult, SlurmClient
from slurm_plugin.read.types import Job, Node, NodeAddress, Partition, Scheduler, Snapshot

REGULAR, HARVESTED, SERVICE = "batch", "elastic", "service"
LOGIN = "login1"
"""The node of the partition `service`, on which the drivers run as jobs."""

_AWAY = "slurmctld answers nothing"
_KILL_WAIT_S = 30.0
_STARTED_S = 0.15
_FIRST_PILOT = 5_000_001


@dataclass(eq=False)
class PilotJob:
    """A pilot as Slurm has it; `step` is the agent, the process that Slurm's notice goes to."""

    id: str
    node: str
    user: str
    comment: str
    name: str
    began_s: float
    limit_s: float
    step: Process | None = None
    worker: Process | None = None
    notice: Callable[[], None] = lambda: None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False


class _Slurmctld(Controller):
    """The simulated slurmctld, whose pilots leave when their processes have ended, not after a drawn time."""

    def leave(self, mask: int, within_s: float) -> None:
        """Ask the pilots of some nodes to leave."""
        mask &= self.pilots
        self.pilots &= ~mask
        self.leaving |= mask
        self.left(mask)
        self._tell()

    def release(self, mask: int) -> None:
        """Note that the pilots of some nodes are over."""
        self.pilots &= ~mask
        self.leaving |= mask
        self.at(self.now_s + self.drawn(self.site.delays.idle_s), self._gone, mask)

    def at(self, time_s: float, act: Callable[[Any], None], what: Any = None) -> None:
        """Do something at a time, and have the world wake for it."""
        super().at(time_s, act, what)
        self.due()

    due: Callable[[], None] = staticmethod(lambda: None)


class SimulatedCluster:
    """One cluster with its regular jobs; `log` takes a line for each start and end. `away` hears no command."""

    def __init__(
        self, loop: SimulatedLoop, nodes: int, jobs: Sequence[SimulatedJob], log: Callable[[str], None]
    ) -> None:
        self.away = False
        self.changes = 0
        self.pilots: dict[str, PilotJob] = {}
        self.drivers: dict[str, str] = {}
        """The users of the drivers' jobs, by job id."""
        self._loop = loop
        self._log = log
        site = SimulatedSite.of(nodes)
        self._controller = _Slurmctld(site, jobs, loop.random.getrandbits(32))
        self._controller.left = self._preempted
        self._names = site.numbering.names
        self._bit = site.numbering.bit
        self._next_id = _FIRST_PILOT
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._running: set[int] = set()
        self._controller.due = self._arm
        if jobs:
            self._controller.begin()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that jobs run on."""
        return self._names

    @property
    def has_jobs(self) -> bool:
        """Whether regular jobs run or wait."""
        return bool(self._controller.running or self._controller.queue)

    def has_job(self, node: str) -> bool:
        """Whether a regular job runs on a node."""
        return bool(self._controller.busy & self._bit.get(node, 0))

    def regular_nodes(self) -> dict[str, str]:
        """Return the nodes on which regular jobs run, each with its job's id."""
        of_mask = self._controller.site.numbering.of_mask
        return {node: one.entry.id for one in self._controller.running.values() for node in of_mask(one.run.nodes)}

    # -- the scheduler's events ---

    def _arm(self) -> None:
        next_s = self._controller.next_s
        if next_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = next_s
            after_s = max(0.0, next_s - self._loop.wall())
            self._timer = self._loop.later(after_s, self._go)

    def _go(self) -> None:
        controller, self._timer_s, self._timer = self._controller, inf, None
        while controller.next_s <= self._loop.wall() + 1e-6:
            controller.step()
        self._tell()
        self._arm()

    def _tell(self) -> None:
        running = self._controller.running
        for number in sorted(running.keys() - self._running):
            one = running[number]
            self._log(f"job {number} starts on {','.join(self._on(one.run.nodes))} by {one.run.by}")
        for number in sorted(self._running - running.keys()):
            self._log(f"job {number} has ended")
        if running.keys() != self._running:
            self.changes += 1
        self._running = set(running)

    def _now(self) -> _Slurmctld:
        self._controller.now_s = self._loop.wall()
        return self._controller

    def _on(self, mask: int) -> tuple[str, ...]:
        return self._controller.site.numbering.of_mask(mask)

    # -- pilots ---

    def allocate(self, node: str, user: str, name: str, comment: str, limit_s: float) -> PilotJob | None:
        """Give an idle node to a pilot; None if it is not idle."""
        controller = self._now()
        if not controller.idle & self._bit.get(node, 0):
            return None
        controller.lend(self._bit[node])
        pilot = PilotJob(str(self._next_id), node, user, comment, name, self._loop.wall(), limit_s)
        self._next_id += 1
        self.pilots[pilot.id] = pilot
        self.changes += 1
        self._log(f"pilot {pilot.id} of {user} starts on {node} ({comment})")
        self._loop.later(limit_s, self._notify, pilot)
        return pilot

    async def step(self, job_id: str, agent: Callable[[Process, PilotJob], Awaitable[None]]) -> bool:
        """Run an agent in a pilot to its end; returns whether Slurm has started it."""
        await asyncio.sleep(self._loop.random.expovariate(1.0 / _STARTED_S))
        pilot = self.pilots.get(job_id)
        if self.away or pilot is None or pilot.ending:
            return False
        process = pilot.step = Process(f"agent {pilot.node}", pilot.node)
        ended = asyncio.Event()
        process.on_kill.append(lambda: self._tell_later(ended))
        task = process.start(_served, process, agent, pilot)
        try:
            await ended.wait()
        finally:
            task.cancel()
        return True

    def _tell_later(self, event: asyncio.Event) -> None:
        self._loop.later(0.0, event.set)

    def _preempted(self, mask: int) -> None:
        for bit in bits(mask):
            (node,) = self._on(bit)
            for pilot in [one for one in self.pilots.values() if one.node == node]:
                self._log(f"pilot {pilot.id} is preempted on {node}")
                self._notify(pilot)

    def _notify(self, pilot: PilotJob) -> None:
        """Have a pilot end: SIGTERM, and SIGKILL after a while."""
        if pilot.id not in self.pilots or pilot.ending:
            return
        pilot.ending = True
        self.changes += 1
        if pilot.step is None or pilot.step.dead:
            self._over(pilot)
            return
        pilot.step.on_kill.insert(0, partial(self._over, pilot))
        pilot.step.run(self._loop.call_soon, pilot.notice)
        self._loop.later(_KILL_WAIT_S, pilot.step.kill)

    def _over(self, pilot: PilotJob) -> None:
        if self.pilots.pop(pilot.id, None) is None:
            return
        self.changes += 1
        self._log(f"pilot {pilot.id} has left {pilot.node}")
        pilot.over.set()
        self._now().release(self._bit[pilot.node])

    def cancel(self, job_id: str) -> None:
        """End a pilot at once, as scancel does after SIGKILL to its steps."""
        pilot = self.pilots.get(job_id)
        if pilot is None:
            return
        pilot.ending = True
        if pilot.step is not None:
            pilot.step.kill()
        self._loop.later(self._loop.random.expovariate(20.0), self._over, pilot)

    # -- what the commands show ---

    def snapshot(self) -> Snapshot:
        """Return what the daemon reads."""
        controller = self._now()
        nodes = {name: self._node(name) for name in self._names}
        nodes[LOGIN] = Node(LOGIN, "MIXED", frozenset(), (SERVICE,), (), "", {}, 64, 2**37, "")
        scheduler = Scheduler(read=True, cycle_s=0.01, cycled_s=controller.cycled_s)
        now_s = self._loop.wall()
        return Snapshot(now_s, nodes, self.jobs(), (), self.partitions(), scheduler, begun_s=now_s)

    def _node(self, name: str) -> Node:
        controller, bit = self._controller, self._bit[name]
        state, flags = "IDLE", frozenset[str]()
        if controller.busy & bit or controller.pilots & bit:
            state = "ALLOCATED"
        elif (controller.leaving | controller.completing) & bit:
            flags = frozenset({"COMPLETING"})
        return _node(name, state, flags)

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions."""
        names = self._names
        return {
            REGULAR: Partition(REGULAR, names, "UP", None, 10, True),
            HARVESTED: Partition(HARVESTED, names, "UP", None, 1, True),
            SERVICE: Partition(SERVICE, (LOGIN,), "UP", None, 10),
        }

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that are not over."""
        self._now()
        controller, login = self._controller, (LOGIN,)
        found = [self._regular(one, "RUNNING", place) for place, one in enumerate(controller.running.values())]
        found += [self._regular(one, "PENDING", place) for place, one in enumerate(controller.queue)]
        found += [_job(id_, user, SERVICE, "bft-driver", login, 0.0, None) for id_, user in self.drivers.items()]
        for pilot in self.pilots.values():
            state = "COMPLETING" if pilot.ending else "RUNNING"
            job = _job(pilot.id, pilot.user, HARVESTED, pilot.name, (pilot.node,), pilot.began_s, pilot.limit_s, state)
            found.append(replace(job, comment=pilot.comment))
        return tuple(found)

    def _regular(self, one: WaitingJob, state: str, place: int) -> Job:
        job, plan_s = one.job, one.plan_s if state == "PENDING" else None
        return Job(
            id=one.entry.id,
            user=job.user,
            partition=(REGULAR,),
            state=state,
            name="job",
            nodes=self._on(one.run.nodes),
            sched_nodes=self._on(one.plan) if plan_s is not None else (),
            start_s=one.run.start_s if state == "RUNNING" else plan_s,
            submit_s=job.submit_s,
            time_limit_s=job.limit_s,
            reason="" if state == "RUNNING" else "Resources" if place == 0 else "Priority",
            node_count=one.need.count,
            comment="",
            dependency="",
            priority=1_000_000 - job.number,
            reservation="",
        )


async def _served(process: Process, agent: Callable[[Process, PilotJob], Awaitable[None]], pilot: PilotJob) -> None:
    try:
        await agent(process, pilot)
    finally:
        process.kill()


@cache
def _node(name: str, state: str, flags: frozenset[str]) -> Node:
    used = 16 * (state != "IDLE")
    return Node(name, state, flags, (REGULAR, HARVESTED), (), "", {}, 16, 2**36, "", cpus_used=used)


def _job(
    id_: str, user: str, partition: str, name: str, nodes: tuple[str, ...], began_s: float, limit_s: float | None,
    state: str = "RUNNING",
) -> Job:  # fmt: skip
    return Job(
        id_, user, (partition,), state, name, nodes, (), began_s, began_s, limit_s, "", len(nodes), "", "", 1, ""
    )


class SimulatedClient(SlurmClient):
    """Slurm's commands as one user calls them on one host."""

    def __init__(self, cluster: SimulatedCluster, user: str = "") -> None:
        super().__init__()
        self._cluster = cluster
        self._user = user

    def _reached(self) -> SimulatedCluster:
        if self._cluster.away:
            raise SnapshotError(_AWAY)
        return self._cluster

    def snapshot(self) -> Snapshot:
        """See SlurmClient."""
        return self._reached().snapshot()

    def pending(self) -> tuple[Job, ...]:
        """See SlurmClient."""
        return tuple(job for job in self._reached().jobs() if job.state == "PENDING")

    def own_jobs(self, name: str, partition: str) -> tuple[Job, ...]:
        """See SlurmClient."""
        mine = (job for job in self._reached().jobs() if job.user == self._user and job.state == "RUNNING")
        return tuple(job for job in mine if job.name == name and job.partition == (partition,))

    def partitions(self) -> dict[str, Partition]:
        """See SlurmClient."""
        return self._reached().partitions()

    def node_addresses(self) -> dict[str, NodeAddress]:
        """See SlurmClient."""
        return {name: NodeAddress(name, name) for name in self._reached().nodes}

    def cancel(self, job_ids: Iterable[str], signal: str | None = None) -> None:
        """See SlurmClient."""
        if self._cluster.away:
            raise NoAnswer(_AWAY)
        for job_id in job_ids:
            self._cluster.cancel(job_id)

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: str = "",
        env: object = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run salloc; there is no other command of which the text is read."""
        assert command == "salloc", command
        if self._cluster.away:
            raise NoAnswer(_AWAY)
        options = dict(word.removeprefix("--").split("=", 1) for word in arguments if "=" in word)
        pilot = self._cluster.allocate(
            options["nodelist"], self._user, options["job-name"], options["comment"], 60.0 * int(options["time"])
        )
        if pilot is None:
            return CommandResult(1, "", "salloc: error: the node is not idle")
        return CommandResult(0, "", f"salloc: Granted job allocation {pilot.id}")
