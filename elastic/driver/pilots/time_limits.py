"""Pilots that leave before their time limits end them: never all of a trainer's at once, if it can go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic.base.timing import EXPIRE_APART_S

_PARTS = 4
"""Pilots that end together leave in this many parts: each costs a resize or two, and torchrun restarts all workers."""

_SHARE_OF_LIFE = 1 / 16
"""A pilot leaves earlier by at most this share of its limit for each part."""


@dataclass(frozen=True)
class TrainingPilot:
    """A pilot that trains: it has to leave at `end_s` of some clock, and was asked for `limit_s`."""

    end_s: float
    limit_s: float


class PilotLimits:
    """The times at which pilots leave; `may_shrink_to` says whether a trainer can go on with that many nodes."""

    def __init__(self, may_shrink_to: Callable[[int], bool]) -> None:
        self._may_shrink_to = may_shrink_to
        self._left_s = -math.inf

    def due(self, members: Sequence[TrainingPilot], now_s: float) -> list[int]:
        """Returns the positions in `members` of those that leave now, in the order of their ends."""
        order = sorted(range(len(members)), key=lambda position: members[position].end_s)
        over = [position for position in order if members[position].end_s <= now_s]
        early = 0
        together = max(1, len(members) // _PARTS)
        for count, position in enumerate(order, start=1):
            last = members[position]
            apart_s = min(EXPIRE_APART_S, last.limit_s * _SHARE_OF_LIFE)
            # the number of chances for nodes to leave: now, after apart_s, and so on until this one has to
            turns = 1 + math.ceil((last.end_s - now_s) / apart_s)
            if 1 < turns <= min(_PARTS, math.ceil(count / together)) and now_s - self._left_s >= apart_s:
                early = max(early, math.ceil((count - together) / (turns - 1)))
        if len(over) < early and self._may_shrink_to(len(members) - early):
            self._left_s = now_s
            return order[:early]
        return over
