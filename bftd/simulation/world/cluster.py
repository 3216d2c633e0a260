"""Slurm in the simulated world: the simulated slurmctld with the pilots, their steps, and the nodes' condition.

The scheduler, backfill and preemption are `bftd.simulation.slurm`; `commands` is how users' processes reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from heapq import heapify
from math import inf
from random import Random
from typing import Any

from bftd.pool.backfill.model import union
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.lines import WaitingJob
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite
from bftd.simulation.slurm.nodes import bits
from bftd.simulation.world.loop import Process, SimulatedLoop
from slurm_plugin.read.client import CommandResult
from slurm_plugin.read.types import Job, Node, Partition

REGULAR, HARVESTED, SERVICE = "batch", "elastic", "service"
LOGIN = "login1"
"""The node of the partition `service`, on which the drivers run as jobs."""

_KILL_WAIT_S = 30.0
_EPILOG_S = 0.03
_SCANCEL_S = 5.0
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
    ending: bool = False


@dataclass
class NodeCondition:
    """What a node is like beside its jobs.

    `unheard`: it has not answered a slurmctld that has just started. `silent`: its slurmd does not answer, which Slurm
    shows once it is `noticed`; then it is `down`. `drained` is the reason. An `outsider` is not in the harvested
    partition. Jobs that end there are COMPLETING for `epilog_s`. Slurm starts nothing on a `held` node.
    """

    unheard: bool = False
    silent: bool = False
    noticed: bool = False
    down: bool = False
    drained: str = ""
    outsider: bool = False
    held: bool = False
    epilog_s: float = 0.0


@dataclass
class Request:
    """What a process asks of slurmctld; nobody has `heard` the answer to a command that has given up."""

    carry_out: Callable[[], None]
    heard: bool = True

    def give_up(self) -> None:
        """Wait no more for the answer."""
        self.heard = False


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


class SimulatedCluster:
    """One cluster with its regular jobs; `log` takes a line for each start and end.

    A slurmctld that is `away` hears no command and still schedules; one that is `halted` does nothing at all, and one
    that `refuses` is not even there. Its answers come `late_s` late on average, and `mangle` changes them.
    """

    def __init__(
        self, loop: SimulatedLoop, nodes: int, jobs: Sequence[SimulatedJob], log: Callable[[str], None]
    ) -> None:
        self.away = self.halted = self.refuses = False
        self.late_s = 0.0
        self.mangle: Callable[[str], CommandResult] | None = None
        self.changes = 0
        self.restarted_s = loop.wall() - 1.0
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
        self.conditions = {name: NodeCondition() for name in self._names}
        self._next_id = _FIRST_PILOT
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._running: set[int] = set()
        self._backlog: list[Request] = []
        self._missed: list[Callable[[], None]] = []
        self._strangers: list[PilotJob] = []
        self._halted_s = 0.0
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
        if next_s < self._timer_s and not self.halted:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = next_s
            after_s = max(0.0, next_s - self._loop.wall())
            self._timer = self._loop.later(after_s, self._go)

    def _go(self) -> None:
        controller, self._timer_s, self._timer = self._controller, inf, None
        while not self.halted and controller.next_s <= self._loop.wall() + 1e-6:
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

    def allocate(self, node: str, user: str, name: str, comment: str, limit_s: float) -> PilotJob | str:
        """Give an idle node to a pilot; returns Slurm's reason if it does not."""
        controller, condition = self._now(), self.conditions.get(node)
        if condition is None or condition.outsider:
            return "Unable to allocate resources: Requested node configuration is not available"
        if condition.held or not controller.idle & self._bit[node]:
            return "Unable to allocate resources: Requested nodes are busy"
        controller.lend(self._bit[node])
        pilot = PilotJob(str(self._next_id), node, user, comment, name, self._loop.wall(), limit_s)
        self._next_id += 1
        self.pilots[pilot.id] = pilot
        self.changes += 1
        self._log(f"pilot {pilot.id} of {user} starts on {node} ({comment})")
        self._loop.later(limit_s, self._time_out, pilot)
        return pilot

    async def step(self, job_id: str, agent: Callable[[Process, PilotJob], Awaitable[None]]) -> bool:
        """Run an agent in a pilot to its end; returns whether Slurm has started it."""
        await asyncio.sleep(self._loop.random.expovariate(1.0 / _STARTED_S))
        pilot = self.pilots.get(job_id)
        if self.is_away or pilot is None or pilot.ending or self._is_unreachable(pilot.node):
            return False
        process = pilot.step = Process(f"agent {pilot.node}", pilot.node)
        ended = asyncio.Event()
        process.on_kill.append(lambda: self._tell_later(ended))
        task = process.start(_served, process, agent, pilot)
        try:
            await ended.wait()
            while self._is_unreachable(pilot.node) and not self.conditions[pilot.node].down:
                await asyncio.sleep(1.0)  # srun waits for a node that says nothing
        finally:
            task.cancel()
        return True

    def _is_unreachable(self, node: str) -> bool:
        condition = self.conditions[node]
        return condition.silent or condition.unheard

    def _tell_later(self, event: asyncio.Event) -> None:
        self._loop.later(0.0, event.set)

    def _preempted(self, mask: int) -> None:
        for bit in bits(mask):
            (node,) = self._on(bit)
            for pilot in [one for one in self.pilots.values() if one.node == node]:
                self._log(f"pilot {pilot.id} is preempted on {node}")
                self._notify(pilot)

    def _time_out(self, pilot: PilotJob) -> None:
        self._soon(partial(self._notify, pilot))

    def _soon(self, act: Callable[[], None]) -> None:
        """Have slurmctld do something, as soon as it does anything."""
        if self.halted:
            self._missed.append(act)
        else:
            act()

    def _notify(self, pilot: PilotJob) -> None:
        """Have a pilot end: SIGCONT, SIGTERM, and SIGKILL after a while."""
        if pilot.id not in self.pilots or pilot.ending:
            return
        pilot.ending = True
        self.changes += 1
        self._deliver(pilot)

    def _deliver(self, pilot: PilotJob) -> None:
        """Have the slurmd of a node end a pilot there, as soon as it answers."""
        if self.conditions[pilot.node].silent and pilot.id in self.pilots:
            self._loop.later(1.0, self._deliver, pilot)
        elif pilot.step is None or pilot.step.dead:
            self._emptied(pilot)
        else:
            pilot.step.on_kill.insert(0, partial(self._emptied, pilot))
            pilot.step.go_on()
            pilot.step.run(self._loop.call_soon, pilot.notice)
            self._loop.later(_KILL_WAIT_S, pilot.step.kill)

    def _emptied(self, pilot: PilotJob) -> None:
        """End a pilot that has no process any more when its epilog is over."""
        over_s = self._loop.time() + self.conditions[pilot.node].epilog_s
        self._loop.later(self._loop.random.expovariate(1.0 / _EPILOG_S), self._heard_of_end, pilot, over_s)

    def _heard_of_end(self, pilot: PilotJob, over_s: float) -> None:
        condition = self.conditions[pilot.node]
        hangs = condition.epilog_s > 0.0 and self._loop.time() < over_s
        if (condition.silent or hangs) and pilot.id in self.pilots:
            self._loop.later(1.0, self._heard_of_end, pilot, over_s)
        else:
            self._soon(partial(self.over, pilot))

    def over(self, pilot: PilotJob) -> None:
        """Note that a pilot's job is over."""
        if self.pilots.pop(pilot.id, None) is None:
            return
        self.changes += 1
        self._log(f"pilot {pilot.id} has left {pilot.node}")
        self._now().release(self._bit[pilot.node])

    def cancel(self, job_id: str) -> None:
        """End a pilot as scancel does: its processes have a while to leave."""
        if (pilot := self.pilots.get(job_id)) is not None:
            self._notify(pilot)

    def cancel_from_node(self, job_id: str) -> None:
        """Run scancel as an agent does, which does not wait long."""
        request = Request(partial(self.cancel, job_id))
        self._loop.later(_SCANCEL_S, request.give_up)
        self.take(request)

    def kill_step(self, job_id: str) -> None:
        """Kill the processes of a pilot, which it outlives."""
        pilot = self.pilots.get(job_id)
        if pilot is not None and pilot.step is not None and not self._is_unreachable(pilot.node):
            pilot.step.kill()

    def has_step(self, job_id: str) -> bool:
        """Whether a process runs in a pilot, as far as Slurm knows."""
        pilot = self.pilots.get(job_id)
        return pilot is not None and pilot.step is not None and not pilot.step.dead

    # -- slurmctld itself ---

    @property
    def is_away(self) -> bool:
        """Whether no command is answered."""
        return self.away or self.halted

    @property
    def is_clear(self) -> bool:
        """Whether every command is answered at once and in full."""
        return not (self.is_away or self.late_s or self.mangle)

    def take(self, request: Request) -> bool:
        """Take a request, and carry it out as soon as may be; returns whether anybody is there to take it."""
        if self.refuses:
            return False
        if self.is_away:
            self._backlog.append(request)
        else:
            request.carry_out()
        return True

    def come_back(self) -> None:
        """Have slurmctld hear again, and catch up with what it has missed."""
        was_halted, self.halted, self.away, self.refuses = self.halted, False, False, False
        if was_halted:
            self._controller.catch_up(self._loop.wall())
            self._now()
            missed, self._missed = self._missed, []
            for act in missed:
                self._loop.later(self._loop.random.uniform(0.0, 1.0), self._soon, act)
        backlog, self._backlog = self._backlog, []
        for request in backlog:
            # a client that gave up on a network that is cut has not even sent its request
            if request.heard or was_halted:
                self._carry_out_late(request)
        self._arm()

    def _carry_out_late(self, request: Request) -> None:
        next_id = self._next_id
        request.carry_out()
        if not request.heard and self._next_id > next_id and self._loop.random.random() < 0.5:
            self.cancel(str(next_id))  # slurmctld may notice that nobody hears of the allocation

    def start_again(self, lost_s: float = 0.0) -> None:
        """Start slurmctld, or its backup with a state that lacks the last `lost_s` before it ended."""
        self.restarted_s = self._loop.wall()
        saved_s, random = self._halted_s - lost_s, self._loop.random
        for name in self._names:
            self.conditions[name].unheard = True
            answers_s = random.uniform(0.5, 5.0) if random.random() < 0.95 else random.uniform(5.0, 100.0)
            self._loop.later(answers_s, self._heard_of, name)
        self.come_back()
        controller = self._now()
        self._look_at_nodes()
        controller.forget_plans()
        for line in [one for one in controller.running.values() if saved_s < one.run.start_s]:
            self._log(f"job {line.entry.id} waits again: its start was not saved")
            controller.forget_start(line)
        for pilot in [one for one in self.pilots.values() if saved_s < one.began_s]:
            self._log(f"pilot {pilot.id} on {pilot.node} is not known any more")
            del self.pilots[pilot.id]
            controller.pilots &= ~self._bit[pilot.node]
            self._strangers.append(pilot)
        self.changes += 1
        self._arm()

    def halt(self, *, refuses: bool) -> None:
        """Stop slurmctld; it `refuses` connections if its process is gone."""
        self._halted_s = self._loop.wall()
        self.halted, self.refuses = True, refuses

    def _heard_of(self, node: str) -> None:
        """Take a node's registration: its slurmd ends the processes of jobs that slurmctld does not know."""
        self.conditions[node].unheard = False
        self._look_at_nodes()
        if self.conditions[node].silent:
            return
        strangers = [one for one in self._strangers if one.node == node]
        self._strangers = [one for one in self._strangers if one.node != node]
        for pilot in strangers:
            if pilot.step is not None:
                pilot.step.kill()

    def recover(self) -> None:
        """Have slurmctld answer well."""
        self.late_s, self.mangle = 0.0, None
        self.come_back()

    # -- nodes ---

    def _look_at_nodes(self) -> None:
        """Have the scheduler use only the nodes that are fit."""
        unfit = (name for name, one in self.conditions.items() if one.unheard or one.noticed or one.down or one.drained)
        self._controller.down = union(self._bit[name] for name in unfit)
        self._now().news = True

    def set_condition(self, node: str, **changes: Any) -> None:
        """Change what a node is like."""
        for name, value in changes.items():
            setattr(self.conditions[node], name, value)
        self._look_at_nodes()

    def fail_node(self, node: str) -> None:
        """Take a node for down, and its jobs for failed."""
        self.set_condition(node, down=True)
        for line in [one for one in self._controller.running.values() if one.run.nodes & self._bit[node]]:
            self._controller.fail(line)
        for pilot in [one for one in self.pilots.values() if one.node == node]:
            self._strangers.append(pilot)
            self.over(pilot)
        self._tell()
        self._arm()

    def return_node(self, node: str) -> None:
        """Have a node's slurmd answer again."""
        self.set_condition(node, silent=False, noticed=False, down=False)
        self._heard_of(node)

    def requeue_one(self, random: Random) -> str:
        """Have a running regular job wait again; returns its id, "" if there is none."""
        running = list(self._now().running.values())
        if not running:
            return ""
        line = random.choice(running)
        self._controller.fail(line)
        self._tell()
        self._arm()
        return line.entry.id

    # -- what the commands show ---

    @property
    def now_s(self) -> float:
        """slurmctld's time."""
        return self._loop.wall()

    @property
    def cycled_s(self) -> float | None:
        """When backfill's last cycle ended; None if it has made none."""
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


async def _served(process: Process, agent: Callable[[Process, PilotJob], Awaitable[None]], pilot: PilotJob) -> None:
    try:
        await agent(process, pilot)
    finally:
        process.kill()


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
