"""The order of nodes in plans, and the nodes that a shrinking trainer keeps: those that work.

A plan counts nodes and names those that stay longest in the pool. A node that does not work yet brings nothing for a
while, and a trainer that kept only such nodes would be suspended for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from math import inf
from operator import attrgetter

from bftd.core.model.domain import Assignment, PoolNode
from bftd.core.model.draft import Draft

# Read from thousands of nodes at a time.
_IN_POOL, _WINDOW_S = attrgetter("in_pool"), attrgetter("window_s")
_CO_LOCATED, _UNHEARD = attrgetter("co_located"), attrgetter("unheard")


def by_preference(pool: Mapping[str, PoolNode]) -> list[str]:
    """Return the names of the pool's nodes, those that stay longest first, then n10 before n2.

    Slurm takes the first nodes first: they stay idle for regular jobs where trainers do not want all. Before all others
    come the nodes that regular jobs share, and those that have not answered Slurm: a trainer that has one keeps it
    rather than another, as no other trainer could have it.
    """
    names = sorted(compress(pool, map(_IN_POOL, pool.values())), reverse=True)
    names.sort(key=len, reverse=True)
    if any(window_s is not None for window_s in set(map(_WINDOW_S, pool.values()))):
        planned = {name: -node.window_s for name, node in pool.items() if node.window_s is not None}
        names.sort(key=lambda name: planned.get(name, -inf))
    if any(map(_CO_LOCATED, pool.values())) or any(map(_UNHEARD, pool.values())):
        names.sort(key=lambda name: not (pool[name].co_located or pool[name].unheard))
    return names


def keep_working(turn: Draft, assignment: Assignment, held: Assignment) -> Assignment:
    """Return the same plan, except that a shrinking trainer gives back nodes that do not work yet before those that do.

    Two nodes of one class change places, even if another trainer is to get the node that is given back.
    """
    places: dict[str, str] = {}
    for trainer, mine in held.items():
        planned = set(assignment.get(trainer, ()))
        kept = [node for node in mine if node in planned]
        if 0 < len(kept) < len(mine):
            places |= _exchanged(turn, kept, [node for node in mine if node not in planned])
    if not places:
        return assignment
    return {trainer: tuple(places.get(node, node) for node in nodes) for trainer, nodes in assignment.items()}


def working_first(turn: Draft, nodes: Sequence[str]) -> list[str]:
    """Sort some leased nodes, those first whose workers take part in training."""
    at_work = _working(turn, nodes)
    return sorted(nodes, key=lambda node: node not in at_work)


def _working(turn: Draft, nodes: Sequence[str]) -> set[str]:
    leases = map(turn.lease_on, nodes)
    return {lease.node for lease in leases if lease is not None and lease.phase == "working"}


def _exchanged(turn: Draft, kept: Sequence[str], dropped: Sequence[str]) -> dict[str, str]:
    """Pair each kept node that does not work yet with a dropped one that does, each mapped to the other."""
    at_work = _working(turn, (*kept, *dropped))
    # a dropped node may have left the pool: then no trainer can keep it
    there = turn.pool.nodes
    better = [node for node in dropped if node in at_work and node in there and there[node].in_pool]
    places: dict[str, str] = {}
    for idle in (node for node in reversed(kept) if node not in at_work):
        alike = (node for node in better if node not in places and turn.class_of(node) == turn.class_of(idle))
        if (node := next(alike, None)) is not None:
            places |= {idle: node, node: idle}
    return places
