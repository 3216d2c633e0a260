"""The trainer: carries out leases, keeps wanted and current members together, saves the state, ends in order.

Everything that may have to wait happens in one task (`_reconcile`), one thing after the other. What must not wait (a
notice of Slurm's, the end of a worker) is answered where it arrives and only sets flags for that task.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from elastic.driver.backend import Backend
from elastic.driver.checkpoint import CheckpointStore
from elastic.driver.daemon import DaemonLink, Lease
from elastic.driver.horovod import HorovodBackend
from elastic.driver.pilots import Peer, Pilot, PilotStarter
from elastic.driver.progress import Progress
from elastic.driver.settings import DriverSettings
from elastic.driver.torchrun import TorchrunBackend
from elastic.timing import (
    BEAT_S,
    COALESCE_S,
    CONNECT_S,
    CRASHES_WITHOUT_A_STEP,
    FROZEN_S,
    GRACEFUL_LEAVE_S,
    LEAVE_S,
    LIMIT_MARGIN_S,
    PAUSE_S,
    PING_S,
    SHIP_EVERY_S,
    WARM_S,
)
from elastic.wire import Message, encode

_SHIP_S = 1.0
"""How long one worker may take to send its last state before another one is asked."""

_FAREWELL_S = 0.5

_FAREWELL = re.compile(r"terminate called after throwing|has been removed from elastic job")
"""How a worker that Horovod removed ends; it is what a revocation looks like, and would alarm the user."""


class Trainer:
    """One trainer from its registration to its exit code."""

    def __init__(self, settings: DriverSettings, secret: str, log: Any) -> None:
        self.settings = settings
        self.log = log
        self.secret = secret
        self.pilots: dict[str, Pilot] = {}
        self.store = CheckpointStore(settings.state_dir)
        self.progress = Progress()
        self.progress.saved(max(self.store.step, 0), self.store.samples)
        self.result: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.backend: Backend = HorovodBackend(self) if settings.backend == "horovod" else TorchrunBackend(self)
        self.daemon: DaemonLink | None = None
        self.starter: PilotStarter | None = None
        self._ended: set[str] = set()
        self._wake = asyncio.Event()
        self._answers = asyncio.Event()
        self._answered: dict[Peer, str] = {}
        self._pongs: dict[Peer, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def run(self, starter: PilotStarter, daemon: DaemonLink) -> tuple[int, str]:
        """Serves until training is over or stopped; returns the exit code and a sentence."""
        self.starter, self.daemon = starter, daemon
        await self.backend.start()
        tasks = [
            asyncio.create_task(work)
            for work in (daemon.run(), self._reconcile_for_ever(), self._beat(), self._ship_for_ever(), self._ping())
        ]
        for task in tasks:
            task.add_done_callback(self._task_failed)
        try:
            code, reason = await self.result
            if code == 0:
                await self._hear_farewells()
            return code, reason
        finally:
            self._stopping = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear_farewells(self) -> None:
        """A worker's last words come on its own connection and may be behind the news of its end."""
        deadline = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline and any(pilot.workers for pilot in self.pilots.values()):
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Saves what can be saved at once, and ends every pilot; called once `run` has returned."""
        self._stopping = True
        workers = [peer for pilot in self.pilots.values() for peer in pilot.workers.values()]
        if workers and self.result.result()[0]:
            await self.save_state(workers, graceful=True, pause_s=LEAVE_S)
        await self.backend.close()
        alive = [pilot for pilot in self.pilots.values() if pilot.state != "ended"]
        for pilot in alive:
            pilot.tell({"op": "end"})
        if self.starter is not None:
            await self.starter.cancel([pilot.job_id for pilot in alive if pilot.job_id])
        for pilot in alive:
            pilot.over.set()
        await asyncio.gather(*(pilot.carrier for pilot in alive if pilot.carrier), return_exceptions=True)

    # -- leases ---

    def on_leases(self, leases: list[Lease]) -> None:
        """Takes the daemon's full list: new ones are carried out, revoked ones given back, absent ones too."""
        listed = {str(lease["id"]) for lease in leases}
        for lease in leases:
            name = str(lease["id"])
            pilot = self.pilots.get(name)
            if pilot is None:
                self._new_lease(name, lease)
            elif lease["state"] == "revoked":
                self._revoke(pilot, bool(lease["vacate"]), str(lease.get("reason", "")))
        for name, pilot in list(self.pilots.items()):
            if name not in listed:
                self._revoke(pilot, False, "bftd does not know this lease")

    def held(self) -> list[dict[str, Any]]:
        """The leases that this driver still has, for a daemon that was restarted."""
        return [{"id": p.lease, "node": p.node, "job_id": p.job_id} for p in self.pilots.values() if p.job_id]

    def _new_lease(self, name: str, lease: Lease) -> None:
        if lease["state"] != "granted" or name in self._ended or self._stopping:
            # Its end was reported to a daemon that went away since.
            self._report_lease(name, "ended", None, "it had ended before")
            return
        pilot = Pilot(name, str(lease["node"]), float(lease["limit_s"]), str(lease.get("gres", "")))
        self.pilots[name] = pilot
        pilot.carrier = self._spawn(self._carry_out(pilot), pilot)

    async def _carry_out(self, pilot: Pilot) -> None:
        """One lease from placing to the end of its allocation."""
        assert self.starter is not None
        refused = await self.starter.place(pilot)
        if refused is not None:
            self._forget(pilot, "refused", refused)
            return
        pilot.state = "placed" if pilot.state == "placing" else pilot.state
        self._report_lease(pilot.lease, "placed", pilot.job_id, "")
        if pilot.revoked:
            await self._give_back(pilot)
        else:
            self._spawn(self._give_up_late(pilot), pilot)
            await self.starter.run_agent(pilot)
            # Whatever ended the agent: an allocation without a process would hold the node to its time limit.
            await self.starter.cancel([pilot.job_id] if pilot.job_id else [])
        self._gone(pilot)
        self._forget(pilot, "ended", pilot.reason)

    async def _give_up_late(self, pilot: Pilot) -> None:
        """Gives a pilot back that does not get ready, and one whose time limit comes."""
        await asyncio.sleep(CONNECT_S)
        if pilot.state == "placed":
            pilot.reason = f"no agent came from {pilot.node} within {CONNECT_S:g} s"
            self._event(op="crash", node=pilot.node, rc=1, text=pilot.reason)
            await self._give_back(pilot)
            return
        await asyncio.sleep(WARM_S)
        if pilot.state == "connected":
            pilot.reason = f"{pilot.node} did not import torch within {WARM_S:g} s"
            self._event(op="crash", node=pilot.node, rc=1, text=pilot.reason)
            await self._give_back(pilot)

    def _revoke(self, pilot: Pilot, vacate: bool, reason: str) -> None:
        if pilot.revoked and pilot.vacate >= vacate:
            return
        pilot.revoked, pilot.vacate, pilot.reason = True, vacate, reason
        pilot.revoked_s = time.time()
        if vacate and pilot.state != "placing":
            # A regular job needs the node: as on Slurm's own notice, nothing is waited for but the last copy.
            pilot.leaving = True
            self._spawn(self._leave(pilot), pilot)
        elif pilot.state != "placing":
            self._spawn(self._force_leave(pilot), pilot)
        self.wake()

    async def _force_leave(self, pilot: Pilot) -> None:
        await asyncio.sleep(GRACEFUL_LEAVE_S)
        if pilot.state != "ended":
            self.log(f"{pilot.node} did not leave training within {GRACEFUL_LEAVE_S:g} s; its workers are ended")
            await self._give_back(pilot)

    async def _give_back(self, pilot: Pilot) -> None:
        """Ends agent and allocation."""
        assert self.starter is not None
        pilot.tell({"op": "end"})
        if pilot.job_id and pilot.agent is None:
            await self.starter.cancel([pilot.job_id])
        pilot.over.set()

    def _forget(self, pilot: Pilot, state: str, reason: str) -> None:
        pilot.state = "ended"
        for task in pilot.tasks:
            if task is not pilot.carrier:
                task.cancel()
        self.pilots.pop(pilot.lease, None)
        self._ended.add(pilot.lease)
        self._report_lease(pilot.lease, state, pilot.job_id, reason)
        self.wake()

    # -- what must not wait ---

    def connected(self, peer: Peer) -> bool:
        """Takes an agent's or a worker's hello; a name that is not of the present is turned away."""
        host = str(peer.hello.get("host", ""))
        if peer.hello.get("role") == "agent":
            pilot = self.pilots.get(host)
            if pilot is None or pilot.agent is not None or self._stopping:
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
        """An agent's connection is its pilot's life; a worker's end is told by its agent."""
        self._pongs.pop(peer, None)
        self._answered[peer] = "gone"
        self._answers.set()
        if peer.hello.get("role") == "agent":
            pilot = self.pilots.get(str(peer.hello["host"]))
            if pilot is not None and pilot.agent is peer:
                pilot.agent = None
                self._gone(pilot)
            return
        for pilot in self.pilots.values():
            if pilot.workers.get(int(peer.hello["local_rank"])) is peer:
                del pilot.workers[int(peer.hello["local_rank"])]

    async def received(self, peer: Peer, message: Message, reader: asyncio.StreamReader) -> None:
        """Takes one message of an agent or a worker."""
        if peer.hello.get("role") == "agent":
            pilot = self.pilots.get(str(peer.hello["host"]))
            if pilot is not None:
                self._from_agent(pilot, message)
            return
        op = message["op"]
        if op == "step":
            self._from_step(peer, message)
        elif op == "state":
            await self.store.receive(reader, int(message["bytes"]), int(message["step"]), int(message["samples"]))
            self.progress.saved(self.store.step, self.store.samples)
            self._answer(peer, "shipped")
        elif op in ("shipped", "nothing_saved", "paused"):
            self._answer(peer, op)
        elif op == "pong":
            self._pongs[peer] = time.monotonic()
        elif op == "fetch":
            await self.store.send(peer.writer, encode({"op": "fetched", "bytes": self.store.size_bytes}))

    def _from_agent(self, pilot: Pilot, message: Message) -> None:
        op = message["op"]
        if op == "out":
            if not (pilot.revoked and _FAREWELL.search(message["line"])):
                print(f"{pilot.node}: {message['line']}", flush=True)
        elif op == "node":
            pilot.workers_per_node = int(message["workers_per_node"])
            self.progress.workers_per_node = pilot.workers_per_node
        elif op == "ready":
            pilot.state, pilot.ready_s = "ready", time.time()
            self._report_lease(pilot.lease, "ready", pilot.job_id, "")
            self.wake()
        elif op == "leaving":
            self._notice(pilot)
        elif op == "cannot":
            self.finish(1, str(message["text"]))
        elif op == "node_exit":
            pilot.reason = f"the node process on {pilot.node} ended with code {message['rc']}"
            self._gone(pilot)
            self._spawn(self._give_back(pilot), pilot)
        else:
            self.backend.received(pilot, message)

    def _notice(self, pilot: Pilot) -> None:
        """Slurm takes the node."""
        pilot.leaving = True
        pilot.reason = pilot.reason or "Slurm took the node for a regular job"
        self._report_lease(pilot.lease, "leaving", pilot.job_id, pilot.reason)
        self._spawn(self._leave(pilot), pilot)

    async def _leave(self, pilot: Pilot) -> None:
        """Answers a notice: fetches the last copy of the state if this node may hold it, then lets go."""
        others = [p for p in self.pilots.values() if p.workers and not p.leaving]
        if pilot.workers and not others:
            await self.save_state(list(pilot.workers.values()), graceful=False, ship_s=LEAVE_S)
        self.wake()
        if pilot.vacate:
            await self._give_back(pilot)
        else:
            pilot.tell({"op": "go"})

    def _gone(self, pilot: Pilot) -> None:
        """The pilot's processes are gone."""
        was_working = bool(pilot.workers) or self.backend.uses(pilot)
        pilot.leaving = True
        pilot.workers.clear()
        if was_working and not pilot.revoked:
            self.progress.broke(-1, 0.0)
        self.backend.lost(pilot)
        self.wake()

    def _from_step(self, peer: Peer, message: Message) -> None:
        pilot = self._pilot_of(peer)
        if pilot is None:
            return
        pilot.failures = 0
        for other in self.pilots.values():
            other.failures = 0
        if message["first"] and not pilot.working:
            pilot.working = True
            self._report_lease(pilot.lease, "working", pilot.job_id, "")
        for event in self.progress.report(message):
            self._event(**event)

    # -- what a back-end asks for ---

    def wake(self) -> None:
        self._wake.set()

    def crashed(self, pilot: Pilot, rc: int, step: int, at_s: float) -> None:
        pilot.failures += 1
        self.progress.broke(step, at_s)
        self._event(op="crash", node=pilot.node, rc=rc, text=f"a worker on {pilot.node} ended with {_code(rc)}")
        self.log(f"a worker on {pilot.node} ended with {_code(rc)}")
        if pilot.failures >= CRASHES_WITHOUT_A_STEP:
            self.finish(_exit_code(rc), f"{CRASHES_WITHOUT_A_STEP} crashes without a step, the last with {_code(rc)}")

    def life_failed(self, reason: str) -> None:
        self._life_failures = getattr(self, "_life_failures", 0) + 1
        self.log(reason)
        self.wake()

    def finish(self, exit_code: int, reason: str) -> None:
        """Ends the trainer; the first call counts."""
        if not self.result.done():
            self.result.set_result((exit_code, reason))

    async def save_state(
        self, workers: Sequence[Peer], *, graceful: bool, pause_s: float = PAUSE_S, ship_s: float = _SHIP_S
    ) -> None:
        """Brings the last state into the store: at a step boundary of rank 0's, else what was saved last.

        Any worker's saved state will do (they are replicas); the one with the highest step is kept.
        """
        if graceful:
            self._ask(workers, {"op": "pause"})
            if await self._wait_for(workers, {"paused"}, pause_s):
                return
        for worker in workers:
            self._ask([worker], {"op": "ship"})
            if await self._wait_for([worker], {"shipped"}, ship_s):
                return

    def _ask(self, workers: Sequence[Peer], message: Message) -> None:
        for worker in workers:
            if self._answered.get(worker) != "gone":
                self._answered.pop(worker, None)
                worker.send(message)

    def _answer(self, peer: Peer, answer: str) -> None:
        self._answered[peer] = answer
        self._answers.set()

    async def _wait_for(self, workers: Sequence[Peer], wanted: set[str], timeout_s: float) -> bool:
        """Whether one of the workers gives a wanted answer in time; ends early when none can any more."""
        deadline = time.monotonic() + timeout_s
        while True:
            answers = {self._answered.get(worker) for worker in workers}
            if answers & wanted:
                return True
            if answers <= {"gone", "nothing_saved"} or (left := deadline - time.monotonic()) <= 0:
                return False
            self._answers.clear()
            try:
                await asyncio.wait_for(self._answers.wait(), left)
            except asyncio.TimeoutError:
                return False

    # -- the one task that waits ---

    async def _reconcile_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._reconcile()

    async def _reconcile(self) -> None:
        members = self._members()
        if not members:
            if self.backend.running:
                await self._suspend()
        else:
            started = not self.backend.running
            await self.backend.set_members(members)
            if started and self.backend.running and self.store.step >= 0:
                self._event(op="resume", step=self.store.step)
        for pilot in list(self.pilots.values()):
            if (pilot.revoked or pilot.expiring) and pilot.state != "placing" and not self.backend.uses(pilot):
                await self._give_back(pilot)

    def _members(self) -> list[Pilot]:
        """The nodes to train on now: an allowed number of the warm ones, the oldest first."""
        ready = sorted((p for p in self.pilots.values() if p.wanted), key=lambda p: (p.ready_s, p.lease))
        newcomers = [p for p in ready if not self.backend.uses(p)]
        if newcomers and len(newcomers) < len(ready) and any(p.warming for p in self.pilots.values()):
            # Others are about to get warm: one resize for all of them. The first start does not wait.
            wait_s = COALESCE_S - (time.time() - newcomers[0].ready_s)
            if wait_s > 0:
                asyncio.get_running_loop().call_later(wait_s, self.wake)
                ready = [p for p in ready if p not in newcomers]
        return ready[: self._allowed(len(ready))]

    def _allowed(self, count: int) -> int:
        spec = self.settings.spec
        sizes = spec.sizes or range(spec.nodes_min, spec.nodes_max + 1)
        return max((size for size in sizes if size <= count), default=0)

    async def _suspend(self) -> None:
        await self.backend.suspend()
        self.progress.suspended(self.store.step)
        for pilot in self.pilots.values():
            pilot.working = False
        self.log(f"suspended at step {max(self.store.step, 0)}, resumes on any nodes")
        self._event(op="suspend", step=max(self.store.step, 0))

    # -- clockwork ---

    async def _beat(self) -> None:
        while True:
            now = time.time()
            for pilot in list(self.pilots.values()):
                pilot.tell({"op": "beat"})
                if pilot.placed_s and not pilot.expiring and now > pilot.placed_s + pilot.limit_s - LIMIT_MARGIN_S:
                    pilot.expiring, pilot.reason = True, "its time limit is over"
                    self.wake()
            await asyncio.sleep(BEAT_S)

    async def _ship_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SHIP_EVERY_S)
            for pilot in self.pilots.values():
                if pilot.working and pilot.workers and self.settings.backend == "horovod":
                    next(iter(pilot.workers.values())).send({"op": "ship"})
                    break

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            now = time.monotonic()
            for pilot in list(self.pilots.values()):
                frozen = [peer for peer in pilot.workers.values() if now - self._pongs.get(peer, now) > FROZEN_S]
                if frozen:
                    self.log(f"a worker on {pilot.node} does not answer; it is ended")
                    pilot.tell({"op": "kill", "host": str(frozen[0].hello["host"])})
                pilot.tell_workers({"op": "ping"})

    # -- small things ---

    def _pilot_of(self, worker: Peer) -> Pilot | None:
        """The pilot that a worker runs in: its host is `LEASE` or `LEASE.INCARNATION`."""
        host = str(worker.hello.get("host", ""))
        for pilot in self.pilots.values():
            if host in (pilot.lease, pilot.host):
                return pilot
        return None

    def _report_lease(self, lease: str, state: str, job_id: str | None, reason: str) -> None:
        self._event(op="lease", id=lease, state=state, job_id=job_id, reason=reason)

    def _event(self, **event: Any) -> None:
        if self.daemon is not None:
            self.daemon.report({"at_s": time.time(), **event})

    def _spawn(self, coroutine: Any, pilot: Pilot) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(coroutine)
        pilot.tasks.append(task)
        task.add_done_callback(self._task_failed)
        return task

    def _task_failed(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.finish(1, f"a fault of bftd's driver, please report it: {error!r}")


def _code(rc: int) -> str:
    if rc < 0:
        try:
            return f"signal {signal.Signals(-rc).name}"
        except ValueError:
            return f"signal {-rc}"
    return f"exit code {rc}"


def _exit_code(rc: int) -> int:
    """A worker's end as the job's exit code: shells write signal N as 128 + N."""
    return 128 - rc if rc < 0 else (rc or 1)
