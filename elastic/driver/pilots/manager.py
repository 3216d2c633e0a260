"""The trainer's pilots: every lease that the daemon granted, from its placement to the end of its allocation."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from bftd.protocol.lease import LeaseState, LeaseView
from bftd.protocol.registration import Held
from bftd.protocol.reports import CrashReport, LeaseReport, Report
from elastic.base.timing import (
    CONNECT_S,
    FAREWELL_S,
    FAULT_SHOWN_S,
    GONE_S,
    GRACEFUL_LEAVE_S,
    SAVING_LEAVE_S,
    WARM_S,
)
from elastic.driver.pilots.addresses import advice
from elastic.driver.pilots.launcher import Pilot, PilotStarter, wants_memory

_FAREWELL_S = 1.0
"""The time limit for agents to end at the end of the trainer."""

_ENDED_S = 10.0
"""The time limit for cancelled pilots to end; a driver that is itself cancelled has KillWait seconds."""

_ENDED_MOST = 10_000
"""So many leases are known to have ended, the last ones."""

_LOOK_S = 0.5


class TrainerEvents(Protocol):
    """The trainer as the pilot manager needs it."""

    def log(self, text: str) -> None:
        """Writes one line to the trainer's log."""

    def wake(self) -> None:
        """Notes that something changed."""

    def lost(self, pilot: Pilot) -> None:
        """Notes that the pilot's processes are gone."""

    async def rescue(self, pilot: Pilot, others: Sequence[Pilot]) -> None:
        """Has a checkpoint uploaded, if none of the `others` has a copy: the pilot goes at once."""

    def saving(self) -> bool:
        """Whether a checkpoint is on its way to storage that outlives the nodes, and still grows."""

    def failed(self, error: BaseException) -> None:
        """Takes a fault of the driver itself."""


class PilotManager:
    """The pilots that carry out the daemon's leases; `report` tells the daemon what became of them."""

    def __init__(
        self,
        owner: TrainerEvents,
        starter: PilotStarter,
        report: Callable[[Report], None],
        *,
        library: str,
        pull_s: float = 0.0,
    ) -> None:
        """`library`: the module that nodes import before they are ready; `pull_s`: time limit for pulling its image."""
        self.pilots: dict[str, Pilot] = {}
        self._library = library
        self._pull_s = pull_s
        self._owner = owner
        self._starter = starter
        self._report = report
        self._ended: dict[str, None] = {}
        self._early: dict[str, list[tuple[LeaseState, float]]] = {}
        self._closed = False

    @property
    def all(self) -> list[Pilot]:
        """The current pilots."""
        return list(self.pilots.values())

    # -- the daemon's list ---

    def on_leases(self, leases: Sequence[LeaseView]) -> None:
        """Takes the daemon's full list: carries out new leases, and gives back those that are revoked or missing."""
        listed = {lease.id for lease in leases}
        for lease in leases:
            pilot = self.pilots.get(lease.id)
            if pilot is None:
                self._new_lease(lease)
            elif lease.revoked:
                self._revoke(pilot, lease.vacate, lease.reason, lease.leave_in_s or 0.0)
        for pilot in self.all:
            if pilot.lease not in listed:
                self._revoke(pilot, False, "bftd does not know this lease")

    def held(self) -> tuple[Held, ...]:
        """Returns the leases that are still being carried out, for a daemon that was restarted."""
        return tuple(Held(pilot.lease, pilot.node, pilot.job_id) for pilot in self.all if pilot.job_id)

    def spawn(self, coroutine: Coroutine[Any, Any, None], pilot: Pilot) -> asyncio.Task[None]:
        """Runs a coroutine for a pilot in the background; it is cancelled when the pilot ends."""
        task = asyncio.ensure_future(coroutine)
        pilot.tasks.append(task)
        task.add_done_callback(self._done)
        return task

    async def give_back(self, pilot: Pilot) -> None:
        """Ends the agent and the allocation."""
        pilot.send({"op": "end"})
        if pilot.job_id and pilot.agent is None:
            await self._starter.cancel([pilot.job_id])
        pilot.over.set()

    def leave_at_once(self, pilot: Pilot) -> None:
        """Answers a notice of Slurm's, or the daemon's word that a regular job needs the node.

        Only the last copy of the checkpoint is waited for.
        """
        pilot.leaving = True
        self.spawn(self._leave(pilot), pilot)

    def lost(self, pilot: Pilot) -> None:
        """Reports to the trainer that the pilot's processes are gone."""
        self._owner.lost(pilot)

    def abandon(self, pilot: Pilot, why: str) -> None:
        """Gives up a node that does not answer, or does not end what it is told to end; its allocation is cancelled."""
        if pilot.abandoned.is_set():
            return
        pilot.reason = pilot.reason or why
        self._owner.log(f"{why}; the node is given back")
        self._report(CrashReport(time.time(), pilot.node, rc=1, text=why))
        pilot.send({"op": "end"})
        peers = [*pilot.workers.values(), *([pilot.agent] if pilot.agent else [])]
        pilot.agent = None
        self._owner.lost(pilot)
        pilot.over.set()
        pilot.abandoned.set()
        for peer in peers:
            peer.abandon()

    async def close(self) -> None:
        """Ends every pilot and waits for it; no lease is carried out any more."""
        self._closed = True
        alive = self.all
        for pilot in alive:
            pilot.over.set()
            pilot.send({"op": "end"})
        carriers = [pilot.carrier for pilot in alive if pilot.carrier]
        if carriers:
            # An agent that is told to end leaves nothing on its node; one that is killed does. And where Slurm's notice
            # has reached every srun, each is ending its own step: slurmstepd before 25.05.1 does not bear a second
            # order at that moment, and drains the node a minute later ("Kill task failed").
            await asyncio.wait(carriers, timeout=_FAREWELL_S)
        await self._starter.cancel([pilot.job_id for pilot in self.pilots.values() if pilot.job_id])
        if carriers:
            await asyncio.wait(carriers, timeout=_FAREWELL_S)
        for pilot in alive:
            pilot.abandoned.set()
        if carriers:
            # If Slurm does not answer, an srun that nobody ends would be waited for.
            await asyncio.wait(carriers, timeout=_ENDED_S)
            for carrier in carriers:
                carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)
        await self._starter.close()

    # -- one lease ---

    def _new_lease(self, lease: LeaseView) -> None:
        if lease.revoked or lease.id in self._ended or self._closed:
            # Its end was reported to a daemon that has not processed it yet, or that was restarted since, perhaps
            # without the last steps of its ledger.
            self._report(LeaseReport(time.time(), lease.id, "ended", reason="it had ended before"))
            return
        pilot = Pilot(lease.id, lease.node, lease.limit_s, lease.gres, lease.partition, lease.reason)
        self.pilots[lease.id] = pilot
        pilot.carrier = self.spawn(self._carry_out(pilot), pilot)

    async def _carry_out(self, pilot: Pilot) -> None:
        refused = await self._starter.place(pilot)
        if refused is not None:
            if pilot.agent is not None:  # Slurm had started it before the pilot was withdrawn
                pilot.send({"op": "end"})
                self._owner.lost(pilot)
            self._forget(pilot, "refused", refused)
            return
        self._placed(pilot)
        if not (pilot.revoked or self._closed):
            self.spawn(self._give_up_late(pilot), pilot)
            try:
                failed = await self._attend(pilot)
                if pilot.starved:
                    self.short_of_memory(pilot)
                if failed:
                    await self._shown(pilot)
                    self._failed_on(pilot, failed)
            except (OSError, RuntimeError) as error:  # out of processes, files or threads: no fault of the others
                pilot.reason = f"its agent could not be started: {error}"
                self._owner.log(f"{pilot.node}: {pilot.reason}; it is given back")
        # Whatever ended the agent: an allocation without a process would hold the node until its time limit.
        await self._starter.cancel([pilot.job_id] if pilot.job_id else [])
        self._owner.lost(pilot)
        self._forget(pilot, "ended", pilot.reason)

    def _placed(self, pilot: Pilot) -> None:
        """Notes that the allocation exists, and sends the agent's reports from before Slurm's answer, in order."""
        pilot.state = "placed"
        self.report_state(pilot, "placed")
        for state, at_s in self._early.pop(pilot.lease, []):
            if state == "ready":
                pilot.state = "ready"
            self.report_state(pilot, state, at_s)
        self._owner.wake()

    async def _shown(self, pilot: Pilot) -> None:
        """Holds a node whose agent failed at once, until the daemon has seen the pilot or wants it back.

        Otherwise the node's fault would count as a pilot that Slurm refused the trainer.
        """
        left_s = pilot.placed_s + FAULT_SHOWN_S - time.monotonic()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(pilot.over.wait(), max(0.0, left_s))

    def _failed_on(self, pilot: Pilot, what: str) -> None:
        """Reports a node that failed to the user and the daemon, which keeps others from it if it goes on failing."""
        pilot.reason = what
        self._owner.log(f"{what}; {pilot.node} is given back")
        self._report(CrashReport(time.time(), pilot.node, rc=1, text=what))

    async def _attend(self, pilot: Pilot) -> str:
        """Runs the agent until it has ended; returns what went wrong there, "" for nothing.

        srun alone is not trusted: it waits for a dead node for ever.
        """
        agent = asyncio.ensure_future(self._starter.run_agent(pilot))
        hopeless = asyncio.ensure_future(self._hopeless(pilot))
        try:
            await asyncio.wait({agent, hopeless}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hopeless.cancel()
            agent.cancel()
            await asyncio.wait({agent})
        return "" if agent.cancelled() else agent.result()

    async def _hopeless(self, pilot: Pilot) -> None:
        """Returns when the node is abandoned, or its agent was gone for so long that srun should have returned."""
        over = asyncio.ensure_future(pilot.over.wait())
        abandoned = asyncio.ensure_future(pilot.abandoned.wait())
        try:
            await asyncio.wait({over, abandoned}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({abandoned}, timeout=GONE_S)
        finally:
            over.cancel()
            abandoned.cancel()

    async def _give_up_late(self, pilot: Pilot) -> None:
        """Gives back a pilot that does not get ready in time."""
        await asyncio.sleep(CONNECT_S)
        if pilot.agent is None:
            what = f"no agent came from {pilot.node} within {CONNECT_S:g} s to {pilot.driver}{advice()}"
        else:
            limit_s = self._pull_s + WARM_S
            await asyncio.sleep(limit_s)
            what = f"{pilot.node} did not import {self._library} within {limit_s:g} s"
        if pilot.state == "placed" and not pilot.waits:
            self._failed_on(pilot, what)
            await self.give_back(pilot)

    def short_of_memory(self, pilot: Pilot) -> None:
        """Handles a process that ran out of memory: parts of nodes are too small, and are given back for whole ones."""
        self._starter.short_of_memory(pilot)
        for other in self.all if pilot.part is not None else ():
            if other.part is not None and not other.expiring:
                other.reason = other.reason or "its part of the node has too little memory"
                other.expiring = True
        self._owner.wake()

    def _revoke(self, pilot: Pilot, vacate: bool, reason: str, leave_in_s: float = 0.0) -> None:
        """Asks training to leave; without `vacate` it has as long as a step may take, or until nodes are needed."""
        if pilot.revoked and pilot.vacate >= vacate:
            return
        pilot.revoked, pilot.vacate, pilot.reason = True, vacate, reason
        if pilot.state == "granted":  # Slurm is being asked for it
            return
        if vacate:
            self.leave_at_once(pilot)
        else:
            self.spawn(self._force_leave(pilot, max(GRACEFUL_LEAVE_S, leave_in_s)), pilot)
        self._owner.wake()

    async def _leave(self, pilot: Pilot) -> None:
        await self._owner.rescue(pilot, self.all)
        self._owner.wake()
        if pilot.vacate:
            await self.give_back(pilot)
        else:
            pilot.send({"op": "go"})

    async def _force_leave(self, pilot: Pilot, within_s: float) -> None:
        began_s = time.monotonic()
        await asyncio.sleep(within_s)
        while self._owner.saving() and time.monotonic() - began_s < SAVING_LEAVE_S:
            await asyncio.sleep(_LOOK_S)
        within_s = time.monotonic() - began_s
        self._owner.log(f"{pilot.node} did not leave training within {within_s:.3g} s; its workers are ended")
        await self.give_back(pilot)

    def _forget(self, pilot: Pilot, state: LeaseState, reason: str) -> None:
        pilot.state = "ended"
        for task in pilot.tasks:
            if task is not pilot.carrier:
                task.cancel()
        self.pilots.pop(pilot.lease, None)
        self._early.pop(pilot.lease, None)
        self._ended[pilot.lease] = None
        if len(self._ended) > _ENDED_MOST:
            del self._ended[next(iter(self._ended))]
        if pilot.job_id:
            self._starter.forget(pilot.job_id)
        self._report(LeaseReport(time.time(), pilot.lease, state, pilot.job_id, reason))
        self._owner.wake()

    async def run_step(self, pilot: Pilot, command: Sequence[str]) -> list[str]:
        """Runs a further step in the pilot; returns its output if it ended before the node was ready."""
        lines = await self._starter.run_step(pilot, command)
        if pilot.part is not None and wants_memory("\n".join(lines)):
            self.short_of_memory(pilot)
            return []  # that is reported, and says nothing about the image
        # Slurm's notice ends a step as well, and the agent's message about it may arrive later.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(pilot.over.wait(), FAREWELL_S)
        taken = pilot.revoked or pilot.leaving or pilot.over.is_set()
        return lines if pilot.state in ("granted", "placed") and not taken else []

    def ready(self, pilot: Pilot) -> None:
        """Notes that the node process is warm; without Slurm's answer it cannot train yet, as it may be withdrawn."""
        pilot.ready_s = time.monotonic()
        if pilot.state != "granted":
            pilot.state = "ready"
        self.report_state(pilot, "ready")
        self._owner.wake()

    def report_state(self, pilot: Pilot, state: LeaseState, at_s: float | None = None) -> None:
        """Reports the new state of a lease; `at_s` is its time in unix seconds, None for now."""
        at_s = time.time() if at_s is None else at_s
        if pilot.state == "granted":
            self._early.setdefault(pilot.lease, []).append((state, at_s))
            return
        self._report(LeaseReport(at_s, pilot.lease, state, pilot.job_id, pilot.reason))

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._owner.failed(error)
