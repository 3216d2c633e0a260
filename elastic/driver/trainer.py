"""The trainer: keeps wanted and current members together, suspends and resumes, and ends in order.

Everything that may have to wait happens in one task (`_reconcile`), one thing after the other. Events that must not
wait (a notice of Slurm's, the end of a worker) are handled where they arrive (elastic.driver.connections) and only set
flags for that task.

    TrainerContext   shared by all parts: settings, log, progress, checkpoints, the end
    FailurePolicy    the trainer as the back-end sees it
    PeerConnections  messages of agents and workers
    Clockwork        periodic work
    Liveness         peers that still answer
    Estimating       the speed, before training
    Changes          the log's lines about nodes
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from bftd.protocol.lease import Leases
from bftd.protocol.reports import ResumeReport, SuspendReport
from elastic.backends import Kind, load
from elastic.backends.base import Backend
from elastic.base.errors import ElasticError, UsageError
from elastic.base.timing import (
    COALESCE_S,
    FAREWELL_S,
    LAST_CHECKPOINT_S,
    LEAVE_S,
    PUBLISH_S,
    PULL_S,
    REPORT_S,
    STORE_RETRY_S,
)
from elastic.driver.connections import PeerConnections
from elastic.driver.context import TrainerContext
from elastic.driver.daemon_link import DaemonLink
from elastic.driver.failures.liveness import Liveness
from elastic.driver.failures.policy import FailurePolicy
from elastic.driver.pilots.launcher import Pilot, PilotStarter
from elastic.driver.pilots.manager import PilotManager
from elastic.driver.progress.curve_estimate import Estimating
from elastic.driver.progress.job_output import Changes, TrainingRate
from elastic.driver.settings import DriverSettings
from elastic.driver.timers import Clockwork
from elastic.options.job_script import NO_CONTAINERS

_CANCEL_AGAIN_S = 0.1


class TrainerDriver:
    """One trainer from its registration to its exit code; `connections` is for the hub, `on_leases` for the daemon."""

    def __init__(
        self,
        settings: DriverSettings,
        log: Callable[[str], None],
        kind: Kind,
        starter: PilotStarter,
        daemon: DaemonLink,
        *,
        show: Callable[[str], None] = print,
    ) -> None:
        """`starter` starts pilots; `daemon` need not be up before `serve` is called; `show` as in `TrainerContext`."""
        self.run = TrainerContext(settings, log, daemon.report, show)
        policy = FailurePolicy(self.run, lambda: self.pilot_manager.all)
        self._backend: Backend = load(kind.driver)(policy)
        owner = _PilotOwner(self.run, self._backend)
        pull_s = 0.0 if settings.spec.container is None else PULL_S
        self.pilot_manager = PilotManager(owner, starter, self.run.report, library=kind.library, pull_s=pull_s)
        clock = asyncio.get_running_loop().time
        liveness = Liveness(self.run, self.pilot_manager, clock)
        self.connections = PeerConnections(self.run, kind, self.pilot_manager, policy, self._backend, liveness)
        self._clockwork = Clockwork(self.run, kind, self.pilot_manager, liveness, clock)
        self.estimating = Estimating(self.run)
        self._changes = Changes(settings.name, resumes=self.run.saved_step >= 0)
        self._starter = starter
        self._daemon = daemon
        self._listed = asyncio.Event()
        self._training = False
        self._saves_together = kind.saves_together
        self._held_back: asyncio.TimerHandle | None = None
        self._suspended = False

    def on_leases(self, listed: Leases) -> None:
        """Takes the daemon's list, and the rules for the pilots that it asks for."""
        self._starter.go_by(listed)
        site = self.run.settings.site
        site.container, site.stage, site.sizes = listed.container, listed.stage, listed.sizes
        self._listed.set()
        self._changes.listed((lease.id, lease.reason) for lease in listed.leases if not lease.revoked)
        self.pilot_manager.on_leases(listed.leases)

    async def serve(self) -> tuple[int, str]:
        """Serves until training is over or stopped; returns the exit code and a sentence."""
        listening = asyncio.create_task(self._daemon.run())
        listening.add_done_callback(self._work_ended)
        try:
            if self.run.settings.spec.container is not None:
                await self._hear_of_containers()
            if not self.run.result.done():
                await self._backend.start()
        except ElasticError as error:
            self.run.failed(error)
        works: list[Coroutine[Any, Any, None]] = [
            self._reconcile_for_ever(),
            *self._clockwork.works(),
            self.estimating.work(),
            self._log_changes(),
        ]
        tasks = list(map(asyncio.create_task, works))
        for task in tasks:
            task.add_done_callback(self._work_ended)
        try:
            code, reason = await self.run.result
            if code == 0:
                await self._hear_farewells()
                self.run.progress.completed()
            return code, reason
        finally:
            await _end([listening, *tasks])

    async def stop(self) -> None:
        """Saves a checkpoint if that can be done at once, and ends every pilot; called once `serve` has returned."""
        workers = [peer for pilot in self.pilot_manager.all for peer in pilot.workers.values()]
        if workers and self.run.result.result()[0] and not self.run.store.fenced:
            # Not at a step boundary: scancel ends every srun of this job as well, and that kills the agents at once.
            await self.run.saver.save(workers, graceful=False, patient=False, upload_s=LEAVE_S)
        # A checkpoint counts once it is complete on the disk; after the script's good end nobody waits for the nodes.
        await self.run.distributed.settle(LAST_CHECKPOINT_S if self.run.result.result()[0] == 0 else PUBLISH_S)
        await self._backend.close()
        await self.pilot_manager.close()
        await self.connections.transfers.close()
        await self.run.versions.close()
        for report in self.run.progress.untold(time.time()):  # the workers that go on from it may have no step left
            self.run.report(report)

    async def _hear_of_containers(self) -> None:
        """Waits until the daemon has said how the site starts containers; raises UsageError if the site starts none."""
        heard: asyncio.Future[Any] = asyncio.ensure_future(self._listed.wait())
        over: asyncio.Future[Any] = self.run.result
        try:
            await asyncio.wait({heard, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
        if not (self.run.result.done() or self.run.settings.site.container):
            raise UsageError(NO_CONTAINERS)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.run.failed(task.exception())

    # -- the one task that waits ---

    async def _reconcile_for_ever(self) -> None:
        while True:
            await self.run.news()
            await self._reconcile()

    async def _reconcile(self) -> None:
        members = self._members()
        if members:
            self._training = True
            await self._backend.set_members(members)
            if self._suspended and self._backend.running:
                self._suspended = False
                self.run.report(ResumeReport(time.time(), self.run.step))
        elif self._training:
            await self._suspend()
        for pilot in self.pilot_manager.all:
            if (pilot.revoked or pilot.expiring) and pilot.state != "granted" and not self._backend.uses(pilot):
                await self.pilot_manager.give_back(pilot)

    def _members(self) -> list[Pilot]:
        """Returns the nodes to train on now: an allowed number of the warm ones, the oldest first."""
        pilots = self.pilot_manager.all
        ready = sorted((pilot for pilot in pilots if pilot.wanted), key=lambda pilot: (pilot.ready_s, pilot.lease))
        last = self._backend.finishing
        if last and all(pilot.wanted for pilot in last):
            # However few are left: suspending them would repeat the script's end.
            return [pilot for pilot in ready if self._backend.uses(pilot)]
        newcomers = [pilot for pilot in ready if not self._backend.uses(pilot)]
        if newcomers and self._would_lose(pilots):
            ready, newcomers = [pilot for pilot in ready if self._backend.uses(pilot)], []
        if newcomers and any(pilot.warming for pilot in pilots):
            # Others are about to get warm: one resize, or one start, for all of them.
            wait_s = newcomers[0].ready_s + COALESCE_S - time.monotonic()
            if wait_s > 0:
                asyncio.get_running_loop().call_later(wait_s, self.run.wake)
                ready = [pilot for pilot in ready if pilot not in newcomers]
        return ready[: self.run.settings.sizes.largest(len(ready))]

    def _would_lose(self, pilots: Sequence[Pilot]) -> bool:
        """Whether newcomers have to wait because no checkpoint can be saved: all would begin again from the last one.

        Only if the group could go on as it is; a group that has lost a node begins again anyway.
        """
        group = [pilot for pilot in pilots if self._backend.uses(pilot)]
        failing = self.run.store.failing or self.run.versions.failing
        if not (self._saves_together and failing and self._backend.running and all(pilot.wanted for pilot in group)):
            return False
        if self._held_back is None:
            self.run.log("new nodes wait until a checkpoint can be saved: to start on them now would lose what is not")
        else:
            self._held_back.cancel()
        self._held_back = asyncio.get_running_loop().call_later(STORE_RETRY_S, self.run.wake)
        return True

    async def _suspend(self) -> None:
        self._training, self._suspended = False, True
        await self._backend.suspend()
        step = self.run.step
        self.run.progress.suspended(step)
        for pilot in self.pilot_manager.all:
            pilot.working = False
        self._log(self._changes.suspended(time.monotonic(), step))
        self.run.report(SuspendReport(time.time(), step))

    async def _log_changes(self) -> None:
        """Logs the changes of the trainer's nodes."""
        while True:
            await asyncio.sleep(REPORT_S)
            progress = self.run.progress
            group = [pilot for pilot in self.pilot_manager.all if pilot.workers and self._backend.uses(pilot)]
            known = TrainingRate(progress.groups, progress.nodes, progress.samples_per_s, self._daemon.ends_in_s)
            self._log(self._changes.look(time.monotonic(), group, known))

    def _log(self, line: str | None) -> None:
        if line is not None and not self.run.result.done():
            self.run.log(line)

    async def _hear_farewells(self) -> None:
        """Waits for workers' last words and uploads: their own connections may lag behind the report of their end."""
        began_s = time.monotonic()
        while any(pilot.workers for pilot in self.pilot_manager.all):
            if time.monotonic() - began_s > (LAST_CHECKPOINT_S if self.run.store.receiving else FAREWELL_S):
                break
            await asyncio.sleep(0.01)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels the tasks and waits for their end.

    More than once: before Python 3.12 `wait_for` loses a cancellation that coincides with the result it waits for.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)


class _PilotOwner:
    """The trainer as its pilot manager sees it: the training's response to a node that goes; see TrainerEvents."""

    def __init__(self, run: TrainerContext, backend: Backend) -> None:
        self._run = run
        self._backend = backend

    def log(self, text: str) -> None:
        """See TrainerEvents."""
        self._run.log(text)

    def wake(self) -> None:
        """See TrainerEvents."""
        self._run.wake()

    def failed(self, error: BaseException) -> None:
        """See TrainerEvents."""
        self._run.failed(error)

    def lost(self, pilot: Pilot) -> None:
        """Tells progress and the back-end that the pilot's processes are gone."""
        if self._backend.uses(pilot) and not pilot.revoked:
            self._run.progress.broke(-1, 0.0)
        pilot.leaving = True
        pilot.workers.clear()
        self._backend.lost(pilot)
        self._run.wake()

    async def rescue(self, pilot: Pilot, others: Sequence[Pilot]) -> None:
        """Has the last copy of the checkpoint uploaded if this node may hold it."""
        if pilot.workers and not any(other.workers and not other.leaving for other in others):
            workers = list(pilot.workers.values())
            await self._run.saver.save(workers, graceful=False, patient=False, upload_s=LEAVE_S)

    def saving(self) -> bool:
        """See TrainerEvents."""
        return self._run.saver.growing
