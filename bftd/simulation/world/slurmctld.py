"""slurmctld in the simulated world: its scheduler, what it knows of pilots and nodes, and what it shows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heapify
from math import inf
from typing import Any

from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.lines import WaitingJob
from bftd.simulation.slurm.model import JobRun, SimulatedJob, SimulatedSite
from bftd.simulation.world.machine.loop import SimulatedLoop
from bftd.simulation.world.machine.processes import Process
from slurm_plugin.clients.client import CommandResult
from slurm_plugin.read.types import Job, Node, Partition

REGULAR, HARVESTED, SERVICE = "batch", "elastic", "service"
LOGIN = "login1"
"""The node of the partition `service`, on which the drivers run as jobs."""


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
    node_process: Process | None = None
    worker: Process | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False


@dataclass
class NodeCondition:
    """The condition of a node, beside its jobs.

    `unheard`: it has not answered a slurmctld that has just started. `silent`: its slurmd does not answer, which Slurm
    shows once it is `noticed`; then it is `down`. Its host is `gone` without a word. `drained` is the reason. An
    `outsider` is not in the harvested partition. Jobs that end there are COMPLETING for `epilog_s`. Slurm starts
    nothing on a `held` node.
    """

    unheard: bool = False
    silent: bool = False
    noticed: bool = False
    down: bool = False
    gone: bool = False
    drained: str = ""
    outsider: bool = False
    held: bool = False
    epilog_s: float = 0.0


_SOUND = NodeCondition()


@dataclass
class Request:
    """A request of a process to slurmctld; nobody has `heard` the answer to a command that has given up."""

    carry_out: Callable[[], None]
    heard: bool = True

    def give_up(self) -> None:
        """Wait no more for the answer."""
        self.heard = False


class Slurmctld(Controller):
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

    def catch_up(self, now_s: float) -> None:
        """Have what was due while nothing was done be due now, in its order."""
        late = sorted(event for event in self._events if event[0] < now_s)
        self._events = [event for event in self._events if event[0] >= now_s]
        heapify(self._events)
        for place, (time_s, _, act, what) in enumerate(late):
            at_s = now_s + 1e-3 * (1 + place)
            if isinstance(what, WaitingJob) and what.run.end_s == time_s:
                what.run.end_s = at_s
            super().at(at_s, act, what)

    def forget_plans(self) -> None:
        """Forget the planned starts and when backfill has worked."""
        self.cycled_s = None
        for line in self.queue:
            line.planned(None, 0)
        self.news = True

    def forget_start(self, line: WaitingJob) -> None:
        """Have a job wait again whose start is not known any more."""
        self._release(line)
        line.run.nodes, line.run.by = 0, ""
        line.run.start_s = line.run.first_line_s = line.run.end_s = inf
        self._queue_up(line)

    def fail(self, line: WaitingJob) -> None:
        """End a job whose node has failed, or have it wait again."""
        self._fail(line)


class ClusterView:
    """One cluster as its slurmctld shows it; `mangle` changes the answers about jobs and nodes."""

    def __init__(self, loop: SimulatedLoop, nodes: int, jobs: Sequence[SimulatedJob]) -> None:
        self.mangle: Callable[[str], CommandResult] | None = None
        self.pilots: dict[str, PilotJob] = {}
        self.drivers: dict[str, str] = {}
        """The users of the drivers' jobs, by job id."""
        self._loop = loop
        site = SimulatedSite.of(nodes)
        self._seed = loop.random.getrandbits(32)
        self._controller = Slurmctld(site, jobs, self._seed)
        self._names = site.numbering.names
        self._bit = site.numbering.bit
        self.conditions = {name: NodeCondition() for name in self._names}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes that jobs run on."""
        return self._names

    @property
    def is_sound(self) -> bool:
        """Whether all nodes are fit for jobs."""
        return all(condition == _SOUND for condition in self.conditions.values())

    @property
    def waiting(self) -> bool:
        """Whether any regular job waits."""
        return bool(self._controller.queue)

    def runs(self) -> list[JobRun]:
        """Return the courses of all regular jobs, once none of this world's processes goes on."""
        controller = self._controller
        while controller.next_s < inf and any(run.first_line_s == inf for run in controller.runs):
            controller.step()
        return controller.runs

    def runs_without_pilots(self) -> list[JobRun]:
        """Return the courses that the same jobs have without any pilot."""
        jobs = [run.job for run in self._controller.runs]
        return Controller(self._controller.site, jobs, self._seed).run()

    def idle_nodes(self) -> tuple[str, ...]:
        """Return the nodes that are idle."""
        return self._on(self._now().idle)

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

    def _now(self) -> Slurmctld:
        self._controller.now_s = self._loop.wall()
        return self._controller

    def _on(self, mask: int) -> tuple[str, ...]:
        return self._controller.site.numbering.of_mask(mask)

    @property
    def now_s(self) -> float:
        """slurmctld's time."""
        return self._loop.wall()

    @property
    def cycled_s(self) -> float | None:
        """The end of backfill's last cycle; None if it has made none."""
        return self._controller.cycled_s

    def shown(self, text: str) -> CommandResult:
        """Return a text as a command prints it."""
        return CommandResult(0, text, "") if self.mangle is None else self.mangle(text)

    def shown_nodes(self) -> list[Node]:
        """Return the nodes."""
        self._now()
        login = Node(LOGIN, "MIXED", frozenset(), (SERVICE,), (), "", {}, 64, 2**37, "", cpus_used=1)
        return [*map(self._node, self._names), login]

    def _node(self, name: str) -> Node:
        controller, bit, condition = self._controller, self._bit[name], self.conditions[name]
        state, flags = "IDLE", set[str]()
        if controller.busy & bit or controller.pilots & bit:
            state = "ALLOCATED"
        elif (controller.leaving | controller.completing) & bit:
            flags.add("COMPLETING")
        if condition.noticed:
            flags.add("NOT_RESPONDING")
        if condition.unheard:
            state = "UNKNOWN"
        elif condition.down:
            state = "DOWN"
        if condition.drained:
            flags.add("DRAIN")
        reason = condition.drained or ("Not responding" if condition.down else "")
        partitions = (REGULAR,) if condition.outsider else (REGULAR, HARVESTED)
        return _node(name, state, frozenset(flags), partitions, reason)

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions."""
        names = self._names
        harvested = tuple(name for name in names if not self.conditions[name].outsider)
        return {
            REGULAR: Partition(REGULAR, names, "UP", None, 10, True),
            HARVESTED: Partition(HARVESTED, harvested, "UP", None, 1, True),
            SERVICE: Partition(SERVICE, (LOGIN,), "UP", None, 10),
        }

    def pending(self) -> list[Job]:
        """Return the jobs that wait."""
        return [self._regular(one, "PENDING", place) for place, one in enumerate(self._now().queue)]

    def jobs(self) -> list[Job]:
        """Return the jobs that are not over."""
        controller, login = self._now(), (LOGIN,)
        found = [self._regular(one, "RUNNING", place) for place, one in enumerate(controller.running.values())]
        found += self.pending()
        found += [_job(id_, user, SERVICE, "bft-driver", login, 0.0, None) for id_, user in self.drivers.items()]
        for pilot in self.pilots.values():
            state = "COMPLETING" if pilot.ending else "RUNNING"
            job = _job(pilot.id, pilot.user, HARVESTED, pilot.name, (pilot.node,), pilot.began_s, pilot.limit_s, state)
            found.append(replace(job, comment=pilot.comment))
        return found

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


@cache
def _node(name: str, state: str, flags: frozenset[str], partitions: tuple[str, ...], reason: str) -> Node:
    used = 16 * (state == "ALLOCATED")
    return Node(name, state, flags, partitions, (), "", {}, 16, 2**36, reason, cpus_used=used)


def _job(
    id_: str, user: str, partition: str, name: str, nodes: tuple[str, ...], began_s: float, limit_s: float | None,
    state: str = "RUNNING",
) -> Job:  # fmt: skip
    return Job(
        id_, user, (partition,), state, name, nodes, (), began_s, began_s, limit_s, "", len(nodes), "", "", 1, ""
    )
