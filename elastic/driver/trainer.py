"""The trainer: keeps wanted and current members together, saves the state, counts crashes, ends in order.

Everything that may have to wait happens in one task (`_reconcile`), one thing after the other. What must not wait (a
notice of Slurm's, the end of a worker) is answered where it arrives and only sets flags for that task.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from elastic.backends.base import Backend
from elastic.backends.horovod.driver import HorovodBackend
from elastic.backends.torchrun.driver import TorchrunBackend
from elastic.driver.checkpoint import CheckpointStore
from elastic.driver.crew import Crew
from elastic.driver.daemon import DaemonLink
from elastic.driver.pilots import Pilot, PilotStarter
from elastic.driver.progress import Progress
from elastic.driver.saving import StateSaver
from elastic.driver.settings import DriverSettings
from elastic.link.peer import Peer
from elastic.link.wire import Message, Payload
from elastic.timing import (
    BEAT_S,
    COALESCE_S,
    CRASHES_WITHOUT_A_STEP,
    FAREWELL_S,
    FROZEN_S,
    LEAVE_S,
    LIMIT_MARGIN_S,
    PING_S,
    SHIP_EVERY_S,
)

_REMOVED = re.compile(r"terminate called after throwing|has been removed from elastic job")
"""How a worker that Horovod removed ends; it is what a revocation looks like, and would alarm the user."""

_CANCELLED = "the job was cancelled"


class Trainer:
    """One trainer from its registration to its exit code."""

    def __init__(self, settings: DriverSettings, log: Callable[[str], None]) -> None:
        self.settings = settings
        self.log = log
        self.store = CheckpointStore(settings.state_dir)
        self.saver = StateSaver(self.store)
        self.progress = Progress()
        self.progress.saved(max(self.store.step, 0), self.store.samples)
        self.result: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self._backend: Backend = HorovodBackend(self) if settings.backend == "horovod" else TorchrunBackend(self)
        self._daemon: DaemonLink | None = None
        self._crew: Crew | None = None
        self._wake = asyncio.Event()
        self._pongs: dict[Peer, float] = {}
        self._life_failures = 0
        self._training = False
        self._suspended = False
        self._cancelled = False

    def man(self, starter: PilotStarter, daemon: DaemonLink) -> Crew:
        """Gives the trainer its way to Slurm and to the daemon; returns the crew that takes the daemon's leases."""
        self._daemon = daemon
        self._crew = Crew(self, starter, self._report)
        return self._crew

    @property
    def pilots(self) -> list[Pilot]:
        """The pilots of the moment."""
        return list(self.crew.pilots.values())

    @property
    def crew(self) -> Crew:
        """Set by `man` before anything else is called."""
        assert self._crew is not None
        return self._crew

    async def run(self) -> tuple[int, str]:
        """Serves until training is over or stopped; returns the exit code and a sentence."""
        assert self._daemon is not None
        await self._backend.start()
        works: list[Coroutine[Any, Any, None]] = [
            self._daemon.run(),
            self._reconcile_for_ever(),
            self._beat(),
            self._ping(),
            self._ship_for_ever(),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        for task in tasks:
            task.add_done_callback(self._work_ended)
        try:
            code, reason = await self.result
            if code == 0:
                await self._hear_farewells()
            return code, reason
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Saves what can be saved at once, and ends every pilot; called once `run` has returned."""
        workers = [peer for pilot in self.pilots for peer in pilot.workers.values()]
        if workers and self.result.result()[0]:
            # Not at a step boundary: scancel ends every srun of this job as well, and that kills the agents at once.
            await self.saver.save(workers, graceful=False, ship_s=LEAVE_S)
        await self._backend.close()
        await self.crew.close()

    # -- connections: what must not wait ---

    def connected(self, peer: Peer) -> bool:
        """Takes an agent's or a worker's hello; a name that is not of the present is turned away."""
        if peer.hello.get("role") == "agent":
            pilot = self.crew.pilots.get(str(peer.hello.get("host")))
            if pilot is None or pilot.agent is not None or pilot.over.is_set():
                peer.send({"op": "end"})
                return False
            pilot.agent, pilot.state = peer, "connected"
            peer.send(self.settings.agent_message())
            return True
        pilot = self._pilot_of(peer)
        if pilot is None:
            return False
        pilot.workers[int(peer.hello["local_rank"])] = peer
        self._pongs[peer] = time.monotonic()
        return True

    def disconnected(self, peer: Peer) -> None:
        """An agent's connection is its pilot's life; how a worker ended is told by its agent."""
        self._pongs.pop(peer, None)
        self.saver.gone(peer)
        for pilot in self.pilots:
            if pilot.agent is peer:
                pilot.agent = None
                pilot.over.set()
                self.lost(pilot)
            for local_rank, worker in list(pilot.workers.items()):
                if worker is peer:
                    del pilot.workers[local_rank]

    async def received(self, peer: Peer, message: Message, reader: Payload) -> None:
        """Takes one message of an agent or a worker."""
        op = message["op"]
        if peer.hello.get("role") == "agent":
            pilot = self.crew.pilots.get(str(peer.hello["host"]))
            if pilot is not None:
                self._from_agent(pilot, message)
        elif op == "step":
            self._from_step(peer, message)
        elif op == "pong":
            self._pongs[peer] = time.monotonic()
        elif op == "fetch":
            await self.saver.fetched(peer)
        else:
            await self.saver.received(peer, message, reader)
            self.progress.saved(max(self.store.step, 0), self.store.samples)

    def _from_agent(self, pilot: Pilot, message: Message) -> None:
        op = message["op"]
        if op == "out":
            if not (pilot.revoked and _REMOVED.search(message["line"])):
                print(f"{pilot.node}: {message['line']}", flush=True)
        elif op == "node":
            pilot.workers_per_node = self.progress.workers_per_node = int(message["workers_per_node"])
        elif op == "ready":
            pilot.state, pilot.ready_s = "ready", time.time()
            self.crew.tell_state(pilot, "ready")
            self.wake()
        elif op == "leaving":
            if self._cancelled:  # scancel ends every srun of this job as well: no regular job has asked for the node
                pilot.reason = pilot.reason or _CANCELLED
            else:
                pilot.reason = pilot.reason or "Slurm took the node for a regular job"
                self._report("lease", id=pilot.lease, state="leaving", job_id=pilot.job_id, reason=pilot.reason,
                             at_s=float(message["at_s"]))  # fmt: skip
            self.leave_at_once(pilot)
        elif op == "cannot":
            self.finish(1, str(message["text"]))
        elif op == "node_exit":
            pilot.reason = f"the node process on {pilot.node} ended with {_code(int(message['rc']))}"
            self.lost(pilot)
            self.crew.spawn(self.crew.give_back(pilot), pilot)
        else:
            self._backend.received(pilot, message)

    def _from_step(self, peer: Peer, message: Message) -> None:
        pilot = self._pilot_of(peer)
        if pilot is None:
            return
        self._life_failures = 0
        for other in self.pilots:
            other.failures = 0
        if message["first"] and not pilot.working:
            pilot.working = True
            self.crew.tell_state(pilot, "working")
        for event in self.progress.report(message):
            self._report(**event)

    def leave_at_once(self, pilot: Pilot) -> None:
        """Answers a notice of Slurm's, or the daemon's word that a regular job needs the node."""
        pilot.leaving = True
        self.crew.spawn(self._leave(pilot), pilot)

    async def _leave(self, pilot: Pilot) -> None:
        """Fetches the last copy of the state if this node may hold it, then lets go."""
        others = [other for other in self.pilots if other.workers and not other.leaving]
        if pilot.workers and not others:
            await self.saver.save(list(pilot.workers.values()), graceful=False, ship_s=LEAVE_S)
        self.wake()
        if pilot.vacate:
            await self.crew.give_back(pilot)
        else:
            pilot.tell({"op": "go"})

    def lost(self, pilot: Pilot) -> None:
        """The pilot's processes are gone."""
        if self._backend.uses(pilot) and not pilot.revoked:
            self.progress.broke(-1, 0.0)
        pilot.leaving = True
        pilot.workers.clear()
        self._backend.lost(pilot)
        self.wake()

    # -- what a back-end asks for ---

    def wake(self) -> None:
        """Has the one task that waits look again."""
        self._wake.set()

    async def save_state(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        """See StateSaver.save."""
        await self.saver.save(workers, graceful=graceful)

    def broke(self, step: int, at_s: float) -> None:
        """Notes how far training had come, for what the crash costs."""
        self.progress.broke(step, at_s)

    def crashed(self, pilot: Pilot, rc: int) -> None:
        """Counts a worker's end by itself; a script that dies again and again without a step ends the trainer."""
        pilot.failures += 1
        text = f"a worker on {pilot.node} ended with {_code(rc)}"
        self.log(text)
        self._report("crash", node=pilot.node, rc=rc, text=text)
        if pilot.failures >= CRASHES_WITHOUT_A_STEP:
            self.finish(_exit_code(rc), f"{CRASHES_WITHOUT_A_STEP} crashes without a step, the last with {_code(rc)}")

    def life_failed(self, reason: str) -> None:
        """Begins anew, unless that has failed too often without a step."""
        self._life_failures += 1
        self.log(reason)
        if self._life_failures >= CRASHES_WITHOUT_A_STEP:
            self.finish(1, reason)
        self.wake()

    def cancel(self) -> None:
        """Ends the trainer because Slurm or the user ends its job."""
        self._cancelled = True
        self.finish(128 + signal.SIGTERM, _CANCELLED)

    def finish(self, exit_code: int, reason: str) -> None:
        """Ends the trainer; the first call counts."""
        if not self.result.done():
            self.result.set_result((exit_code, reason))

    def failed(self, error: BaseException | None) -> None:
        """Ends the trainer for a fault of the driver's own."""
        if error is not None:
            self.finish(1, f"a fault of bftd's driver, please report it: {error!r}")

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failed(task.exception())

    # -- the one task that waits ---

    async def _reconcile_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._reconcile()

    async def _reconcile(self) -> None:
        members = self._members()
        if members:
            self._training = True
            await self._backend.set_members(members)
            if self._suspended and self._backend.running:
                self._suspended = False
                self._report("resume", step=max(self.store.step, 0))
        elif self._training:
            await self._suspend()
        for pilot in self.pilots:
            if (pilot.revoked or pilot.expiring) and pilot.state != "placing" and not self._backend.uses(pilot):
                await self.crew.give_back(pilot)

    def _members(self) -> list[Pilot]:
        """The nodes to train on now: an allowed number of the warm ones, the oldest first."""
        ready = sorted((pilot for pilot in self.pilots if pilot.wanted), key=lambda pilot: (pilot.ready_s, pilot.lease))
        newcomers = [pilot for pilot in ready if not self._backend.uses(pilot)]
        if newcomers and any(pilot.warming for pilot in self.pilots):
            # Others are about to get warm: one resize, or one start, for all of them.
            wait_s = newcomers[0].ready_s + COALESCE_S - time.time()
            if wait_s > 0:
                asyncio.get_running_loop().call_later(wait_s, self.wake)
                ready = [pilot for pilot in ready if pilot not in newcomers]
        return ready[: self._allowed(len(ready))]

    def _allowed(self, count: int) -> int:
        spec = self.settings.spec
        sizes = spec.sizes or range(spec.nodes_min, spec.nodes_max + 1)
        return max((size for size in sizes if size <= count), default=0)

    async def _suspend(self) -> None:
        self._training, self._suspended = False, True
        await self._backend.suspend()
        step = max(self.store.step, 0)
        self.progress.suspended(step)
        for pilot in self.pilots:
            pilot.working = False
        self.log(f"suspended at step {step}; resumes on any nodes")
        self._report("suspend", step=step)

    async def _hear_farewells(self) -> None:
        """A worker's last words come on its own connection and may be behind the news of its end."""
        deadline = time.monotonic() + FAREWELL_S
        while time.monotonic() < deadline and any(pilot.workers for pilot in self.pilots):
            await asyncio.sleep(0.01)

    # -- clockwork ---

    async def _beat(self) -> None:
        while True:
            now = time.time()
            for pilot in self.pilots:
                pilot.tell({"op": "beat"})
                if pilot.placed_s and not pilot.expiring and now > pilot.placed_s + pilot.limit_s - LIMIT_MARGIN_S:
                    pilot.expiring, pilot.reason = True, "its time limit is over"
                    self.wake()
            await asyncio.sleep(BEAT_S)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            now = time.monotonic()
            for pilot in self.pilots:
                frozen = [peer for peer in pilot.workers.values() if now - self._pongs.get(peer, now) > FROZEN_S]
                if frozen:
                    self.log(f"a worker on {pilot.node} does not answer; it is ended")
                    pilot.tell({"op": "kill", "host": str(frozen[0].hello["host"])})
                pilot.tell_workers({"op": "ping"})

    async def _ship_for_ever(self) -> None:
        """Horovod's commits stay in the workers' memory; a torchrun script's saves come by themselves."""
        while self.settings.backend == "horovod":
            await asyncio.sleep(SHIP_EVERY_S)
            for pilot in self.pilots:
                if pilot.working and pilot.workers:
                    next(iter(pilot.workers.values())).send({"op": "ship"})
                    break

    # -- small things ---

    def _pilot_of(self, worker: Peer) -> Pilot | None:
        """The pilot that a worker runs in: its host is `LEASE` or `LEASE.INCARNATION`."""
        host = str(worker.hello.get("host", ""))
        return next((pilot for pilot in self.pilots if host in (pilot.lease, pilot.host)), None)

    def _report(self, op: str, **fields: Any) -> None:
        if self._daemon is not None:
            self._daemon.report({"op": op, "at_s": time.time(), **fields})


def _code(rc: int) -> str:
    if rc >= 0:
        return f"exit code {rc}"
    try:
        return f"signal {signal.Signals(-rc).name}"
    except ValueError:
        return f"signal {-rc}"


def _exit_code(rc: int) -> int:
    """A worker's end as the job's exit code: shells write signal N as 128 + N."""
    return 128 - rc if rc < 0 else (rc or 1)
