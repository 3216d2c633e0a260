"""Liveness of agents (every beat) and workers (every ping): a peer silent for too long is examined or given up.

Silence counts only while this process ran itself: a driver that was stopped has heard from nobody, and would take all
nodes for lost at once.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic.base.timing import BEAT_LATE_S, BEAT_S, BUSY_TIMES, DRIVER_LOST_S, KILLED_S, PING_S
from elastic.driver.context import TrainerContext
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.pilots.manager import PilotManager
from elastic.link.peer import Peer
from elastic.link.wire import Message


class Liveness:
    """The signs of life of agents and workers, and the response to silence; call `beat` and `ping` periodically."""

    def __init__(self, run: TrainerContext, pilot_manager: PilotManager, clock: Callable[[], float]) -> None:
        """`clock` is monotonic."""
        self._run = run
        self._pilot_manager = pilot_manager
        self._clock = clock
        self._looked_s = clock()
        self._time_s = 0.0
        self._heard: dict[Peer, float] = {}
        self._signs: dict[Peer, tuple[float, float]] = {}
        """By the clock, the last two signs of life."""

        self._stepped: set[Peer] = set()
        self._killed: dict[Peer, float] = {}
        self._busy: set[Peer] = set()

    def heard(self, peer: Peer) -> None:
        """Notes a sign of life."""
        self._heard[peer] = self._time_s
        now_s = self._clock()
        self._signs[peer] = self._signs.get(peer, (now_s, now_s))[1], now_s
        self._busy.discard(peer)

    def stepped(self, worker: Peer) -> None:
        """Notes that a worker has ended a step: it no longer imports and reads its data."""
        self._stepped.add(worker)

    def gone(self, peer: Peer) -> None:
        """Forgets a connection that has ended."""
        self._heard.pop(peer, None)
        self._signs.pop(peer, None)
        self._killed.pop(peer, None)
        self._stepped.discard(peer)
        self._busy.discard(peer)

    def silence_s(self, peer: Peer) -> float:
        """Returns how long a peer has been silent while this process ran; 0 for one that is not connected."""
        return self._time_s - self._heard.get(peer, self._time_s)

    def known_s(self, peer: Peer) -> float:
        """Returns how long ago the sign of life before the last one came, 0 for a peer that is not connected."""
        now_s = self._clock()
        return now_s - self._signs.get(peer, (now_s, now_s))[0]

    def beat(self) -> None:
        """Advances the time, sends each agent a beat, and gives up nodes whose agents answered none for too long."""
        now_s = self._clock()
        self._time_s += min(now_s - self._looked_s, BEAT_S + BEAT_LATE_S)
        self._looked_s = now_s
        for pilot in self._pilot_manager.all:
            pilot.send({"op": "beat"})
            # Until its node process is up an agent may wait for a file system, and a late one is given back anyway.
            if pilot.agent is not None and pilot.answers and self.silence_s(pilot.agent) > DRIVER_LOST_S:
                self._pilot_manager.abandon(pilot, f"{pilot.node} has not answered for {DRIVER_LOST_S:g} s")

    def ping(self) -> None:
        """Pings each worker, has its agent look at a silent one, and gives up a node on which it stays silent."""
        for pilot in self._pilot_manager.all:
            for worker in list(pilot.workers.values()):
                self._examine(pilot, worker)
            pilot.send_to_workers({"op": "ping"})

    def looked(self, pilot: Pilot, message: Message) -> None:
        """Takes an agent's report on a silent worker."""
        worker = next((peer for peer in pilot.workers.values() if peer.hello.get("pid") == message["pid"]), None)
        text = f"a worker on {pilot.node} has not answered for {float(message['silent_s']):.0f} s"
        if message["verdict"] == "killed":
            self._run.log(f"{text}: {message['why']}; it is ended")
            if worker is not None:
                self._killed[worker] = self._time_s
        elif worker is not None and worker not in self._busy:
            self._busy.add(worker)
            most_s = BUSY_TIMES * self._run.settings.spec.frozen_after_s
            self._run.log(f"{text}, but {message['why']}; it may be so for {most_s:.0f} s (frozen= in --elastic)")

    def _examine(self, pilot: Pilot, worker: Peer) -> None:
        silent_s = self.silence_s(worker)
        if worker in self._killed:
            if self._time_s - self._killed[worker] > KILLED_S:
                self._pilot_manager.abandon(pilot, f"a worker on {pilot.node} does not end though it was killed")
        elif silent_s > BUSY_TIMES * self._run.settings.spec.frozen_after_s + KILLED_S:
            self._pilot_manager.abandon(pilot, f"a worker on {pilot.node} has not answered for {silent_s:.0f} s")
        elif silent_s > 2 * PING_S:
            stepped = worker in self._stepped
            pilot.send({"op": "look", "pid": worker.hello.get("pid", 0), "silent_s": silent_s, "stepped": stepped})
