"""The nodes that a shrinking trainer keeps: those that work.

A plan counts nodes and names those that stay longest in the pool. A node that does not work yet brings nothing for a
while, and a trainer that kept only such nodes would be suspended for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftd.core.model.domain import Assignment
from bftd.core.model.draft import Draft


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
