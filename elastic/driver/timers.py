"""A trainer's periodic work: beats for its agents, pings for its workers, and asking for a checkpoint now and then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from elastic.backends import Kind
from elastic.base.timing import BEAT_S, LIMIT_MARGIN_S, PING_S, SAVE_LOOK_S, SAVE_REQUEST_S, UPLOAD_EVERY_S
from elastic.driver.context import TrainerContext
from elastic.driver.failures.liveness import Liveness
from elastic.driver.pilots.manager import PilotManager
from elastic.driver.pilots.time_limits import PilotLimits, TrainingPilot
from elastic.driver.saving.interval import Saves


class Clockwork:
    """The trainer's endless coroutines; `clock` is monotonic."""

    def __init__(
        self,
        run: TrainerContext,
        kind: Kind,
        pilot_manager: PilotManager,
        liveness: Liveness,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._kind = kind
        self._pilot_manager = pilot_manager
        self._liveness = liveness
        self._clock = clock
        self._limits = PilotLimits(lambda nodes: run.settings.spec.allowed.largest(nodes) > 0)

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the coroutines to run; none of them ends."""
        works = [self._beat(), self._ping()]
        # Workers write distributed checkpoints by themselves, at their own pace: large ones must not be written all the
        # time.
        if self._kind.uploads_in_background and self._run.settings.spec.state_path is None:
            works.append(self._upload())
        if self._kind.saves_together:
            works.append(self._save())
        return works

    async def _beat(self) -> None:
        while True:
            self._liveness.beat()
            self._expire(self._clock())
            await asyncio.sleep(BEAT_S)

    def _expire(self, now_s: float) -> None:
        """Makes pilots leave in turn as their time limits approach."""
        pilots = [pilot for pilot in self._pilot_manager.all if pilot.placed_s and not pilot.expiring]
        # A pilot that does not train holds nobody up: it stays until its own limit.
        trained = [pilot for pilot in pilots if pilot.wanted]
        ends = [TrainingPilot(pilot.placed_s + pilot.limit_s - LIMIT_MARGIN_S, pilot.limit_s) for pilot in trained]
        due = [trained[position] for position in self._limits.due(ends, now_s)]
        due += [p for p in pilots if not p.wanted and now_s > p.placed_s + p.limit_s - LIMIT_MARGIN_S]
        for pilot in due:
            pilot.expiring, pilot.reason = True, pilot.reason or "its time limit is over"
            self._run.wake()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            self._liveness.ping()

    async def _upload(self) -> None:
        """Has one worker upload its last checkpoint, for a back-end whose commits stay in the workers' memory.

        At most so often that it takes a small share of a core: nobody waits for it.
        """
        while True:
            await asyncio.sleep(UPLOAD_EVERY_S)
            for pilot in self._pilot_manager.all:
                if pilot.working and pilot.workers:
                    next(iter(pilot.workers.values())).send({"op": "ship", "soon": True})
                    break

    async def _save(self) -> None:
        """Has all workers save at one step, if the script leaves the time to bftd: as often as it is worth it."""
        progress, saves = self._run.progress, Saves(self._run.settings.spec.save_share)
        wait_s = SAVE_LOOK_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = SAVE_LOOK_S
            workers = [peer for pilot in self._pilot_manager.all if pilot.working for peer in pilot.workers.values()]
            saves.look(self._clock(), bool(workers), progress.groups, progress.losses, progress.costs.save_s or 0.0)
            if saves.due:
                requests = self._run.save_requests
                if await requests.make(workers, pause=False, limit_s=SAVE_REQUEST_S, worth=saves.worth):
                    saves.asked(self._clock())
                else:
                    wait_s = UPLOAD_EVERY_S
            if (line := saves.line()) is not None:
                self._run.note(line)
