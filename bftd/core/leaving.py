"""Which of several equal leased nodes a regular job is to get: those whose leaving costs the trainers least.

The cost of some nodes of one trainer is what it makes less over t_fwd by the values that a plan goes by, and the stall
of its resize, once however many of its nodes leave. Among all trainers the nodes are taken in groups of the least cost
a node (the lower convex hull of each trainer's costs), since the second node of a trainer that is resized anyway is
cheaper than the first of another, and one that falls below its least size loses all that it has left at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate

from bftd.core import classes, learn, objective
from bftd.core.domain import State, Trainer
from bftd.core.timing import EXPIRY_AHEAD_S
from milp import interpolate

# A node that does not work yet: nothing done there is lost, and no resize is needed. What it would have brought counts
# for a little, so that a start is not broken up where a node of another trainer does as well.
_UNUSED_WEIGHT = 0.01


def of(state: State) -> TrainersLoss:
    """What leaving costs the trainers of a state; nothing is worked out before somebody asks."""
    return TrainersLoss(state)


@dataclass(frozen=True, slots=True)
class _Holding:
    """A trainer with all its live leases, `working` of which take part in training; `touched` while it shrinks anyway.

    `value` is what a number of nodes is worth to the plan, per second.
    """

    trainer: Trainer
    live: int
    working: int
    touched: bool
    value: Callable[[int], float]


class TrainersLoss:
    """The answer to `bftd.pool.leaving.Leaving`, from the leases and trainers of one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def cheapest(self, nodes: Sequence[str], count: int, already: Collection[str]) -> Sequence[str]:
        """`count` of the leased `nodes`, those first whose leaving costs least once those of `already` have left.

        All of them where there are no more. Among nodes that cost the same the order of `nodes` decides.
        """
        if count >= len(nodes):
            return tuple(nodes)
        free = tuple(node for node in nodes if node not in self._keys)[: max(0, count)]
        count -= len(free)
        if count <= 0:
            return free
        offers = self._offers(nodes, count, frozenset(already))
        taken = _greedy(offers, count)
        # one trainer alone may be cheaper than the remains of several
        whole = [(offer.costs[count], rank) for rank, offer in enumerate(offers) if len(offer.nodes) >= count]
        if whole and min(whole)[0] < sum(offers[rank].costs[many] for rank, many in taken.items()):
            taken = {min(whole)[1]: count}
        return (*free, *(node for rank, many in taken.items() for node in offers[rank].nodes[:many]))

    def cost(self, nodes: Iterable[str], already: Collection[str] = ()) -> float:
        """What is lost if all these nodes leave, in the units of the objective."""
        wanted = tuple(nodes)
        return sum(offer.costs[-1] for offer in self._offers(wanted, len(wanted), frozenset(already)))

    def _offers(self, nodes: Sequence[str], count: int, already: frozenset[str]) -> list[_Offer]:
        """What each trainer asks for its live nodes, in the order in which `nodes` first names one of it."""
        mine: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
        keys = self._keys
        for place, node in enumerate(nodes):
            if (found := keys.get(node)) is not None:
                mine[found[0]].append((found[1], place, node))
        gone: Counter[tuple[str, bool]] = Counter()
        for node in already:
            if (found := keys.get(node)) is not None:
                gone[found[0], found[1] >= 1.0] += 1
        offers = []
        for id_, keyed in mine.items():
            keyed.sort()
            first = [key for key, _, _ in keyed[:count]]
            asked = self._asked(self._holdings[id_], first, gone[id_, False], gone[id_, True])
            offers.append(_Offer(tuple(name for _, _, name in keyed), (0.0, *accumulate(asked))))
        return offers

    def _asked(self, holding: _Holding, keys: Sequence[float], gone_unused: int, gone_working: int) -> Iterable[float]:
        """The cost of each node that leaves after those before it, from the keys by which they are ordered.

        A key is 0 for a node that does not work yet, else 1 and the part of t_fwd for which it would work. A pilot that
        ends within t_fwd takes with it only what it would have made until then, and its resize comes anyway.
        """
        t_fwd_s, sizes, value = self._state.settings.decide.t_fwd_s, holding.trainer.sizes, holding.value
        live, working = holding.live - gone_unused - gone_working, holding.working - gone_working
        of_live, of_working = value(sizes.largest(live)), value(sizes.largest(working))
        stall = holding.trainer.knowledge.down_cost_s(holding.live) * value(holding.working)
        stalled = 1.0 if holding.touched or gone_working else 0.0
        for key in keys:
            if key < 1.0:
                live -= 1
                before, of_live = of_live, value(sizes.largest(live))
                yield _UNUSED_WEIGHT * t_fwd_s * (before - of_live)
                continue
            share = key - 1.0
            working -= 1
            before, of_working = of_working, value(sizes.largest(working))
            yield share * t_fwd_s * (before - of_working) + max(0.0, share - stalled) * stall
            stalled = max(stalled, share)

    @cached_property
    def _keys(self) -> Mapping[str, tuple[str, float]]:
        """Of each node with a live lease its trainer, and the key that `_asked` explains."""
        now_s, t_fwd_s = self._state.time_s + EXPIRY_AHEAD_S, self._state.settings.decide.t_fwd_s
        return {
            lease.node: (
                lease.trainer,
                1.0 + min(1.0, max(0.0, (lease.end_s - now_s) / t_fwd_s)) if lease.phase == "working" else 0.0,
            )
            for lease in self._state.leases.values()
            if lease.revoked_s is None
        }

    @cached_property
    def _holdings(self) -> Mapping[str, _Holding]:
        """Every trainer that has live leases."""
        live: Counter[str] = Counter()
        working: Counter[str] = Counter()
        first: dict[str, str] = {}
        shrinking = set()
        for lease in self._state.leases.values():
            if not lease.live:
                shrinking.add(lease.trainer)
                continue
            live[lease.trainer] += 1
            working[lease.trainer] += lease.phase == "working"
            first.setdefault(lease.trainer, lease.node)
        trainers = self._state.trainers
        guess = learn.median_rate_per_node(trainer.knowledge for trainer in trainers.values() if trainer.active)
        return {
            id_: _Holding(
                trainers[id_], count, working[id_], id_ in shrinking, self._value_of(trainers[id_], first[id_], guess)
            )
            for id_, count in live.items()
        }

    def _value_of(self, trainer: Trainer, node: str, guess: float) -> Callable[[int], float]:
        """What nodes are worth to a trainer that works on `node`, as the plan weighs them."""
        settings, pool, knowledge, high = self._state.settings, self._state.pool, trainer.knowledge, trainer.sizes.high
        points, one_node = learn.curve(knowledge, high, guess), None
        wish = trainer.request.wish
        if len(pool.classes) > 1 and knowledge.by_class and not wish.mix and node in pool.nodes:
            kind = pool.nodes[node].node_class
            names = {*classes.usable(pool.classes, wish, trainer.request.partition), kind}
            curves, one_node = learn.curves_on(knowledge, high, names)
            points = curves[kind]
        weighed = trainer.request.weight
        points, weight = objective.values(
            points, settings.decide.objective, weighed, one_node, measured=settings.trusting
        )
        return lambda count: weight * interpolate(points, count)


@dataclass(frozen=True, slots=True)
class _Offer:
    """One trainer's nodes in the order in which they leave, and what the first 0, 1, 2, ... of them cost."""

    nodes: tuple[str, ...]
    costs: tuple[float, ...]


def _greedy(offers: Sequence[_Offer], count: int) -> dict[int, int]:
    """How many nodes of each offer to take: again and again the group of the least cost a node that is not too large.

    In the order in which the first of each were taken.
    """
    taken: dict[int, int] = {}
    ends = [_hull(offer.costs, 0, count) for offer in offers]

    def priced(rank: int) -> tuple[float, int]:
        costs, before, upto = offers[rank].costs, taken.get(rank, 0), ends[rank][-1]
        return (costs[upto] - costs[before]) / (upto - before), rank

    heap = [priced(rank) for rank in range(len(offers))]
    heapify(heap)
    while count and heap:
        _, rank = heappop(heap)
        before = taken.get(rank, 0)
        many = ends[rank][-1] - before
        if many > count:  # fewer are left to take by now
            ends[rank] = _hull(offers[rank].costs, before, count)
        else:
            taken[rank] = ends[rank].pop()
            count -= many
        if ends[rank]:
            heappush(heap, priced(rank))
    return taken


def _hull(costs: Sequence[float], before: int, most: int) -> list[int]:
    """The corners of the lower convex hull of `costs` behind `before`, the last first, over `most` of them at most."""
    corners = [before]
    for place in range(before + 1, min(len(costs), before + most + 1)):
        while len(corners) > 1 and _slope(costs, corners[-2], corners[-1]) >= _slope(costs, corners[-1], place):
            corners.pop()
        corners.append(place)
    return corners[:0:-1]


def _slope(costs: Sequence[float], from_: int, to: int) -> float:
    return (costs[to] - costs[from_]) / (to - from_)
