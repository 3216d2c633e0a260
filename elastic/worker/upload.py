"""A worker's saved state on its way to the driver: only the newest counts, and neither training nor the link waits.

One thread serializes and sends, on a connection of its own. At most two states are held: the travelling one and the
newest; a state between the two is released. Locks on shared data are held for moments only, never while a state is
written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, cast

from elastic.base.errors import WireError
from elastic.base.nice import yield_to_others
from elastic.base.timing import PUBLISH_APART_S, SAVING_S, SHIP_APART_S, SHIP_SHARE
from elastic.link.bulk import SEND, PieceWriter
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message

_PAUSES_S = (0.1, 0.4, 1.0)
"""Before the next try, if a connection broke or the driver rejected it; the last one is repeated."""

_LOOK_S = 1.0
"""A thread that waits for a state to arrive checks this often whether the link still exists."""


@dataclass(frozen=True)
class PendingCheckpoint:
    """A saved state: the step it was saved at, the samples seen until then, and how to write it into a file.

    `write` may be called by any thread, more than once, and needs no seekable file; `release` is called once, when the
    state will not be written any more.

    A state with `publish` goes by path instead: the shipping thread calls `publish` with a function that tells whether
    the link is gone, and it returns whether the state is on a shared file system and counts.

    That thread calls `first`, once or more, before the driver hears of the state: it writes the content that the state
    only refers to, and returns what to tell the driver about it. `kept` is called once the driver has the state and
    nothing waits for it.
    """

    step: int
    samples: int
    write: Callable[[BinaryIO], None]
    release: Callable[[], None] = lambda: None
    publish: Callable[[Callable[[], bool]], bool] | None = None
    first: Callable[[], Message] = dict
    kept: Callable[[], None] = lambda: None


class Uploader:
    """A sender of the newest saved state, on request; every call but `ship` returns at once."""

    def __init__(
        self,
        tell: Callable[[Message], bool],
        connect: Callable[[Message], BlockingChannel],
        lost: Callable[[], bool],
        complain: Callable[[str], None],
    ) -> None:
        """`tell` sends a message to the driver on the worker's link; `lost` returns whether that link is gone.

        `connect` opens a connection for the state that it is told, or raises OSError or WireError; `complain` prints a
        line for the user.
        """
        self._tell = tell
        self._connect = connect
        self._lost = lost
        self._complain = complain
        self._news = threading.Condition()
        self._newest: PendingCheckpoint | None = None
        self._number = 0  # of the newest; a script may save twice at one step, with more in the second state
        self._arrived = 0
        self._refused = 0
        self._travelling: PendingCheckpoint | None = None
        self._travelling_number = 0
        self._soon = False
        self._asked_by_driver = False
        self._asks = self._answered = 0
        self._next_s = self._again_s = 0.0
        self._failures = 0
        self._thread: threading.Thread | None = None

    @property
    def newest(self) -> PendingCheckpoint | None:
        """The state that would be sent now."""
        return self._newest

    @property
    def arrived(self) -> bool:
        """Whether the driver has the newest state, as far as is known here."""
        return self._arrived == self._number

    @property
    def under_way(self) -> bool:
        """Whether a state is travelling or about to."""
        with self._news:
            return self._soon or self._travelling is not None or self._asks > self._answered

    def commit(self, saved: PendingCheckpoint) -> None:
        """Make `saved` the newest; the previous one is released, at once unless it is travelling."""
        with self._news:
            before, self._newest = self._newest, saved
            self._number += 1
            free = before is not None and before is not saved and before is not self._travelling
        if before is not None and free:
            before.release()

    def ship_soon(self) -> None:
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

    def ship(self) -> None:
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
            self._refused = self._travelling_number or self._number
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
            self._thread = threading.Thread(target=self._run, name="bft-ship", daemon=True)
            self._thread.start()
        self._news.notify_all()

    def _run(self) -> None:
        yield_to_others()
        while not self._lost():
            with self._news:
                while (wait_s := self._wait_s(time.monotonic())) != 0:
                    self._news.wait(wait_s)
                    if self._lost():
                        return
                asks, by_driver, self._asked_by_driver, self._soon = self._asks, self._asked_by_driver, False, False
                number, saved = self._number, self._newest
                travels = number != self._arrived
                if travels:
                    self._travelling, self._travelling_number = saved, number
            answered = self._serve(saved, number, asks, by_driver)
            with self._news:
                self._travelling, self._travelling_number = None, 0
                # A state that did not travel was released when a newer one replaced it.
                free = travels and saved is not self._newest
                kept = travels and number == self._arrived
                if answered:
                    self._answered = max(self._answered, asks)
                self._asked_by_driver |= by_driver and not answered
                self._news.notify_all()
            if saved is not None and kept:
                saved.kept()
            if saved is not None and free:
                saved.release()

    def _wait_s(self, now_s: float) -> float | None:
        """Return how long there is nothing to do; None: until woken."""
        if self._asks > self._answered:
            return max(0.0, self._again_s - now_s)
        if self._soon and self._number not in (0, self._arrived, self._refused):
            return max(0.0, max(self._next_s, self._again_s) - now_s)
        return None

    def _serve(self, saved: PendingCheckpoint | None, number: int, asks: int, by_driver: bool) -> bool:
        """Send a state if need be; returns whether the requests have an answer."""
        if saved is None or number == self._arrived:
            if by_driver:
                self._tell({"op": "nothing_saved"} if saved is None else {"op": "shipped", "step": saved.step})
            return True
        began_s, cpu_s = time.monotonic(), time.thread_time()
        outcome = self._send(saved, last=asks > self._answered)
        cost_s = time.thread_time() - cpu_s
        with self._news:
            apart_s = SHIP_APART_S if saved.publish is None else PUBLISH_APART_S
            self._next_s = began_s + max(apart_s, cost_s / SHIP_SHARE)
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
        elif by_driver and saved.publish is not None:  # a state sent by a connection needs no message: the driver knows
            self._tell({"op": "shipped", "step": saved.step})
        return True

    def _send(self, saved: PendingCheckpoint, last: bool) -> str:
        """Try once: returns "kept", "broken" (another try may succeed), or "odd" if the state cannot be serialized."""
        if saved.publish is not None:
            return self._published(saved, saved.publish)
        told_s = time.monotonic()

        def moved(size_bytes: int) -> None:
            nonlocal told_s
            if time.monotonic() - told_s >= SAVING_S:
                told_s = time.monotonic()
                self._tell({"op": "saving", "bytes": size_bytes})

        try:
            about = saved.first()
        except Exception as error:
            self._complain(f"the state of step {saved.step} cannot be written, training goes on: {error}")
            return "odd"
        try:
            channel = self._connect({"what": SEND, "step": saved.step, "samples": saved.samples, "last": last, **about})
        except (OSError, WireError):
            return "broken"
        writer = PieceWriter(channel, moved)
        try:
            saved.write(cast(BinaryIO, writer))
            writer.whole()
            answer = channel.receive()
            return "kept" if answer is not None and answer["op"] == "kept" else "broken"
        except Exception as error:  # for example, an object of the script's cannot be serialized
            if writer.broken is not None:
                return "broken"
            self._complain(f"the state of step {saved.step} cannot be saved: {error!r}")
            return "odd"
        finally:
            channel.hang_up()
            channel.close()

    def _published(self, saved: PendingCheckpoint, publish: Callable[[Callable[[], bool]], bool]) -> str:
        """Do as `_send`; the driver reports why a state could not be written by path."""
        try:
            return "kept" if publish(self._lost) else "odd"
        except Exception as error:
            self._complain(f"the state of step {saved.step} cannot be saved: {error!r}")
            return "odd"
