"""Slurm in the simulated world: a simulated slurmctld with pilots, their steps, and nodes in any condition.

The scheduler, backfill and preemption are `bftd.simulation.slurm`; `commands` is how users' processes reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

from bftd.pool.backfill.model import union
from bftd.simulation.slurm.model import SimulatedJob
from bftd.simulation.slurm.nodes import bits
from bftd.simulation.world.machine.loop import SimulatedLoop
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.slurmctld import ClusterView, PilotJob, Request

_KILL_WAIT_S = 30.0
_EPILOG_S = 0.03
_SCANCEL_S = 5.0
_CREDENTIAL_S = 300.0
"""Slurm works only on hosts whose clocks are no further apart: munge's credentials last no longer."""

_STARTED_S = 0.15
_FIRST_PILOT = 5_000_001


class SimulatedCluster(ClusterView):
    """One cluster with its regular jobs; `log` takes a line for each start and end.

    A slurmctld that is `away` hears no command and still schedules; one that is `halted` does nothing at all, and one
    that `refuses` is not even there. Its answers come `late_s` late on average.
    """

    def __init__(
        self, loop: SimulatedLoop, nodes: int, jobs: Sequence[SimulatedJob], log: Callable[[str], None]
    ) -> None:
        super().__init__(loop, nodes, jobs)
        self.away = self.halted = self.refuses = False
        self.back_s = loop.time()
        """The time at which slurmctld last began to hear commands again."""

        self.late_s = 0.0
        self.changes = 0
        self.pilots_ever, self.pilot_s = 0, 0.0
        """The number of pilots so far, and the seconds for which those that are over had nodes."""

        self.restarted_s = loop.wall() - 1.0
        self._log = log
        self._controller.left = self._preempted
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

    # -- pilots ---

    def allocate(self, node: str, user: str, name: str, comment: str, limit_s: float) -> PilotJob | str:
        """Give an idle node to a pilot; returns Slurm's reason if it does not."""
        controller, condition = self._now(), self.conditions.get(node)
        if condition is None or condition.outsider:
            return f"Unable to allocate {node}, which is not in the partition"
        if condition.held or not controller.idle & self._bit[node]:
            return f"Unable to allocate {node}, which is busy"
        controller.lend(self._bit[node])
        pilot = PilotJob(str(self._next_id), node, user, comment, name, self._loop.wall(), limit_s)
        self._next_id += 1
        self.pilots[pilot.id] = pilot
        self.changes += 1
        self.pilots_ever += 1
        self._log(f"pilot {pilot.id} of {user} starts on {node} ({comment})")
        self._loop.later(limit_s, self._time_out, pilot)
        return pilot

    async def step(self, job_id: str, agent: Callable[[Process, PilotJob], Awaitable[None]]) -> bool:
        """Run an agent in a pilot to its end; returns whether Slurm has started it."""
        await asyncio.sleep(self._loop.random.expovariate(1.0 / _STARTED_S))
        pilot = self.pilots.get(job_id)
        if self.is_away or pilot is None or pilot.ending or self.is_unreachable(pilot.node):
            return False
        process = pilot.step = Process(f"agent {pilot.node}", pilot.node)
        ended = asyncio.Event()
        process.on_kill.append(lambda: self._tell_later(ended))
        task = process.start(_served, process, agent, pilot)
        try:
            await ended.wait()
            while self.conditions[pilot.node].gone and not self.conditions[pilot.node].down:
                await asyncio.sleep(1.0)  # srun waits for a host that says nothing
        finally:
            task.cancel()
        return True

    def is_unreachable(self, node: str) -> bool:
        """Whether slurmctld hears nothing of what is on a node."""
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
            if not pilot.step.clings:
                pilot.step.go_on()
            for process in (pilot.step, pilot.worker):
                if process is not None and not process.dead:
                    process.terminate()
            self._loop.later(_KILL_WAIT_S, pilot.step.kill)

    def _emptied(self, pilot: PilotJob) -> None:
        """End a pilot that has no process any more when its epilog is over."""
        over_s = self._loop.time() + self.conditions[pilot.node].epilog_s
        self._loop.later(self._loop.random.expovariate(1.0 / _EPILOG_S), self._heard_of_end, pilot, over_s)

    def _heard_of_end(self, pilot: PilotJob, over_s: float) -> None:
        condition = self.conditions[pilot.node]
        hangs = condition.epilog_s > 0.0 and self._loop.time() < over_s
        hangs |= pilot.worker is not None and not pilot.worker.dead
        if (condition.silent or hangs) and pilot.id in self.pilots:
            self._loop.later(1.0, self._heard_of_end, pilot, over_s)
        else:
            self._soon(partial(self.over, pilot))

    def over(self, pilot: PilotJob) -> None:
        """Note that a pilot's job is over."""
        if self.pilots.pop(pilot.id, None) is None:
            return
        self.changes += 1
        self.pilot_s += self._loop.wall() - pilot.began_s
        self._log(f"pilot {pilot.id} has left {pilot.node}")
        if pilot not in self._strangers:
            pilot.over.set()
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
        if pilot is not None and pilot.step is not None and not self.is_unreachable(pilot.node):
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

    def may_leave(self, pilot: PilotJob) -> bool:
        """Whether a pilot that is to end can leave its node, as far as Slurm is concerned."""
        clings = pilot.worker is not None and pilot.worker.clings
        hindered = self.halted or self.is_unreachable(pilot.node) or self.conditions[pilot.node].epilog_s
        return not (clings or hindered)

    @property
    def is_clear(self) -> bool:
        """Whether every command is answered at once and in full."""
        return not (self.is_away or self.late_s or self.mangle)

    def refuses_host(self, host: str) -> bool:
        """Whether no command of a host is carried out, as its clock is too far off."""
        clock = self._loop.clocks.get(host)
        return clock is not None and abs(clock.error_s(self._loop.time())) > _CREDENTIAL_S

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
        self.back_s = self._loop.time()
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
            self.pilot_s += self._loop.wall() - pilot.began_s
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
            pilot.over.set()
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


async def _served(process: Process, agent: Callable[[Process, PilotJob], Awaitable[None]], pilot: PilotJob) -> None:
    try:
        await agent(process, pilot)
    finally:
        process.kill()
