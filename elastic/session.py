"""A worker's link to its driver: progress out; ship, pause and abort in.

A side thread reads the commands. It runs while the main thread waits in a collective (the GIL is free there), so the
last saved state of a hung worker can still be fetched. What the two threads share is the saved state, behind a lock.
"""

from __future__ import annotations

import mmap
import os
import queue
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message
from elastic.timing import REPORT_S, SHIP_SHARE

_PAGE = struct.Struct("=qd")
"""The last step and when it ended, in memory that the parent reads after a SIGKILL."""


@dataclass(frozen=True)
class Saved:
    """A saved state: the step it was saved at, the samples seen until then, and how to serialize it."""

    step: int
    samples: int
    serialize: Callable[[], bytes]


def new_page() -> mmap.mmap:
    """Memory for a worker's last step, to be made before the fork."""
    page = mmap.mmap(-1, _PAGE.size)
    _PAGE.pack_into(page, 0, -1, 0.0)
    return page


def read_page(page: mmap.mmap) -> tuple[int, float]:
    """The last step that a worker wrote (-1: none) and its time in unix seconds."""
    step, at_s = _PAGE.unpack_from(page, 0)
    return int(step), float(at_s)


class Session:
    """One worker's link; without a channel (a script run outside bftd) every call does nothing."""

    def __init__(self, channel: BlockingChannel | None = None, page: mmap.mmap | None = None) -> None:
        self._channel = channel
        self._page = page
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._saved: Saved | None = None
        self._shipped_step = -1
        self._saved_lock = threading.Lock()
        self._ship_lock = threading.Lock()
        self._ship_wanted = threading.Event()
        self._shipper: threading.Thread | None = None
        self._next_ship_s = 0.0
        self._reported_s = 0.0
        self._last: Message | None = None
        self._first = True
        self._previous_step_s = 0.0
        self.pause_requested = threading.Event()
        self.on_abort: Callable[[], None] = lambda: None

    @classmethod
    def connect(cls, environ: Mapping[str, str], page: mmap.mmap | None) -> Session:
        """Connects to the driver named in `environ` and starts the side thread.

        Raises OSError, KeyError, and WireError when who listens there does not know the trainer's secret.
        """
        about: Message = {
            "role": "worker",
            "host": environ["BFT_HOST"],
            "local_rank": int(environ["BFT_LOCAL_RANK"]),
            "pid": os.getpid(),
        }
        channel = BlockingChannel.connect(environ["BFT_DRIVER"], environ["BFT_SECRET"], about)
        session = cls(channel, page)
        threading.Thread(target=session._commands, name="bft-commands", daemon=True).start()
        return session

    @property
    def attached(self) -> bool:
        """Whether a driver listens."""
        return self._channel is not None

    # -- the main thread ---

    def step(
        self, step: int, samples: int, rank: int, size: int, loss: float | None, steps_lost: int = 0, nodes: int = 0
    ) -> None:
        """Notes that `step` ended; tells the driver at the first one of a group, then once a second from rank 0.

        `nodes` is how many nodes the `size` workers are on, 0 where that is not known.
        """
        now = time.time()
        if self._page is not None:
            _PAGE.pack_into(self._page, 0, step, now)
        first, self._first = self._first, False
        previous_s, self._previous_step_s = self._previous_step_s, now
        if self._channel is None:
            return
        saved = self._saved
        message: Message = {
            "op": "step",
            "first": first,
            "step": step,
            "samples": samples,
            "saved_step": saved.step if saved else 0,
            "saved_samples": saved.samples if saved else 0,
            "rank": rank,
            "size": size,
            "nodes": nodes,
            "loss": loss,
            "steps_lost": steps_lost,
            "at_s": now,
        }
        if first and previous_s:
            message["previous_s"] = previous_s
        self._last = message
        if first or (rank == 0 and now - self._reported_s >= REPORT_S):
            self._reported_s = now
            self._send(message)

    def farewell(self) -> None:
        """Tells the last step of a script that ended well: what it did counts though it saved no more."""
        last = self._last
        if last is not None and last["rank"] == 0:
            self._send({**last, "first": False, "saved_step": last["step"], "saved_samples": last["samples"]})

    def regrouped(self) -> None:
        """Notes that the world changed: the next step is the first one of the new group."""
        self._first = True

    def commit(self, saved: Saved) -> None:
        """Makes `saved` the state that the driver gets when it asks."""
        with self._saved_lock:
            self._saved = saved

    def ship(self) -> None:
        """Sends the last saved state to the driver unless it has it already; any thread may call this."""
        with self._ship_lock:
            with self._saved_lock:
                saved = self._saved
                if saved is None or self._channel is None:
                    self._send({"op": "nothing_saved"})
                    return
                payload = saved.serialize() if saved.step > self._shipped_step else None
            if payload is None:
                self._send({"op": "shipped", "step": saved.step})
                return
            self._send({"op": "state", "step": saved.step, "samples": saved.samples}, payload)
            self._shipped_step = saved.step

    def ship_soon(self) -> None:
        """Sends the last saved state in the background; a newer one overtakes one that still waits."""
        if self._shipper is None:
            self._shipper = threading.Thread(target=self._ship_loop, name="bft-ship", daemon=True)
            self._shipper.start()
        self._ship_wanted.set()

    def ship_in_passing(self) -> None:
        """As `ship_soon`, but only so often that shipping stays a small share of the work."""
        if time.monotonic() >= self._next_ship_s:
            self.ship_soon()

    def rest(self) -> None:
        """Ships the state just saved at a step boundary, says so, and waits for the end that the driver will send."""
        self.ship()
        self._send({"op": "paused"})
        while True:
            time.sleep(3600)

    def fetch_state(self) -> bytes | None:
        """The state that the trainer was suspended with, or None at its first start."""
        if self._channel is None:
            return None
        self._send({"op": "fetch"})
        return self._answers.get()

    # -- the side thread ---

    def _commands(self) -> None:
        channel = self._channel  # a failed send of another thread's takes it away
        assert channel is not None
        while (message := channel.receive()) is not None:
            op = message["op"]
            if op == "ping":
                self._send({"op": "pong"})
            elif op == "ship":
                self.ship()
            elif op == "pause":
                self.pause_requested.set()
            elif op == "abort":
                self.on_abort()
            elif op == "fetched":
                size_bytes = int(message.get("bytes", 0))
                self._answers.put(channel.receive_payload(size_bytes) if size_bytes else None)
        self._answers.put(None)

    def _ship_loop(self) -> None:
        while self._ship_wanted.wait():
            self._ship_wanted.clear()
            began_s = time.monotonic()
            self.ship()
            ended_s = time.monotonic()
            self._next_ship_s = ended_s + max(REPORT_S, (ended_s - began_s) / SHIP_SHARE)

    def _send(self, message: Message, payload: bytes | None = None) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message, payload)
        except OSError:
            # The driver is gone. The agent ends this worker within its lease time; until then training may go on.
            self._channel = None


_current = Session()


def current() -> Session:
    """This process's session; one that does nothing outside bftd."""
    return _current


def install(session: Session) -> None:
    """Makes `session` this process's (called once, by the worker's bootstrap)."""
    global _current
    _current = session
