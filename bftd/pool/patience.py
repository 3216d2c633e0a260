"""How long nodes are kept in vain for one user before no more are kept for him. Pure.

A doubt is of one job. Who has many that could start for all that is known and never do, or takes such a job back and
submits it anew, would keep nodes from everybody for ever, or have all pilots leave every few seconds. So the time is
counted in which a user has room and none of his jobs starts, whichever they are; it is forgotten slowly, and sooner
with each start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# In the time that one job may take to start: so much in vain is too much, and with one less he is trusted again.
_MOST_WAITS = 8
# A twentieth of the time may be in vain for ever: a doubted job that is tried once an hour needs less.
_FORGOTTEN = 0.05


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long a user has had room in vain, and whether he is left out for it."""

    vain_s: float = 0.0
    is_over: bool = False


def tried(
    before: Mapping[str, Patience],
    having_room: Collection[str],
    started: Iterable[str],
    gone: Mapping[str, float],
    passed_s: float,
    wait_s: float,
) -> dict[str, Patience]:
    """Carry on over `passed_s` in which some users had room; `started` has a user for each room that led to a start.

    `wait_s` is how long a job may take to start. Who took a job back that had room counts as if it had been kept for as
    long: `gone` has what is missing of that, in seconds. Users of whom nothing is held against them are left out.
    """
    passed_s = min(max(0.0, passed_s), wait_s)
    starts = Counter(started)
    after: dict[str, Patience] = {}
    for user in before.keys() | set(having_room):
        was = before.get(user, Patience())
        vain_s = was.vain_s + passed_s * ((user in having_room) - _FORGOTTEN) - starts[user] * wait_s
        vain_s += max(0.0, gone.get(user, 0.0))
        if vain_s > 0.0:
            after[user] = Patience(vain_s, vain_s > (_MOST_WAITS - was.is_over) * wait_s)
    return after


def left_out(patience: Mapping[str, Patience]) -> frozenset[str]:
    """The users for whose jobs no room is made."""
    return frozenset(user for user, one in patience.items() if one.is_over)
