"""Bringing the workers' last state into the store: at a step boundary when there is time, else as it was saved last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import MutableMapping, Sequence
from weakref import ReferenceType, WeakKeyDictionary, ref

from elastic.driver.state.store import CheckpointStore, Content, NotStoredError
from elastic.link.peer import Peer
from elastic.link.wire import Message
from elastic.timing import PAUSE_S, SHIP_S, STATE_QUIET_S, STORE_RETRY_S

_GONE, _UNSAVED = "gone", "unsaved"


class StateSaver:
    """Asks workers for their state and waits for it; any worker's will do, the highest step is kept.

    One is asked, rank 0 where it is known, and the next one only when that one's state does not grow or is not there.
    """

    def __init__(self, store: CheckpointStore, *, retry_s: float = STORE_RETRY_S) -> None:
        """`retry_s`: after how long a state that could not be stored is asked for again."""
        self.store = store
        self._retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None
        # A large trainer has thousands of workers over its life: who is gone and asked by nobody is forgotten.
        self._answers: MutableMapping[Peer, str] = WeakKeyDictionary()
        self._grown_s: MutableMapping[Peer, float] = WeakKeyDictionary()
        self._told_bytes: MutableMapping[Peer, int] = WeakKeyDictionary()
        self._first: ReferenceType[Peer] | None = None
        self._news = asyncio.Event()
        self._pausing_until_s = 0.0

    async def save(
        self,
        workers: Sequence[Peer],
        *,
        graceful: bool,
        asked: bool = False,
        patient: bool = True,
        pause_s: float = PAUSE_S,
        ship_s: float = SHIP_S,
    ) -> None:
        """Returns when the state is in the store, or when nobody has delivered one in time.

        `graceful` lets rank 0 come to the end of a step and save there; it then waits to be ended. `asked`: the workers
        have agreed on the step already. `patient`: a state that grows is waited for however long it takes; it ends as
        well when its worker does, so who needs that worker's node need not ask. Else `ship_s` is for all of them.
        """
        if graceful:
            if not asked:
                self._ask(workers, "pause")
            self._pausing_until_s = time.monotonic() + pause_s
            try:
                if await self._answered(workers, {"paused"}, pause_s, patient):
                    return
            finally:
                self._pausing_until_s = 0.0
        first = self._first() if self._first is not None else None
        ranked = sorted(workers, key=lambda one: one is not first)
        turns = [[worker] for worker in ranked]
        if not patient and len(ranked) > 1:
            turns, ship_s = [ranked[:1], ranked[1:]], ship_s / 2  # who waits for the node waits for no row of workers
        for asked_now in turns:
            self._ask(asked_now, "ship")
            # What the disk refuses from one worker it refuses from the next.
            if await self._answered(asked_now, {"shipped", _UNSAVED}, ship_s, patient):
                return

    def received(self, worker: Peer, message: Message) -> None:
        """Takes a worker's answer."""
        op = message["op"]
        if op == "saving":
            size_bytes = int(message["bytes"])
            if size_bytes != self._told_bytes.get(worker) or message.get("flushing") is True:
                self._told_bytes[worker] = size_bytes
                self.grew(worker)
        else:
            self.note(worker, op)

    async def take(self, worker: Peer, message: Message, content: Content) -> bool:
        """Takes a worker's state as it comes; returns whether it is stored. Raises WireError when it is cut short.

        Of a `last` one that worker has none that is newer, as far as anybody asked.
        """
        step = int(message["step"])
        try:
            await self.store.receive(content, step, int(message["samples"]))
        except NotStoredError as error:
            worker.send({"op": "unsaved", "step": step})
            if error.again:
                self._ask_again(worker)
            self.note(worker, _UNSAVED)
            return False
        if message.get("last") is True:
            self.note(worker, "shipped")
        return True

    def grew(self, worker: Peer) -> None:
        """More of this worker's state has come, or was written where it goes."""
        self._grown_s[worker] = time.monotonic()

    @property
    def growing(self) -> bool:
        """Whether anybody's state has grown a moment ago, or the end of a step is waited for to save one."""
        if time.monotonic() < self._pausing_until_s:
            return True
        return time.monotonic() - max(self._grown_s.values(), default=-STATE_QUIET_S) < STATE_QUIET_S

    def stepped(self, worker: Peer, rank: int) -> None:
        """Notes which worker is rank 0: it has the newest state, and of some back-ends the only one."""
        if rank == 0:
            self._first = ref(worker)

    def note(self, worker: Peer, answer: str) -> None:
        """Takes an answer for this worker's: `paused`, `shipped`, or that there is none."""
        self._answers[worker] = answer
        self._news.set()

    def gone(self, worker: Peer) -> None:
        """No answer will come from this worker."""
        self.note(worker, _GONE)

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

    async def _answered(self, workers: Sequence[Peer], wanted: set[str], timeout_s: float, patient: bool) -> bool:
        """Whether one of the workers gives a wanted answer in time; ends early when none can any more."""
        began_s = time.monotonic()
        while True:
            answers = {self._answers.get(worker) for worker in workers}
            if answers & wanted:
                return True
            if _GONE in answers:  # the others may wait for it in their step: no more than a short one's time is left
                timeout_s = min(timeout_s, PAUSE_S)
            until_s = began_s + timeout_s
            grown_s = max((self._grown_s.get(worker, 0.0) for worker in workers), default=0.0)
            if patient and grown_s >= began_s:
                until_s = max(until_s, grown_s + STATE_QUIET_S)
            left_s = until_s - time.monotonic()
            if answers <= {_GONE, "nothing_saved"} or left_s <= 0:
                return False
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left_s)
