"""The events of a simulation in the order of time; those of the same time in the order in which they were added."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class Events:
    """Things to do at times; `now_s` is the time of the one that is being done."""

    def __init__(self) -> None:
        self.now_s = -inf
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def at(self, time_s: float, act: Callable[[Any], None], what: Any = None) -> None:
        """Do something at a time."""
        self._count += 1
        heappush(self._events, (time_s, self._count, act, what))

    @property
    def next_s(self) -> float:
        """The time of the next event, inf if there is none."""
        return self._events[0][0] if self._events else inf

    def step(self) -> None:
        """Do what is to be done next."""
        self.now_s, _, act, what = heappop(self._events)
        act(what)
