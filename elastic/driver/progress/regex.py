"""Progress read from the output of a script that reports none to bftd: `progress=REGEX` of --elastic.

Only the lines of one node are read, the first with a line that matches, until the workers are restarted. A match
becomes a message like that of elastic.step, so that everything behind it is the same.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
from collections.abc import Callable
from types import FrameType

from elastic.base.timing import MATCH_S, REPORT_S
from elastic.link.wire import Message

UNMATCHED = (
    "no line of the script's output fits progress= so far: bftd knows nothing of its steps, and changes its nodes "
    "rarely; try the expression on a line of this log (in an #SBATCH line sbatch takes each backslash away)"
)

BACK = (
    "the script began again at step {step} after a change of its nodes, where it had printed step {reached}: it does "
    "not go on from a checkpoint of its own; save one often and resume from the newest when the script starts, or use "
    "elastic.save() (see the users' guide)"
)

TOO_LONG = (
    "progress= took too long on a line and is read no more; an expression without repeats of repeats, such as (a+)+, "
    "is fast"
)

_LINE = 2048
"""Only this many characters of a line are searched: no line that reports steps is longer."""


class _TooLongError(Exception):
    """The expression takes too long on a line."""


class _Count:
    """A count that a script prints, which may start again at each epoch."""

    def __init__(self) -> None:
        self._epochs = 0
        self._last = 0

    @property
    def again(self) -> bool:
        """Whether the count has started again: another epoch."""
        return self._epochs > 0

    def total(self, value: int, restarted: bool) -> int | None:
        """Returns the count from the very beginning; None for a line that came late.

        Half as much or less, from workers that were not restarted, is another epoch. After a restart the count goes on
        within the same epoch: nothing shows that another one began.
        """
        if value < self._last and not restarted:
            if value * 2 > self._last:
                return None
            self._epochs += self._last
        self._last = value
        return self._epochs + value


class Printed:
    """One trainer's lines; times are unix seconds."""

    def __init__(self, expression: str | None) -> None:
        """`expression` has a group `step` or `samples`, maybe `loss` and `total_steps`; None: nothing is read."""
        self._expression = re.compile(expression) if expression else None
        self._steps, self._samples = _Count(), _Count()
        self._source = ""
        self._first, self._joined, self._restarted = True, False, False
        self._reported_s = -math.inf
        self._last: tuple[int, int] = (0, 0)
        self._unreported: Message | None = None
        self._loss: float | None = None
        self._total: int | None = None
        self._matching = False
        self.began_at = 0
        """The first step that was ever read."""
        self.matched = False
        """Whether a line has ever matched."""
        self.gave_up = False
        """Whether the expression took too long on a line: nothing is read any more."""
        if expression:  # Python's regex engine handles signals while it searches
            signal.signal(signal.SIGVTALRM, self._too_long)

    @property
    def reads(self) -> bool:
        """Whether lines are searched."""
        return self._expression is not None and not self.gave_up

    def began(self, *, joined: bool) -> None:
        """Notes that workers were started: the next line that matches is the first of a new group.

        `joined`: other workers of the group began before; they may have printed steps already.
        """
        self._joined = joined and (self._joined or not self._first)
        self._source, self._first, self._restarted = "", True, self.matched

    def take_unreported(self) -> Message | None:
        """Returns the message that was read last, if it was not reported yet."""
        last, self._unreported = self._unreported, None
        return last

    def read(self, lease: str, line: str, at_s: float, group: Callable[[], tuple[int, int]]) -> Message | None:
        """Takes a line of the node with that lease; returns a step's message, the first at once and then one a second.

        `group` returns the numbers of nodes and workers that train. If only steps are read, each counts for one sample
        a worker; if only samples are read, they are the steps.
        """
        if not self.reads or self._source not in ("", lease):
            return None
        match = self._search(line[:_LINE])
        counts = _numbers(match) if match else None
        if counts is None:
            return None
        step, samples, loss, total = counts
        total_samples = self._samples.total(samples, self._restarted) if samples is not None else None
        done = self._steps.total(step, self._restarted) if step is not None else total_samples
        if done is None or (samples is not None and total_samples is None):
            return None
        self._restarted = False
        if self._steps.again or self._samples.again:  # a printed total is then that of an epoch
            total = 0
        nodes, size = group()
        before, sum_before = self._last
        if not self.matched:
            self.began_at = done
        if total_samples is None:
            total_samples = sum_before + (done - before) * size if self.matched else done * size
        self._source, self.matched, self._last = lease, True, (done, total_samples)
        self._loss = loss if loss is not None else self._loss
        self._total = total if total is not None else self._total
        return self._message(done, max(0, total_samples), at_s, nodes, size)

    def _message(self, step: int, samples: int, at_s: float, nodes: int, size: int) -> Message | None:
        message: Message = {
            "op": "step",
            "first": self._first,
            "joined": self._joined,
            "step": step,
            "samples": samples,
            # The script may not have saved it: steps repeated after a restart are reported as lost.
            "saved_step": step,
            "saved_samples": samples,
            "rank": 0,
            "size": size,
            "nodes": nodes,
            "loss": self._loss,
            "at_s": at_s,
        }
        if self._total is not None:
            message["total_steps"] = self._total
        if not self._first and at_s - self._reported_s < REPORT_S:
            self._unreported = message
            return None
        self._first, self._reported_s, self._unreported = False, at_s, None
        return message

    def _search(self, line: str) -> re.Match[str] | None:
        """Searches a line for the expression, for MATCH_S of CPU time at most: nested repeats may take for ever."""
        assert self._expression is not None
        try:
            try:
                self._matching = True
                signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_S)
                return self._expression.search(line)
            finally:
                self._matching = False
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _TooLongError:
            self.gave_up = True
            return None

    def _too_long(self, number: int, frame: FrameType | None) -> None:
        if self._matching:
            raise _TooLongError


def _numbers(match: re.Match[str]) -> tuple[int | None, int | None, float | None, int | None] | None:
    """Returns step, samples, loss and total steps of a match; None if both counts are missing, or one is no number."""
    found = match.groupdict()
    try:
        step, samples = (_whole(found.get(name)) for name in ("step", "samples"))
    except ValueError:
        return None
    if step is None and samples is None:
        return None
    loss = None
    with contextlib.suppress(ValueError):
        loss = float(found.get("loss") or math.nan)
    total = None
    with contextlib.suppress(ValueError):
        total = _whole(found.get("total_steps"))
    return step, samples, loss if loss is not None and math.isfinite(loss) else None, total


def _whole(text: str | None) -> int | None:
    """Reads a count as scripts print it, with or without thousands separators; raises ValueError."""
    if text is None:
        return None
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise ValueError(text)
    return int(digits)
