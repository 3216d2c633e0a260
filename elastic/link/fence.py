"""A step that all workers of a group treat alike, agreed with the driver without a collective.

A script may use collectives in its save (a sharded model is gathered, a barrier is passed), so `elastic.step` has to
ask for a save on every rank at the same step, or on none. The driver asks where the workers are, and has each put a
gate behind a step that none has ended yet; once all have one, it opens them, and each worker saves at the end of that
step. A worker that has ended the step already says so; the others' gates are then taken away, and a later step is
tried. Who comes to a gate before it is opened or taken away waits: so nobody goes past a step at which others save.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from dataclasses import dataclass

from elastic.link.wire import Message

ASKED = frozenset({"where", "gate", "open", "clear"})
"""What the driver says."""

ANSWERS = frozenset({"at", "gated", "late"})
"""What a worker answers."""


@dataclass
class Gate:
    """What to do at the end of a step; with `pause` the worker is stopped once it has saved. `number`: no other's."""

    number: int
    pause: bool
    opened: bool = False


_STEPS = 5
"""So many steps' median is what a step takes: the first one compiles, one in a hundred evaluates."""


class Fence:
    """One worker's gates: `answer` is called by the side thread, `passed` and `saved` by the one that trains."""

    def __init__(self) -> None:
        self.by_clock = False
        """Whether the script leaves it to bftd when to save."""
        self._news = threading.Condition()
        self._gates: dict[int, Gate] = {}
        self._step = 0
        self._steps_s: deque[float] = deque(maxlen=_STEPS)
        self._saving = self._saved = False
        self._save_s = 0.0
        self._ended_s: float | None = None

    def answer(self, message: Message) -> Message | None:
        """Carries out what the driver says; returns the answer, if it wants one."""
        op = message["op"]
        with self._news:
            if op == "where":
                return {
                    "op": "at",
                    "step": self._step,
                    "step_s": self._step_s,
                    "by_clock": self.by_clock,
                    "busy": self._saving or bool(self._gates),
                    "save_s": self._save_s,
                }
            step, number = int(message["step"]), int(message["number"])
            gate = self._gates.get(step)
            if op == "gate":
                # One gate a step: one that the others have agreed on already must not make room for this one.
                if step <= self._step or gate is not None:
                    return {"op": "late", "number": number}
                self._gates[step] = Gate(number, bool(message["pause"]))
                return {"op": "gated", "number": number}
            if gate is not None and gate.number == number:
                if op == "open":
                    gate.opened = True
                else:
                    del self._gates[step]
                self._news.notify_all()
            return None

    @property
    def _step_s(self) -> float:
        return statistics.median(self._steps_s) if self._steps_s else 0.0

    def passed(self, step: int, now_s: float) -> Gate | None:
        """Notes that `step` ended at `now_s` (monotonic); returns its gate, once that is open, if it has one.

        What lies between a gate and the end of the step behind it is what the save cost: until `saved`, or all that is
        more than a step where nobody calls that.
        """
        with self._news:
            if self._ended_s is not None:
                took_s = now_s - self._ended_s
                if not self._saving:
                    self._steps_s.append(took_s)
                elif not self._saved:
                    self._save_s = max(0.0, took_s - self._step_s)
            self._ended_s, self._step = now_s, step
            while (gate := self._gates.get(step)) is not None and not gate.opened:
                self._news.wait()
            for old in [old for old in self._gates if old <= step]:
                del self._gates[old]
            self._saving, self._saved = gate is not None, False
            return gate

    def saved(self, now_s: float) -> None:
        """Notes that the script has saved: an evaluation that follows before the next step is no part of the cost."""
        with self._news:
            if self._saving and self._ended_s is not None:
                self._save_s, self._saved = now_s - self._ended_s, True
