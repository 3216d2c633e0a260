"""What a trainer does by the clock: beats for its agents, pings for its workers, and the state fetched now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from elastic.backends import Kind
from elastic.driver.crew import Crew
from elastic.driver.run import Run
from elastic.link.peer import Peer
from elastic.timing import AGREE_S, BEAT_S, FROZEN_S, LIMIT_MARGIN_S, PING_S, SHIP_EVERY_S


class Clockwork:
    """Coroutines that go on for ever; `silence_s` tells how long a worker has not answered."""

    def __init__(self, run: Run, kind: Kind, crew: Crew, silence_s: Callable[[Peer], float]) -> None:
        self._run = run
        self._kind = kind
        self._crew = crew
        self._silence_s = silence_s

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """What to run, each for ever."""
        works = [self._beat(), self._ping()]
        if self._kind.ships_in_background:
            works.append(self._ship())
        if self._kind.saves_together:
            works.append(self._save())
        return works

    async def _beat(self) -> None:
        while True:
            now = time.time()
            for pilot in self._crew.all:
                pilot.tell({"op": "beat"})
                if pilot.placed_s and not pilot.expiring and now > pilot.placed_s + pilot.limit_s - LIMIT_MARGIN_S:
                    pilot.expiring, pilot.reason = True, "its time limit is over"
                    self._run.wake()
            await asyncio.sleep(BEAT_S)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            for pilot in self._crew.all:
                frozen = [peer for peer in pilot.workers.values() if self._silence_s(peer) > FROZEN_S]
                if frozen:
                    self._run.log(f"a worker on {pilot.node} does not answer; it is ended")
                    pilot.tell({"op": "kill", "host": str(frozen[0].hello["host"])})
                pilot.tell_workers({"op": "ping"})

    async def _ship(self) -> None:
        """Has one worker send its last state, for a back-end whose commits stay in the workers' memory."""
        while True:
            await asyncio.sleep(SHIP_EVERY_S)
            for pilot in self._crew.all:
                if pilot.working and pilot.workers:
                    next(iter(pilot.workers.values())).send({"op": "ship"})
                    break

    async def _save(self) -> None:
        """Has all workers save at one step, for scripts that leave it to bftd when."""
        while True:
            await asyncio.sleep(SHIP_EVERY_S)
            workers = [peer for pilot in self._crew.all if pilot.working for peer in pilot.workers.values()]
            if workers:
                await self._run.agreement.agree(workers, pause=False, limit_s=AGREE_S)
