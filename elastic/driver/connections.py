"""Messages of agents and workers: each is handled on arrival, and sets flags for any work that may have to wait."""

from __future__ import annotations

import time

from bftd.protocol.changes import ASKED, CANCELLED
from bftd.protocol.container import failed
from elastic.backends import Kind
from elastic.backends.base import Backend
from elastic.base.timing import BEAT_S
from elastic.driver.context import TrainerContext
from elastic.driver.failures.liveness import Liveness
from elastic.driver.failures.policy import FailurePolicy
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.pilots.manager import PilotManager
from elastic.driver.saving.distributed import OPS as DISTRIBUTED
from elastic.driver.saving.shared_folder import Probes
from elastic.driver.saving.transfers import Transfers
from elastic.link.peer import Peer
from elastic.link.step_barrier import ANSWERS
from elastic.link.wire import Message

_EXIT_CODE_MOST = 255


class PeerConnections:
    """The hub's listener."""

    def __init__(
        self,
        run: TrainerContext,
        kind: Kind,
        pilot_manager: PilotManager,
        policy: FailurePolicy,
        backend: Backend,
        liveness: Liveness,
    ) -> None:
        self._run = run
        self._kind = kind
        self._pilot_manager = pilot_manager
        self._policy = policy
        self._backend = backend
        self._liveness = liveness
        self.transfers = Transfers(run.saver, self._worker_of, liveness.heard, self._saved, run.offer)
        """For the hub: the connections that carry checkpoints."""
        self._probes = Probes(run, policy.cannot, self._ready)

    def connected(self, peer: Peer) -> bool:
        """Takes an agent's or a worker's hello; returns False for a name that is not a current pilot's or worker's."""
        if peer.hello.get("role") == "agent":
            pilot = self._pilot_named(peer.hello)
            if pilot is None or pilot.agent is not None or pilot.over.is_set():
                peer.send({"op": "end"})
                return False
            pilot.agent = peer
            self._liveness.heard(peer)
            peer.send(self._run.settings.agent_message(self._kind, self._run.environment()))
            if self._probes.needed(pilot):
                self._pilot_manager.spawn(self._probes.ask(pilot), pilot)
            return True
        pilot = self._pilot_of(peer)
        if pilot is None:
            return False
        pilot.workers[int(peer.hello["local_rank"])] = peer
        self._liveness.heard(peer)
        self._policy.began(pilot)
        return True

    def disconnected(self, peer: Peer) -> None:
        """Handles a closed connection: an agent's ends its pilot; a worker's end is reported by its agent."""
        self._liveness.gone(peer)
        self._run.saver.gone(peer)
        self._run.save_requests.gone(peer)
        if peer.hello.get("role") == "agent":
            pilot = self._pilot_named(peer.hello)
            if pilot is not None and pilot.agent is peer:
                pilot.agent = None
                self._probes.gone(pilot)
                asked = pilot.leaving or pilot.revoked or pilot.expiring or pilot.over.is_set()
                if not (asked or pilot.reason or self._run.result.done()):
                    pilot.reason = f"the agent on {pilot.node} went away without a word"
                    self._run.log(pilot.reason)
                pilot.over.set()
                self._pilot_manager.lost(pilot)
            return
        local_rank = int(peer.hello.get("local_rank", -1))
        pilot = self._pilot_named(peer.hello)
        if pilot is not None and pilot.workers.get(local_rank) is peer:
            del pilot.workers[local_rank]
        self._run.distributed.gone(peer, self._workers)

    async def received(self, peer: Peer, message: Message) -> None:
        """Takes one message of an agent or a worker."""
        op = message["op"]
        self._liveness.heard(peer)
        if peer.hello.get("role") == "agent":
            pilot = self._pilot_named(peer.hello)
            if pilot is not None:
                self._from_agent(pilot, message)
        elif op == "step":
            self._from_step(peer, message)
        elif op == "pong":
            pass  # a sign of life
        elif op in ANSWERS:
            self._run.save_requests.received(peer, message)
        elif op == "error":
            self._from_failing(peer, message)
        elif op == "fetch":
            self._policy.asked_for_checkpoint()
            self.transfers.answer(peer)
        elif op in DISTRIBUTED:
            if (pilot := self._pilot_of(peer)) is not None and peer in pilot.workers.values():
                self._run.distributed.received(peer, message)
        elif op == "paused" and self._run.distributed.paused(peer):
            pass  # it is answered once its checkpoint is published
        else:
            self._run.saver.received(peer, message)

    def _saved(self, took_s: float, state_bytes: int) -> None:
        """Notes that a checkpoint was stored."""
        self._run.progress.resize_times.saved(took_s, state_bytes)
        self._run.checkpoint_saved()

    def _from_agent(self, pilot: Pilot, message: Message) -> None:
        op = message["op"]
        if "rc" in message and abs(int(message["rc"])) > _EXIT_CODE_MOST:
            raise ValueError(f"no process ends with {message['rc']}")
        if op == "out":
            if self._policy.printed(pilot, str(message["line"])):
                for one in self._pilot_manager.all:
                    self._works(one)
            # Slurm ends the nodes of a cancelled job one after another; the remaining ones report the loss of the
            # others.
            if not (self._run.cancelled or (pilot.revoked and self._kind.is_noise(message["line"]))):
                self._run.show(f"{pilot.node}: {message['line']}")
        elif op == "beat":
            pass  # a sign of life
        elif op == "looked":
            self._liveness.looked(pilot, message)
        elif op == "node":
            pilot.answers = True
            pilot.workers_per_node = self._run.progress.workers_per_node = int(message["workers_per_node"])
        elif op == "ready":
            self._probes.ready(pilot)
        elif op == "probed":
            self._probes.probed(pilot, message)
        elif op == "leaving":
            self._leaving(pilot, float(message["at_s"]))
        elif op == "memory":
            self._pilot_manager.short_of_memory(pilot)
        elif op == "cannot":
            self._policy.cannot(pilot, str(message["text"]), sure=bool(message.get("sure")))
        elif op == "step":
            self._pilot_manager.spawn(self._run_step(pilot, list(map(str, message["command"]))), pilot)
        elif op == "node_exit":
            if self._policy.node_exited(pilot, int(message["rc"])):
                self._pilot_manager.lost(pilot)
                self._pilot_manager.spawn(self._pilot_manager.give_back(pilot), pilot)
        else:
            self._backend.received(pilot, message)

    async def _run_step(self, pilot: Pilot, command: list[str]) -> None:
        """Runs the step for an agent's node process; the agent learns of its start, but not of its failure."""
        if lines := await self._pilot_manager.run_step(pilot, command):
            self._policy.cannot(pilot, failed(self._run.settings.spec.container or "", lines), sure=True)

    def _ready(self, pilot: Pilot) -> None:
        if self._policy.is_at_fault(pilot):  # it is being given back: its fault does not lie in its Python
            return
        self._policy.ready()
        self._pilot_manager.ready(pilot)

    def _workers(self) -> list[Peer]:
        return [worker for pilot in self._pilot_manager.all for worker in pilot.workers.values()]

    def _leaving(self, pilot: Pilot, at_s: float) -> None:
        """Handles Slurm's notice to the pilot."""
        if self._run.cancelled:  # scancel ends every srun of this job too: no regular job has asked for the node
            pilot.reason = pilot.reason or CANCELLED
        else:
            pilot.reason = pilot.reason or ASKED
            # By this host's clock, as all that the daemon is told: the node's own may be wrong.
            now_s = time.time()
            known_s = self._liveness.known_s(pilot.agent) + BEAT_S if pilot.agent is not None else 0.0
            self._pilot_manager.report_state(pilot, "leaving", at_s=min(max(at_s, now_s - known_s), now_s))
        self._pilot_manager.leave_at_once(pilot)

    def _from_step(self, peer: Peer, message: Message) -> None:
        pilot = self._pilot_of(peer)
        if pilot is None:
            return
        self._liveness.stepped(peer)
        self._run.saver.stepped(peer, int(message["rank"]))
        if message["first"]:
            self._works(pilot)
        for report in self._run.progress.report(message, time.monotonic()):
            self._run.report(report)
        self._policy.stepped(pilot, message)

    def _works(self, pilot: Pilot) -> None:
        if pilot.workers and not pilot.working:
            pilot.working = True
            self._pilot_manager.report_state(pilot, "working")

    def _from_failing(self, worker: Peer, message: Message) -> None:
        """Takes a worker's error; the worker waits for the reply, so that the report of its end comes after."""
        if (pilot := self._pilot_of(worker)) is not None:
            self._policy.script_failed(pilot, str(message.get("text", "")))
        worker.send({"op": "heard"})

    def _pilot_of(self, worker: Peer) -> Pilot | None:
        """Returns the pilot that a worker runs in, if it is one of the present workers there."""
        pilot = self._pilot_named(worker.hello)
        return pilot if pilot is not None and worker.hello.get("incarnation", 0) == pilot.incarnation else None

    def _worker_of(self, about: Message) -> Peer | None:
        """Returns the present worker that another connection claims to belong to; the claim was proved."""
        local_rank, pilot = about.get("local_rank"), self._pilot_named(about)
        worker = pilot.workers.get(local_rank) if pilot is not None and isinstance(local_rank, int) else None
        same = worker is not None and all(worker.hello.get(key) == about.get(key) for key in ("incarnation", "pid"))
        return worker if same else None

    def _pilot_named(self, hello: Message) -> Pilot | None:
        """Returns the pilot of the lease that a hello names."""
        return self._pilot_manager.pilots.get(str(hello.get("lease")))
