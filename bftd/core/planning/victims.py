"""The choice between equal leased nodes for a regular job: those whose leaving costs the trainers least.

The cost of some nodes of one trainer is its loss of output over t_fwd, by the values that a plan uses, plus the stall
of its resize, counted once however many of its nodes leave. Among all trainers the nodes are taken in groups of the
least cost per node (the lower convex hull of each trainer's costs), since the second node of a trainer that is resized
anyway is cheaper than the first of another, and a trainer that falls below its least size loses all that it has left at
once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from heapq import heapify, heappop, heappush
from operator import or_

from bftd.core.model import classes, objective
from bftd.core.model.domain import State, Trainer
from bftd.core.model.timing import EXPIRY_AHEAD_S
from bftd.core.scaling import learning
from milp import interpolate

# The weight of a node that does not work yet: nothing done there is lost, and no resize is needed. What it would have
# brought counts for a little, so that a start is not broken up if a node of another trainer does as well.
_UNUSED_WEIGHT = 0.01


def of(state: State) -> TrainersLoss:
    """Return the cost of leaving for the trainers of a state; nothing is computed before it is asked for."""
    return TrainersLoss(state)


@dataclass(frozen=True, slots=True)
class _Holding:
    """A trainer with all its live leases; the nodes of `working` leases train; `touched` if it shrinks anyway.

    `value` gives the worth of a number of nodes to the plan, per second.
    """

    trainer: Trainer
    live: int
    working: int
    touched: bool
    value: Callable[[int], float]


class TrainersLoss:
    """The cost of leaving, from the leases and trainers of one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def chooser(self, bit: Mapping[str, int]) -> Offers:
        """Return the chooser for `bftd.pool.victims.Leaving`: sets of nodes are masks, in which each has its `bit`."""
        held: dict[str, dict[float, int]] = defaultdict(dict)
        for node, (trainer, key) in self._keys.items():
            groups = held[trainer]
            groups[key] = groups.get(key, 0) | bit.get(node, 0)
        return Offers([_Trainer(self, id_, sorted(groups.items())) for id_, groups in held.items()])

    def asked(self, id_: str, keys: Iterable[float], gone_unused: int, gone_working: int) -> Iterator[float]:
        """Yield the cost to a trainer of each node that leaves after those before it, from the keys that order them.

        A key is 0 for a node that does not work yet, else 1 plus the part of t_fwd for which it would work. A pilot
        that ends within t_fwd costs only what it would have made until then, and its resize comes anyway.
        """
        holding = self._holdings[id_]
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
        """Each node with a live lease: its trainer, and the key that `asked` explains."""
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
        guess = learning.median_rate_per_node(trainer.knowledge for trainer in trainers.values() if trainer.active)
        return {
            id_: _Holding(
                trainers[id_], count, working[id_], id_ in shrinking, self._value_of(trainers[id_], first[id_], guess)
            )
            for id_, count in live.items()
        }

    def _value_of(self, trainer: Trainer, node: str, guess: float) -> Callable[[int], float]:
        """Return the worth of a number of nodes to a trainer that works on `node`, as the plan weighs them."""
        settings, pool, knowledge, high = self._state.settings, self._state.pool, trainer.knowledge, trainer.sizes.high
        points, one_node = learning.curve(knowledge, high, guess), None
        requirements = trainer.request.requirements
        if len(pool.classes) > 1 and knowledge.by_class and not requirements.mix and node in pool.nodes:
            kind = pool.nodes[node].node_class
            names = {*classes.usable(pool.classes, requirements, trainer.request.partition), kind}
            curves, one_node = learning.curves_on(knowledge, high, names)
            points = curves[kind]
        weighed = trainer.request.weight
        points, weight = objective.values(
            points, settings.decide.objective, weighed, one_node, measured=settings.trusting
        )
        return lambda count: weight * interpolate(points, count)


class Offers:
    """The costs of all trainers' nodes, kept from one call to the next, as little changes between two calls.

    The tasks of an array ask one after another, a thousand times, and only a trainer that gave a node to the last one
    computes its costs anew.
    """

    def __init__(self, trainers: Sequence[_Trainer]) -> None:
        self._trainers = trainers
        self._live = reduce(or_, (trainer.all for trainer in trainers), 0)
        self._mask = self._already = 0
        self._offers: dict[int, _Offer] = {}

    def __call__(self, mask: int, count: int, already: int) -> int:
        """Return `count` of the leased nodes of `mask`, those first whose leaving costs least once `already` have left.

        Return all of them if there are no more. Among nodes that cost the same the lower bit decides.
        """
        if count >= mask.bit_count():
            return mask
        chosen = _first(mask & ~self._live, count)
        count -= chosen.bit_count()
        if count <= 0:
            return chosen
        self._ask(mask, already)
        offers = self._offers
        if count == 1:
            _, _, rank = min([offer.one for offer in offers.values()])
            return chosen | offers[rank].nodes(1)
        taken = _greedy(offers, count)
        # one trainer alone may be cheaper than the remains of several
        whole = [(offer.cost(count), offer.first, rank) for rank, offer in offers.items() if offer.size >= count]
        if whole and min(whole)[0] < sum(offers[rank].cost(many) for rank, many in taken.items()):
            taken = {min(whole)[2]: count}
        return reduce(or_, (offers[rank].nodes(many) for rank, many in taken.items()), chosen)

    def cost(self, mask: int, already: int = 0) -> float:
        """Return the loss if all these nodes leave, in the units of the objective."""
        self._ask(mask, already)
        return sum(offer.cost(offer.size) for offer in self._offers.values())

    def _ask(self, mask: int, already: int) -> None:
        """Renew the offers of trainers for which the nodes asked for, or those that have left already, have changed."""
        changed = (mask ^ self._mask | already ^ self._already) & self._live
        self._mask, self._already = mask, already
        if not changed:
            return
        for rank, trainer in enumerate(self._trainers):
            if trainer.all & changed:
                if mine := mask & trainer.all:
                    self._offers[rank] = _Offer(trainer, rank, mine, already)
                else:
                    self._offers.pop(rank, None)


class _Trainer:
    """The nodes of one trainer's live leases, in groups of equal keys in the order in which they leave."""

    __slots__ = ("all", "groups", "id", "loss", "working")

    def __init__(self, loss: TrainersLoss, id_: str, groups: Sequence[tuple[float, int]]) -> None:
        self.loss = loss
        self.id = id_
        self.groups = groups
        self.all = reduce(or_, (mask for _, mask in groups), 0)
        self.working = reduce(or_, (mask for key, mask in groups if key >= 1.0), 0)


class _Offer:
    """Some of one trainer's nodes in the order in which they leave, and the cost of the first 0, 1, 2, ... of them."""

    __slots__ = ("_asked", "_costs", "_groups", "_hulls", "first", "one", "size")

    def __init__(self, trainer: _Trainer, rank: int, mine: int, already: int) -> None:
        self._groups = [(key, some) for key, mask in trainer.groups if (some := mask & mine)]
        self.size = mine.bit_count()
        # among offers of the same cost, the one with the lowest bit comes first
        self.first = mine & -mine
        gone_working = (already & trainer.working).bit_count()
        gone_unused = (already & trainer.all).bit_count() - gone_working
        keys = (key for key, mask in self._groups for _ in range(mask.bit_count()))
        self._asked = trainer.loss.asked(trainer.id, keys, gone_unused, gone_working)
        self._costs = [0.0]
        self._hulls: dict[tuple[int, int], tuple[int, ...]] = {}
        self.one = (self.cost(1), self.first, rank)

    def cost(self, many: int) -> float:
        """Return the cost of the first `many` together."""
        costs = self._costs
        while len(costs) <= many:
            costs.append(costs[-1] + next(self._asked))
        return costs[many]

    def nodes(self, many: int) -> int:
        """Return the first `many` nodes."""
        chosen = 0
        for _, mask in self._groups:
            chosen |= _first(mask, many - chosen.bit_count())
        return chosen

    def hull(self, before: int, most: int) -> tuple[int, ...]:
        """Return the corners of the lower convex hull of the costs after `before`, in reverse, over `most` nodes."""
        found = self._hulls.get((before, most))
        if found is None:
            found = self._hulls[before, most] = self._hull(before, min(self.size, before + most))
        return found

    def _hull(self, before: int, upto: int) -> tuple[int, ...]:
        corners = [before]
        for place in range(before + 1, upto + 1):
            while len(corners) > 1 and self.slope(corners[-2], corners[-1]) >= self.slope(corners[-1], place):
                corners.pop()
            corners.append(place)
        return tuple(corners[:0:-1])

    def slope(self, from_: int, to: int) -> float:
        """Return the cost per node of those from one number to another."""
        return (self.cost(to) - self.cost(from_)) / (to - from_)


def _greedy(offers: Mapping[int, _Offer], count: int) -> dict[int, int]:
    """Return how many nodes of each offer to take: again and again the cheapest group per node that is not too large.

    The result is in the order in which the first of each were taken.
    """
    taken: dict[int, int] = {}
    ends = {rank: list(offer.hull(0, count)) for rank, offer in offers.items()}

    def priced(rank: int) -> tuple[float, int, int]:
        offer = offers[rank]
        return offer.slope(taken.get(rank, 0), ends[rank][-1]), offer.first, rank

    heap = [priced(rank) for rank in offers]
    heapify(heap)
    while count and heap:
        _, _, rank = heappop(heap)
        before = taken.get(rank, 0)
        many = ends[rank][-1] - before
        if many > count:  # the group is larger than what is left to take
            ends[rank] = list(offers[rank].hull(before, count))
        else:
            taken[rank] = ends[rank].pop()
            count -= many
        if ends[rank]:
            heappush(heap, priced(rank))
    return taken


def _first(mask: int, count: int) -> int:
    """Return the first `count` nodes of a set, or all."""
    if mask.bit_count() <= count:
        return mask
    left = mask
    for _ in range(count):
        left &= left - 1
    return mask ^ left
