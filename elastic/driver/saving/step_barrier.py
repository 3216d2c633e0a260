"""The driver's side of elastic.link.step_barrier: finding a step at whose end all workers of a group save."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from elastic.link.peer import Peer
from elastic.link.wire import Message

_TRIP_S = 0.1
"""The step is chosen this far ahead, at the pace of the fastest worker; doubled after each attempt that is late."""


class SaveRequests:
    """Requests to all workers of a group to save at the end of the same step, one at a time."""

    def __init__(self) -> None:
        self._answers: dict[Peer, Message] = {}
        self._asked: set[Peer] = set()
        self._gone = False
        self._number = 0
        self._expected = 0
        self._news = asyncio.Event()
        self._one = asyncio.Lock()

    def received(self, worker: Peer, message: Message) -> None:
        """Takes a worker's answer and ignores a late answer to an earlier question."""
        if worker in self._asked and message.get("number", 0) == self._expected:
            self._answers[worker] = message
            self._news.set()

    def gone(self, worker: Peer) -> None:
        """Notes that this worker will not answer."""
        if worker in self._asked:
            self._gone = True
            self._news.set()

    async def make(
        self,
        workers: Sequence[Peer],
        *,
        pause: bool,
        limit_s: float,
        worth: Callable[[float], bool] = lambda save_s: True,
    ) -> bool:
        """Whether all workers will save at the end of the same step; with `pause` they stop there.

        False when a worker does not answer in time or is lost, or when none has counted a step: then none saves.
        Without `pause`, also False when `workers` are not their whole group, when the script itself decides when to
        save, while any worker is still saving or about to save, and when `worth` says no to the cost of the last save
        for the slowest worker, in seconds (0 if none was measured). `workers` may be empty: a group may be stopped
        before the first of its workers is connected.
        """
        if not workers:
            return False
        async with self._one:
            self._asked, self._gone = set(workers), False
            try:
                return await asyncio.wait_for(self._make(workers, pause, worth), limit_s)
            except asyncio.TimeoutError:
                return False
            finally:
                self._asked = set()

    async def _make(self, workers: Sequence[Peer], pause: bool, worth: Callable[[float], bool]) -> bool:
        trip_s = _TRIP_S
        while True:
            if not await self._ask(workers, {"op": "where"}):
                return False
            found = [self._answers[worker] for worker in workers]
            furthest = max(int(answer["step"]) for answer in found)
            if not furthest:
                return False
            if not pause:
                # Those that have not ended the group's first step yet would not save: the others' save would hang.
                if any(int(answer.get("size", len(found))) != len(found) for answer in found):
                    return False
                # A worker that is still saving would start another save at once, and the others would wait for it.
                if not any(answer["by_clock"] for answer in found) or any(answer.get("busy") for answer in found):
                    return False
                if not worth(max(float(answer.get("save_s", 0.0)) for answer in found)):
                    return False
            paces_s = [float(answer["step_s"]) for answer in found if float(answer["step_s"]) > 0]
            step = furthest + 1 + (int(trip_s / min(paces_s)) if paces_s else 0)
            self._number += 1
            op, request = "withdraw_save", {"step": step, "number": self._number, "pause": pause}
            try:
                if not await self._ask(workers, {"op": "request_save", **request}):
                    return False
                if all(answer["op"] == "accepted" for answer in self._answers.values()):
                    op = "confirm_save"
                    return True
            finally:
                # Sent also when the attempt fails: a worker that ends that step waits there until it gets this message.
                for worker in workers:
                    worker.send({"op": op, **request})
            trip_s *= 2

    async def _ask(self, workers: Sequence[Peer], question: Message) -> bool:
        """Whether all workers have answered; False as soon as one is gone."""
        self._answers.clear()
        self._expected = int(question.get("number", 0))
        for worker in workers:
            worker.send(question)
        while len(self._answers) < len(workers):
            if self._gone:
                return False
            self._news.clear()
            await self._news.wait()
        return True
