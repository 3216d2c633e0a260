"""The limit on what a site wastes in an hour for jobs that do not start, and the users who still get earmarks. Pure.

One backoff is about one job, the other about one user. Sixty users whose jobs never start, as with licences or
switches that cannot be seen from here, would still keep most nodes idle, and have pilots leave again and again. So the
cost of earmarks is counted for all: node-seconds kept, and pilots that left. Users whose earmarks led to starts have an
account of their own, which nobody else can spend. In each account, wasted earmarks may cost a fixed amount in an hour,
or as much as the earmarks cost that led to a start. Beyond that no more earmarks are made, until older costs drop out
of the hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

_HOUR_S = 3600.0
_MINUTE_S = 60.0
# Share of all node-seconds of an hour, and pilots per node and hour.
_WASTED_MOST = 0.05
_PILOTS_MOST = 1.0
# The share of that for users about whom nothing is known; the rest is for those whose earmarks led to starts.
_UNKNOWN_SHARE = 0.6
# When the first share of the unknown users' budget is spent only proved users get earmarks, and all again once it is
# down to the second.
_WARY_FROM, _WARY_TO = 0.75, 0.5


@dataclass(frozen=True, slots=True)
class EarmarkCost:
    """The cost of earmarks: node-seconds without a pilot, and pilots that left."""

    node_s: float = 0.0
    pilots: float = 0.0

    def __add__(self, other: EarmarkCost) -> EarmarkCost:
        return EarmarkCost(self.node_s + other.node_s, self.pilots + other.pilots)

    def at_least(self, other: EarmarkCost) -> EarmarkCost:
        """Return the greater of both, each part by itself."""
        return EarmarkCost(max(self.node_s, other.node_s), max(self.pilots, other.pilots))


@dataclass(frozen=True, slots=True)
class EndedEarmark:
    """An earmark that is over: its user, its account (`proved`), whether its job `started`, and how many `nodes`."""

    user: str
    proved: bool
    started: bool
    nodes: int
    cost: EarmarkCost


@dataclass(frozen=True, slots=True)
class Governor:
    """The cost of earmarks in the last hour, by (begin of a minute, proved, started), and the users that are `proved`.

    Each of these users has some nodes to their credit: the nodes their jobs started on, less those wasted
    on them. While the governor is `wary`, no other user has nodes earmarked for them.
    """

    past: Mapping[tuple[float, bool, bool], EarmarkCost] = field(default_factory=dict)
    proved: Mapping[str, int] = field(default_factory=dict)
    wary: bool = False

    def moved(self, by_s: float) -> Governor:
        """Return the governor with its times moved: the clock was set."""
        past = {(at_s + by_s, proved, started): cost for (at_s, proved, started), cost in self.past.items()}
        return replace(self, past=past)

    def spent(self, started: bool, proved: bool | None = None) -> EarmarkCost:
        """Return the cost of earmarks in the last hour that led to a start, or to none; of one account, or of both."""
        costs = (
            cost
            for (_, was_proved, has_started), cost in self.past.items()
            if has_started is started and proved in (None, was_proved)
        )
        return sum(costs, EarmarkCost())

    def budget(self, proved: bool, nodes: int) -> EarmarkCost:
        """Return the cost that an account may waste in an hour, at a site of `nodes` harvested nodes."""
        share = 1.0 - _UNKNOWN_SHARE if proved else _UNKNOWN_SHARE
        least = EarmarkCost(share * _WASTED_MOST * nodes * _HOUR_S, share * _PILOTS_MOST * nodes)
        return least.at_least(self.spent(started=True, proved=proved))

    def after(self, over: Iterable[EndedEarmark], nodes: int, now_s: float) -> Governor:
        """Return the governor with the earmarks that are over now."""
        past = {key: cost for key, cost in self.past.items() if -_MINUTE_S < now_s - key[0] <= _HOUR_S + _MINUTE_S}
        credit: dict[str, int] = defaultdict(int, self.proved)
        minute_s = now_s // _MINUTE_S * _MINUTE_S
        for one in over:
            key = minute_s, one.proved, one.started
            past[key] = past.get(key, EarmarkCost()) + one.cost
            credit[one.user] = min(nodes, credit[one.user] + (one.nodes if one.started else -one.nodes))
        known = replace(self, past=past, proved={user: count for user, count in credit.items() if count > 0})
        wasted, most = known.spent(started=False, proved=False), known.budget(False, nodes)
        share = _WARY_TO if self.wary else _WARY_FROM
        return replace(known, wary=bool(past) and not _within(wasted, most, share))

    @property
    def words(self) -> str:
        """The reason why it is wary, as a sentence; "" if it is not."""
        if not self.wary:
            return ""
        wasted = self.spent(started=False)
        kept_s = wasted.node_s + self.spent(started=True).node_s
        share = wasted.node_s / kept_s if kept_s > 0.0 else 1.0
        return (
            f"nodes are earmarked only for users whose jobs start there: {share:.0%} of what was kept free for waiting "
            f"jobs in the last hour led to no start, and {wasted.pilots:.0f} pilots left for nothing"
        )


class EarmarkAllowance:
    """The cost that may still be spent at one snapshot; the worst cost of open earmarks counts as spent."""

    def __init__(self, governor: Governor, nodes: int) -> None:
        self._used = {proved: governor.spent(started=False, proved=proved) for proved in (False, True)}
        self._most = {proved: governor.budget(proved, nodes) for proved in (False, True)}

    def spend(self, proved: bool, cost: EarmarkCost) -> None:
        """Count an open earmark."""
        self._used[proved] += cost

    def takes(self, proved: bool, cost: EarmarkCost) -> bool:
        """Count an earmark that is to be made, and say whether it may be.

        If nothing was spent, one earmark may always be made, however large its job is.
        """
        used, most = self._used[proved], self._most[proved]
        fits = _fits(used.node_s, cost.node_s, most.node_s) and _fits(used.pilots, cost.pilots, most.pilots)
        if fits:
            self.spend(proved, cost)
        return fits

    def is_over(self, proved: bool, cost: EarmarkCost) -> bool:
        """Whether one earmark alone has taken all that its account may cost in an hour."""
        return cost.node_s > self._most[proved].node_s


def _fits(used: float, more: float, most: float) -> bool:
    return used <= 0.0 or more <= 0.0 or used + more <= most


def _within(cost: EarmarkCost, most: EarmarkCost, share: float) -> bool:
    return cost.node_s <= share * most.node_s and cost.pilots <= share * most.pilots
