"""Uploads of a worker's checkpoints to the driver: only the newest counts, and neither training nor the link waits.

One thread serializes and sends, on a connection of its own. At most two checkpoints are held: the one being uploaded
and the newest; a checkpoint between the two is released. Locks on shared data are held for moments only, never while a
checkpoint is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, cast

from elastic.base.errors import WireError
from elastic.base.timing import PUBLISH_APART_S, SAVING_S, UPLOAD_APART_S, UPLOAD_SHARE
from elastic.link.bulk import UPLOAD, PieceWriter
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message

_PAUSES_S = (0.1, 0.4, 1.0)
"""Before the next try, if a connection broke or the driver rejected it; the last one is repeated."""

_LOOK_S = 1.0
"""A thread that waits for a checkpoint to arrive checks this often whether the link still exists."""

_NICE = 10
"""A tenth of the share of other threads if they want all of a core, and all that they leave. It is never close to
nothing: a thread that is not scheduled while it holds the interpreter's lock stops its process."""


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint: the step it was saved at, the samples seen until then, and how to write it into a file.

    `write` may be called by any thread, more than once, and needs no seekable file; `release` is called once, when the
    checkpoint will not be written any more.

    A checkpoint with `publish` is a distributed one: the uploading thread calls `publish` with a function that tells
    whether the link is gone, and it returns whether the checkpoint is on a shared file system and counts.

    That thread calls `first`, once or more, before the driver hears of the checkpoint: it writes the content that
    this only refers to, and returns what to tell the driver about it. `kept` is called once the driver has the
    checkpoint and nothing waits for it.
    """

    step: int
    samples: int
    write: Callable[[BinaryIO], None]
    release: Callable[[], None] = lambda: None
    publish: Callable[[Callable[[], bool]], bool] | None = None
    first: Callable[[], Message] = dict
    kept: Callable[[], None] = lambda: None


class Uploader:
    """The uploads of the newest checkpoint, on request; every call but `upload` returns at once."""

    def __init__(
        self,
        tell: Callable[[Message], bool],
        connect: Callable[[Message], BlockingChannel],
        lost: Callable[[], bool],
        complain: Callable[[str], None],
    ) -> None:
        """`tell` sends a message to the driver on the worker's link; `lost` returns whether that link is gone.

        `connect` opens a connection for the checkpoint that it is told, or raises OSError or WireError; `complain`
        prints a line for the user.
        """
        self._tell = tell
        self._connect = connect
        self._lost = lost
        self._complain = complain
        self._news = threading.Condition()
        self._newest: PendingCheckpoint | None = None
        self._number = 0  # of the newest; a script may save twice at one step, with more in the second checkpoint
        self._arrived = 0
        self._refused = 0
        self._uploading: PendingCheckpoint | None = None
        self._uploading_number = 0
        self._soon = False
        self._asked_by_driver = False
        self._asks = self._answered = 0
        self._next_s = self._again_s = 0.0
        self._failures = 0
        self._thread: threading.Thread | None = None

    @property
    def newest(self) -> PendingCheckpoint | None:
        """The checkpoint that would be sent now."""
        return self._newest

    @property
    def arrived(self) -> bool:
        """Whether the driver has the newest checkpoint, as far as is known here."""
        return self._arrived == self._number

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is being uploaded or about to."""
        with self._news:
            return self._soon or self._uploading is not None or self._asks > self._answered

    def commit(self, pending: PendingCheckpoint) -> None:
        """Make `pending` the newest; the previous one is released, at once unless it is being uploaded."""
        with self._news:
            before, self._newest = self._newest, pending
            self._number += 1
            free = before is not None and before is not pending and before is not self._uploading
        if before is not None and free:
            before.release()

    def upload_soon(self) -> None:
        """Have the newest sent in the background, rarely enough to cost only a small share of a core."""
        with self._news:
            self._soon = True
            self._wake()

    def ask(self) -> None:
        """Have the newest sent now, and tell the driver if there is none or it has it already."""
        with self._news:
            self._asked_by_driver = True
            self._asks += 1
            self._wake()

    def upload(self) -> None:
        """Have the newest sent now; returns when the driver has it, cannot keep it, or is gone."""
        with self._news:
            if self._newest is None:
                return
            self._asks += 1
            mine = self._asks
            self._wake()
            while self._answered < mine and not self._lost():
                self._news.wait(_LOOK_S)

    def refused(self) -> None:
        """Note that the driver could not keep what it was sent; it asks again when it can."""
        with self._news:
            self._refused = self._uploading_number or self._number
            if self._arrived == self._refused:
                self._arrived = 0
            self._answered = self._asks
            self._news.notify_all()

    def stop(self) -> None:
        """End all waits: the link is gone."""
        with self._news:
            self._news.notify_all()

    # -- the thread ---

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bft-upload", daemon=True)
            self._thread.start()
        self._news.notify_all()

    def _run(self) -> None:
        _yield_to_others()
        while not self._lost():
            with self._news:
                while (wait_s := self._wait_s(time.monotonic())) != 0:
                    self._news.wait(wait_s)
                    if self._lost():
                        return
                asks, by_driver, self._asked_by_driver, self._soon = self._asks, self._asked_by_driver, False, False
                number, pending = self._number, self._newest
                uploads = number != self._arrived
                if uploads:
                    self._uploading, self._uploading_number = pending, number
            answered = self._serve(pending, number, asks, by_driver)
            with self._news:
                self._uploading, self._uploading_number = None, 0
                # A checkpoint that was not uploaded was released when a newer one replaced it.
                free = uploads and pending is not self._newest
                kept = uploads and number == self._arrived
                if answered:
                    self._answered = max(self._answered, asks)
                self._asked_by_driver |= by_driver and not answered
                self._news.notify_all()
            if pending is not None and kept:
                pending.kept()
            if pending is not None and free:
                pending.release()

    def _wait_s(self, now_s: float) -> float | None:
        """Return how long there is nothing to do; None: until woken."""
        if self._asks > self._answered:
            return max(0.0, self._again_s - now_s)
        if self._soon and self._number not in (0, self._arrived, self._refused):
            return max(0.0, max(self._next_s, self._again_s) - now_s)
        return None

    def _serve(self, pending: PendingCheckpoint | None, number: int, asks: int, by_driver: bool) -> bool:
        """Upload a checkpoint if need be; returns whether the requests have an answer."""
        if pending is None or number == self._arrived:
            if by_driver:
                self._tell({"op": "nothing_saved"} if pending is None else {"op": "shipped", "step": pending.step})
            return True
        began_s, cpu_s = time.monotonic(), time.thread_time()
        outcome = self._send(pending, last=asks > self._answered)
        cost_s = time.thread_time() - cpu_s
        with self._news:
            apart_s = UPLOAD_APART_S if pending.publish is None else PUBLISH_APART_S
            self._next_s = began_s + max(apart_s, cost_s / UPLOAD_SHARE)
            if outcome == "broken":
                pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
                self._failures, self._again_s, self._soon = self._failures + 1, time.monotonic() + pause_s, True
                return False
            self._failures, self._again_s = 0, 0.0
            if outcome == "kept":
                self._arrived = number
            else:
                self._refused = number
        if outcome == "odd" and by_driver:
            self._tell({"op": "nothing_saved"})
        elif by_driver and pending.publish is not None:  # of an upload the driver knows without a message
            self._tell({"op": "shipped", "step": pending.step})
        return True

    def _send(self, pending: PendingCheckpoint, last: bool) -> str:
        """Try once: returns "kept", "broken" (another try may succeed), or "odd" if it cannot be serialized."""
        if pending.publish is not None:
            return self._published(pending, pending.publish)
        told_s = time.monotonic()

        def moved(size_bytes: int) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= SAVING_S:
                told_s = time.monotonic()
                self._tell({"op": "saving", "bytes": size_bytes})

        try:
            about = pending.first()
        except Exception as error:
            self._complain(f"the checkpoint of step {pending.step} cannot be written, training goes on: {error}")
            return "odd"
        try:
            channel = self._connect(
                {"what": UPLOAD, "step": pending.step, "samples": pending.samples, "last": last, **about}
            )
        except (OSError, WireError):
            return "broken"
        writer = PieceWriter(channel, moved)
        try:
            pending.write(cast(BinaryIO, writer))
            writer.whole()
            answer = channel.receive()
            return "kept" if answer is not None and answer["op"] == "kept" else "broken"
        except Exception as error:  # for example, an object of the script's cannot be serialized
            if writer.broken is not None:
                return "broken"
            self._complain(f"the checkpoint of step {pending.step} cannot be saved: {error!r}")
            return "odd"
        finally:
            channel.hang_up()
            channel.close()

    def _published(self, pending: PendingCheckpoint, publish: Callable[[Callable[[], bool]], bool]) -> str:
        """Do as `_send`; the driver reports why a distributed checkpoint could not be written."""
        try:
            return "kept" if publish(self._lost) else "odd"
        except Exception as error:
            self._complain(f"the checkpoint of step {pending.step} cannot be saved: {error!r}")
            return "odd"


def _yield_to_others() -> None:
    """Lower the priority of the calling thread only, for good: an unprivileged thread cannot raise it again."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
