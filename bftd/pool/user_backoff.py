"""A limit on how long nodes are wasted on one user before no more are earmarked for them. Pure.

The other backoff is about one job. A user with many jobs that seem able to start and never do, or one who cancels such
a job and submits it anew, would keep nodes from everybody for ever, or have all pilots leave every few seconds. So the
time is counted in which a user has an earmark and none of their jobs starts, whichever they are; it is forgotten
slowly, and sooner with each start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

# In units of the time that one job may take to start: more wasted is too much, and with one less the user is trusted
# again.
_MOST_WAITS = 8
# A twentieth of the time may always be wasted: a job that is tried once an hour needs less.
_FORGOTTEN = 0.05


@dataclass(frozen=True, slots=True)
class UserBackoff:
    """The time wasted on earmarks for a user, and whether they are excluded for it."""

    wasted_s: float = 0.0
    is_over: bool = False


def tried(
    before: Mapping[str, UserBackoff],
    earmarked: Collection[str],
    started: Iterable[str],
    gone: Mapping[str, float],
    passed_s: float,
    wait_s: float,
) -> dict[str, UserBackoff]:
    """Carry on over `passed_s` in which some users were `earmarked` for; `started` has a user for each start.

    `wait_s` is how long a job may take to start. A user who cancelled a job that had an earmark is charged as if it
    had been kept for that long: `gone` has the missing seconds. Users with nothing held against them are not in the
    result.
    """
    passed_s = min(max(0.0, passed_s), wait_s)
    starts = Counter(started)
    after: dict[str, UserBackoff] = {}
    for user in before.keys() | set(earmarked):
        was = before.get(user, UserBackoff())
        wasted_s = was.wasted_s + passed_s * ((user in earmarked) - _FORGOTTEN) - starts[user] * wait_s
        wasted_s += max(0.0, gone.get(user, 0.0))
        if wasted_s > 0.0:
            after[user] = UserBackoff(wasted_s, wasted_s > (_MOST_WAITS - was.is_over) * wait_s)
    return after


def excluded(users: Mapping[str, UserBackoff]) -> frozenset[str]:
    """Return the users for whose jobs no node is earmarked."""
    return frozenset(user for user, one in users.items() if one.is_over)
