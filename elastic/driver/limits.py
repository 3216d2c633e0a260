"""Which pilots leave before their time limits do it for them: never all of a trainer's at once, where it can go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic.timing import EXPIRE_APART_S

_PARTS = 4
"""Pilots that end together are left in so many parts: each costs a resize or two, with torchrun restarts of all."""

_SHARE_OF_LIFE = 1 / 16
"""A short pilot leaves earlier by no more than this of its limit a part."""


@dataclass(frozen=True)
class Member:
    """A pilot that trains: it has to leave at `end_s` of some clock, and was asked for `limit_s`."""

    end_s: float
    limit_s: float


class Limits:
    """Says when pilots leave; `may_shrink_to` tells whether a trainer can go on with so many nodes."""

    def __init__(self, may_shrink_to: Callable[[int], bool]) -> None:
        self._may_shrink_to = may_shrink_to
        self._left_s = -math.inf

    def due(self, members: Sequence[Member], now_s: float) -> list[int]:
        """The positions in `members` of those that leave now, those that end first before the others."""
        order = sorted(range(len(members)), key=lambda position: members[position].end_s)
        over = [position for position in order if members[position].end_s <= now_s]
        early = 0
        together = max(1, len(members) // _PARTS)
        for count, position in enumerate(order, start=1):
            last = members[position]
            apart_s = min(EXPIRE_APART_S, last.limit_s * _SHARE_OF_LIFE)
            # so many times nodes can still leave: now, after apart_s, and so on until this one has to
            turns = 1 + math.ceil((last.end_s - now_s) / apart_s)
            if 1 < turns <= min(_PARTS, math.ceil(count / together)) and now_s - self._left_s >= apart_s:
                early = max(early, math.ceil((count - together) / (turns - 1)))
        if len(over) < early and self._may_shrink_to(len(members) - early):
            self._left_s = now_s
            return order[:early]
        return over
