"""A step that all workers of a group treat alike, agreed with the driver without a collective.

A script may use collectives in its save (to gather a sharded model, or a barrier), so `elastic.step` has to ask for a
save on every rank at the same step, or on none. The driver asks where the workers are, and requests a save at the end
of a step that none has ended yet. Once all have accepted, it confirms the request, and each worker saves at the end of
that step. A worker that has already ended the step answers `late`; the request is then withdrawn, and a later step is
tried. A worker that ends the step before the request is confirmed or withdrawn waits, so no worker goes past a step at
which others save.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass

from elastic.link.wire import Message

_OLD_OPS = {"gate": "request_save", "open": "confirm_save", "clear": "withdraw_save"}
"""Names of these messages in a driver of 0.1 that outlives an upgrade, until 1.1."""

QUESTIONS = frozenset({"where", "request_save", "confirm_save", "withdraw_save", *_OLD_OPS})
"""Messages of the driver."""

ANSWERS = frozenset({"at", "accepted", "late"})
"""Answers of a worker."""


@dataclass
class SaveRequest:
    """A request at the end of a step; with `pause` the worker is stopped once it has saved. `number` is unique."""

    number: int
    pause: bool
    confirmed: bool = False


_STEPS = 5
"""The duration of a step is the median of this many: the first one compiles, one in a hundred evaluates."""


class StepBarrier:
    """One worker's save requests: the side thread calls `answer`, the thread that trains calls `passed` and `saved`."""

    def __init__(self) -> None:
        self.by_clock = False
        """Whether the script leaves it to bftd when to save."""
        self.size = 0
        """The number of workers in this worker's group, 0 until it has ended a step."""
        self._news = threading.Condition()
        self._requests: dict[int, SaveRequest] = {}
        self._step = 0
        self._steps_s: deque[float] = deque(maxlen=_STEPS)
        self._saving = self._saved = False
        self._save_s = 0.0
        self._ended_s: float | None = None

    def answer(self, message: Message) -> Message | None:
        """Carry out a message of the driver; returns the answer, if it wants one."""
        op = _OLD_OPS.get(message["op"], message["op"])
        with self._news:
            if op == "where":
                return {
                    "op": "at",
                    "step": self._step,
                    "step_s": self._step_s,
                    "by_clock": self.by_clock,
                    "size": self.size,
                    "busy": self._saving or bool(self._requests),
                    "save_s": self._save_s,
                }
            step, number = int(message["step"]), int(message["number"])
            request = self._requests.get(step)
            if op == "request_save":
                # One request a step: one that the others may have accepted must not make way for this one.
                if step <= self._step or request is not None:
                    return {"op": "late", "number": number}
                self._requests[step] = SaveRequest(number, bool(message["pause"]))
                return {"op": "accepted" if message["op"] == op else "gated", "number": number}
            if request is not None and request.number == number:
                if op == "confirm_save":
                    request.confirmed = True
                else:
                    del self._requests[step]
                self._news.notify_all()
            return None

    @property
    def _step_s(self) -> float:
        return statistics.median(self._steps_s) if self._steps_s else 0.0

    def is_undecided(self, step: int) -> bool:
        """Whether a request for the end of `step` is neither confirmed nor withdrawn: `passed` would wait."""
        request = self._requests.get(step)
        return request is not None and not request.confirmed

    def passed(self, step: int, now_s: float) -> SaveRequest | None:
        """Note that `step` ended at `now_s` (monotonic); returns its request, if any, once it is confirmed.

        The time from a request to the end of the next step contains the cost of the save: it ends at `saved`, or, if
        that is not called, is all that exceeds a usual step.
        """
        with self._news:
            if self._ended_s is not None:
                took_s = now_s - self._ended_s
                if not self._saving:
                    self._steps_s.append(took_s)
                elif not self._saved:
                    self._save_s = max(0.0, took_s - self._step_s)
            self._ended_s, self._step = now_s, step
            while self.is_undecided(step):
                self._news.wait()
            request = self._requests.get(step)
            for old in [old for old in self._requests if old <= step]:
                del self._requests[old]
            self._saving, self._saved = request is not None, False
            return request

    def saved(self, now_s: float) -> None:
        """Note that the script has saved: an evaluation before the next step is not part of the cost."""
        with self._news:
            if self._saving and self._ended_s is not None:
                self._save_s, self._saved = now_s - self._ended_s, True
