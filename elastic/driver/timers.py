"""A trainer's periodic work: beats, pings, asking for a checkpoint now and then, and pilots near their time limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.backends import Kind
from elastic.base.timing import (
    BEAT_S,
    EXPIRE_APART_S,
    LIMIT_MARGIN_S,
    PING_S,
    SAVE_LOOK_S,
    SAVE_REQUEST_S,
    UPLOAD_EVERY_S,
)
from elastic.driver.context import TrainerContext
from elastic.driver.failures.liveness import Liveness
from elastic.driver.pilots.manager import PilotManager
from elastic.driver.saving.interval import Saves

_PARTS = 4
"""Pilots that end together leave in this many parts: each costs a resize or two, and torchrun restarts all workers."""

_SHARE_OF_LIFE = 1 / 16
"""A pilot leaves earlier by at most this share of its limit for each part."""


class Clockwork:
    """The trainer's endless coroutines; `clock` is monotonic."""

    def __init__(
        self,
        run: TrainerContext,
        kind: Kind,
        pilot_manager: PilotManager,
        liveness: Liveness,
        clock: Callable[[], float],
    ) -> None:
        self._run = run
        self._kind = kind
        self._pilot_manager = pilot_manager
        self._liveness = liveness
        self._clock = clock
        self._limits = PilotLimits(lambda nodes: run.settings.sizes.largest(nodes) > 0)

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
            saves.look(
                self._clock(), bool(workers), progress.groups, progress.losses, progress.resize_times.save_s or 0.0
            )
            if saves.due:
                requests = self._run.save_requests
                if await requests.make(workers, pause=False, limit_s=SAVE_REQUEST_S, worth=saves.worth):
                    saves.asked(self._clock())
                else:
                    wait_s = UPLOAD_EVERY_S
            if (line := saves.line()) is not None:
                self._run.note(line)


@dataclass(frozen=True)
class TrainingPilot:
    """A pilot that trains: it has to leave at `end_s` of some clock, and was asked for `limit_s`."""

    end_s: float
    limit_s: float


class PilotLimits:
    """The times at which pilots leave before their limits end them: never all at once, if the trainer can go on.

    `may_shrink_to` says whether it can go on with that many nodes.
    """

    def __init__(self, may_shrink_to: Callable[[int], bool]) -> None:
        self._may_shrink_to = may_shrink_to
        self._left_s = -math.inf

    def due(self, members: Sequence[TrainingPilot], now_s: float) -> list[int]:
        """Returns the positions in `members` of those that leave now, in the order of their ends."""
        order = sorted(range(len(members)), key=lambda position: members[position].end_s)
        over = [position for position in order if members[position].end_s <= now_s]
        early = 0
        together = max(1, len(members) // _PARTS)
        for count, position in enumerate(order, start=1):
            last = members[position]
            apart_s = min(EXPIRE_APART_S, last.limit_s * _SHARE_OF_LIFE)
            # the number of chances for nodes to leave: now, after apart_s, and so on until this one has to
            turns = 1 + math.ceil((last.end_s - now_s) / apart_s)
            if 1 < turns <= min(_PARTS, math.ceil(count / together)) and now_s - self._left_s >= apart_s:
                early = max(early, math.ceil((count - together) / (turns - 1)))
        if len(over) < early and self._may_shrink_to(len(members) - early):
            self._left_s = now_s
            return order[:early]
        return over
