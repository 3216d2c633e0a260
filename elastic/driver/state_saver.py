"""Bringing the workers' last state into the store: at a step boundary when there is time, else as it was saved last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping, Sequence
from weakref import WeakKeyDictionary

from elastic.driver.state.store import CheckpointStore, NotStoredError
from elastic.link.peer import Peer
from elastic.link.wire import Message, Payload
from elastic.timing import PAUSE_S, SHIP_S, STORE_RETRY_S

_GONE, _UNSAVED = "gone", "unsaved"


class StateSaver:
    """Asks workers for their state and waits for it; any worker's will do, the highest step is kept."""

    def __init__(self, store: CheckpointStore, *, retry_s: float = STORE_RETRY_S) -> None:
        """`retry_s`: after how long a state that could not be stored is asked for again."""
        self.store = store
        self._retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None
        # A large trainer has thousands of workers over its life: who is gone and asked by nobody is forgotten.
        self._answers: MutableMapping[Peer, str] = WeakKeyDictionary()
        self._news = asyncio.Event()

    async def save(
        self,
        workers: Sequence[Peer],
        *,
        graceful: bool,
        asked: bool = False,
        pause_s: float = PAUSE_S,
        ship_s: float = SHIP_S,
    ) -> None:
        """Returns when the state is in the store, or when nobody has delivered one in time.

        `graceful` lets rank 0 come to the end of a step and save there; it then waits to be ended. `asked`: the workers
        have agreed on the step already.
        """
        if graceful:
            if not asked:
                self._ask(workers, "pause")
            if await self._answered(workers, {"paused"}, pause_s):
                return
        for worker in workers:
            self._ask([worker], "ship")
            # What the disk refuses from one worker it refuses from the next.
            if await self._answered([worker], {"shipped", _UNSAVED}, ship_s):
                return

    async def received(self, worker: Peer, message: Message, reader: Payload) -> None:
        """Takes a worker's answer; a state's payload is read from `reader`."""
        op = message["op"]
        if op == "state":
            step = int(message["step"])
            try:
                await self.store.receive(reader, int(message["bytes"]), step, int(message["samples"]))
                op = "shipped"
            except NotStoredError as error:
                op = _UNSAVED
                worker.send({"op": "unsaved", "step": step})
                if error.again:
                    self._ask_again(worker)
        self.note(worker, op)

    async def fetched(self, worker: Peer) -> None:
        """Sends the state to a worker that begins with it."""
        await self.store.send(worker)

    def gone(self, worker: Peer) -> None:
        """No answer will come from this worker."""
        self.note(worker, _GONE)

    def note(self, worker: Peer, answer: str) -> None:
        """Takes what a worker has answered, or what has become of its answer."""
        self._answers[worker] = answer
        self._news.set()

    def _ask(self, workers: Sequence[Peer], op: str) -> None:
        for worker in workers:
            if self._answers.get(worker) != _GONE:
                self._answers.pop(worker, None)
                worker.send({"op": op})

    def _ask_again(self, worker: Peer) -> None:
        """Asks one worker once more after a while: else what a script that saves seldom has done would be lost."""
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(self._retry_s, self._ask, [worker], "ship")

    async def _answered(self, workers: Sequence[Peer], wanted: set[str], timeout_s: float) -> bool:
        """Whether one of the workers gives a wanted answer in time; ends early when none can any more."""
        deadline = time.monotonic() + timeout_s
        while True:
            answers = {self._answers.get(worker) for worker in workers}
            if answers & wanted:
                return True
            left = deadline - time.monotonic()
            if answers <= {_GONE, "nothing_saved"} or left <= 0:
                return False
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except asyncio.TimeoutError:
                return False
