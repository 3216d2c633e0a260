"""Collection of the workers' last checkpoint: from a step boundary if there is time, else as it was last saved."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import MutableMapping, Sequence
from weakref import ReferenceType, WeakKeyDictionary, ref

from elastic.base.timing import CHECKPOINT_QUIET_S, PAUSE_S, STORE_RETRY_S, UPLOAD_S
from elastic.link.peer import Peer
from elastic.link.wire import Message
from elastic.store.store import CheckpointStore, Content, NotStoredError

_GONE, _UNSAVED = "gone", "unsaved"


class CheckpointSaver:
    """The collector of workers' checkpoints; any worker's will do, the highest step is kept.

    One worker is asked, rank 0 if it is known; the next one only if that one's checkpoint does not grow or is not
    there.
    """

    def __init__(self, store: CheckpointStore, *, retry_s: float = STORE_RETRY_S) -> None:
        """`retry_s`: the time after which a checkpoint that could not be stored is asked for again."""
        self.store = store
        self._retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None
        # A large trainer has thousands of workers over its life: those that are gone and no longer asked are forgotten.
        self._answers: MutableMapping[Peer, str] = WeakKeyDictionary()
        self._grown_s: MutableMapping[Peer, float] = WeakKeyDictionary()
        self._told_bytes: MutableMapping[Peer, int] = WeakKeyDictionary()
        self._last_grown_s = -CHECKPOINT_QUIET_S
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
        upload_s: float = UPLOAD_S,
    ) -> None:
        """Returns when a checkpoint is in the store, or when no worker has delivered one in time.

        `graceful` lets rank 0 reach the end of a step and save there; it then waits to be ended. `asked`: the workers
        have agreed on the step already. `patient`: a growing checkpoint is waited for however long it takes. The wait
        also ends when the uploading worker ends, so a caller that needs that worker's node need not ask. Without
        `patient`, `upload_s` is the time for all of them.
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
            turns, upload_s = [ranked[:1], ranked[1:]], upload_s / 2  # no time to ask one by one
        for asked_now in turns:
            self._ask(asked_now, "ship")
            # If the disk refuses one worker's checkpoint, it refuses the next one's.
            if await self._answered(asked_now, {"shipped", _UNSAVED}, upload_s, patient):
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
        """Receives a worker's checkpoint; returns whether it is stored. Raises WireError when it is cut short.

        After a checkpoint marked `last` that worker has no newer one, as far as it was asked for.
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
        """Notes that more of this worker's checkpoint has arrived, or was written at its destination."""
        self._grown_s[worker] = self._last_grown_s = time.monotonic()

    @property
    def growing(self) -> bool:
        """Whether a checkpoint has grown a moment ago, or the end of a step is awaited to save one."""
        now_s = time.monotonic()
        return now_s < self._pausing_until_s or now_s - self._last_grown_s < CHECKPOINT_QUIET_S

    def stepped(self, worker: Peer, rank: int) -> None:
        """Notes which worker is rank 0: it has the newest checkpoint, and with some back-ends the only one."""
        if rank == 0:
            self._first = ref(worker)

    def note(self, worker: Peer, answer: str) -> None:
        """Notes a worker's answer: `paused`, `shipped`, or that there is no checkpoint."""
        self._answers[worker] = answer
        self._news.set()

    def gone(self, worker: Peer) -> None:
        """Notes that this worker will not answer."""
        self.note(worker, _GONE)

    def _ask(self, workers: Sequence[Peer], op: str) -> None:
        for worker in workers:
            if self._answers.get(worker) != _GONE:
                self._answers.pop(worker, None)
                worker.send({"op": op})

    def _ask_again(self, worker: Peer) -> None:
        """Asks one worker again after a while: otherwise the work of a script that seldom saves would be lost."""
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
            if _GONE in answers:  # the others may wait for it in their step: only a short step's time is left
                timeout_s = min(timeout_s, PAUSE_S)
            until_s = began_s + timeout_s
            grown_s = max((self._grown_s.get(worker, 0.0) for worker in workers), default=0.0)
            if patient and grown_s >= began_s:
                until_s = max(until_s, grown_s + CHECKPOINT_QUIET_S)
            left_s = until_s - time.monotonic()
            if answers <= {_GONE, "nothing_saved"} or left_s <= 0:
                return False
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left_s)
