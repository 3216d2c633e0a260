"""A limit on how long nodes are kept in vain for one user before no more are kept for them. Pure.

A doubt is about one job. A user with many jobs that seem able to start and never do, or one who cancels such a job and
submits it anew, would keep nodes from everybody for ever, or have all pilots leave every few seconds. So the time is
counted in which a user has room and none of their jobs starts, whichever they are; it is forgotten slowly, and sooner
with each start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# In units of the time that one job may take to start: more in vain is too much, and with one less the user is trusted
# again.
_MOST_WAITS = 8
# A twentieth of the time may always be in vain: a doubted job that is tried once an hour needs less.
_FORGOTTEN = 0.05


@dataclass(frozen=True, slots=True)
class UserBackoff:
    """The time for which a user has had room in vain, and whether they are left out for it."""

    vain_s: float = 0.0
    is_over: bool = False


def tried(
    before: Mapping[str, UserBackoff],
    having_room: Collection[str],
    started: Iterable[str],
    gone: Mapping[str, float],
    passed_s: float,
    wait_s: float,
) -> dict[str, UserBackoff]:
    """Carry on over `passed_s` in which some users had room; `started` has a user for each room that led to a start.

    `wait_s` is how long a job may take to start. A user who cancelled a job that had room is charged as if the room had
    been kept for that long: `gone` has the missing seconds. Users with nothing held against them are not in the result.
    """
    passed_s = min(max(0.0, passed_s), wait_s)
    starts = Counter(started)
    after: dict[str, UserBackoff] = {}
    for user in before.keys() | set(having_room):
        was = before.get(user, UserBackoff())
        vain_s = was.vain_s + passed_s * ((user in having_room) - _FORGOTTEN) - starts[user] * wait_s
        vain_s += max(0.0, gone.get(user, 0.0))
        if vain_s > 0.0:
            after[user] = UserBackoff(vain_s, vain_s > (_MOST_WAITS - was.is_over) * wait_s)
    return after


def left_out(patience: Mapping[str, UserBackoff]) -> frozenset[str]:
    """Return the users for whose jobs no room is made."""
    return frozenset(user for user, one in patience.items() if one.is_over)
