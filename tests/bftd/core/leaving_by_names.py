"""Who leaves, worked out anew for every question, from names: what `bftd.core.planning.victims` must agree with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate

from bftd.core.planning.victims import TrainersLoss

Offer = tuple[tuple[str, ...], tuple[float, ...]]


def cheapest(loss: TrainersLoss, nodes: Sequence[str], count: int, already: Collection[str]) -> Sequence[str]:
    """`count` of the leased `nodes`, those first whose leaving costs least once those of `already` have left."""
    if count >= len(nodes):
        return tuple(nodes)
    free = tuple(node for node in nodes if node not in loss._keys)[: max(0, count)]
    count -= len(free)
    if count <= 0:
        return free
    offers = _offers(loss, nodes, count, frozenset(already))
    taken = _greedy(offers, count)
    whole = [(costs[count], rank) for rank, (names, costs) in enumerate(offers) if len(names) >= count]
    if whole and min(whole)[0] < sum(offers[rank][1][many] for rank, many in taken.items()):
        taken = {min(whole)[1]: count}
    return (*free, *(node for rank, many in taken.items() for node in offers[rank][0][:many]))


def _offers(loss: TrainersLoss, nodes: Sequence[str], count: int, already: frozenset[str]) -> list[Offer]:
    mine: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for place, node in enumerate(nodes):
        if (found := loss._keys.get(node)) is not None:
            mine[found[0]].append((found[1], place, node))
    gone: Counter[tuple[str, bool]] = Counter()
    for node in already:
        if (found := loss._keys.get(node)) is not None:
            gone[found[0], found[1] >= 1.0] += 1
    offers = []
    for id_, keyed in mine.items():
        keyed.sort()
        first = [key for key, _, _ in keyed[:count]]
        asked = loss.asked(id_, first, gone[id_, False], gone[id_, True])
        offers.append((tuple(name for _, _, name in keyed), (0.0, *accumulate(asked))))
    return offers


def _greedy(offers: Sequence[Offer], count: int) -> dict[int, int]:
    taken: dict[int, int] = {}
    ends = [_hull(costs, 0, count) for _, costs in offers]

    def priced(rank: int) -> tuple[float, int]:
        return _slope(offers[rank][1], taken.get(rank, 0), ends[rank][-1]), rank

    heap = [priced(rank) for rank in range(len(offers))]
    heapify(heap)
    while count and heap:
        _, rank = heappop(heap)
        before = taken.get(rank, 0)
        many = ends[rank][-1] - before
        if many > count:
            ends[rank] = _hull(offers[rank][1], before, count)
        else:
            taken[rank] = ends[rank].pop()
            count -= many
        if ends[rank]:
            heappush(heap, priced(rank))
    return taken


def _hull(costs: Sequence[float], before: int, most: int) -> list[int]:
    corners = [before]
    for place in range(before + 1, min(len(costs), before + most + 1)):
        while len(corners) > 1 and _slope(costs, corners[-2], corners[-1]) >= _slope(costs, corners[-1], place):
            corners.pop()
        corners.append(place)
    return corners[:0:-1]


def _slope(costs: Sequence[float], from_: int, to: int) -> float:
    return (costs[to] - costs[from_]) / (to - from_)
