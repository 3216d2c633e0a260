"""From counts to nodes: on interchangeable nodes any set that keeps what a trainer holds is as good as any other."""

from __future__ import annotations

from collections.abc import Mapping

from milp.model import Problem


def assign(problem: Problem, counts: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Name the nodes of every trainer, without migration: equations (5)-(10) hold for any counts that fit the pool.

    A trainer that shrinks keeps its most preferred nodes; one that grows keeps all it has and takes the most
    preferred free nodes, trainers in their order. Nodes given up in the same plan are free at once. Nodes are taken
    as one class.
    """
    place = problem.pool.__getitem__
    assignment: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for trainer in problem.trainers:
        kept = trainer.current
        count = counts[trainer.name]
        if count < len(kept):
            kept = tuple(sorted(kept, key=place)[:count])
        assignment[trainer.name] = kept
        taken.update(kept)
    free = [name for name in problem.pool if name not in taken]
    start = 0
    for trainer in problem.trainers:
        more = counts[trainer.name] - len(assignment[trainer.name])
        if more:
            assignment[trainer.name] += tuple(free[start : start + more])
            start += more
    return assignment
