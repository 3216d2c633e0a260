"""From counts to nodes: in a cell any nodes that keep what a trainer holds there are as good as any others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from milp.cells import Cell
from milp.problem import Problem


def assign(problem: Problem, counts: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Name the nodes of every trainer, without migration: equations (5)-(10) hold for any counts that fit the pool.

    A trainer that shrinks keeps its most preferred nodes; one that grows keeps all it has and takes the most
    preferred free nodes, trainers in their order. Nodes given up in the same plan are free at once. Nodes are taken
    as one class.
    """
    kept = {trainer.name: _first(problem, trainer.current, counts[trainer.name]) for trainer in problem.trainers}
    return _filled(problem.pool, kept, counts)


def assign_cells(
    problem: Problem, parts: Sequence[Cell], shares: Mapping[str, Sequence[int]]
) -> dict[str, tuple[str, ...]]:
    """The same for a pool of several cells, from every trainer's count in each of them (as many as `parts`).

    Within every cell a trainer must grow, or in every cell shrink, and a group is given out whole.
    """
    if len(parts) == 1:
        return assign(problem, {name: share[0] for name, share in shares.items()})
    assignment: dict[str, tuple[str, ...]] = {trainer.name: () for trainer in problem.trainers}
    for place, part in enumerate(parts):
        inside = set(part.nodes)
        counts = {name: share[place] for name, share in shares.items()}
        held = {t.name: tuple(node for node in t.current if node in inside) for t in problem.trainers}
        kept = {name: _first(problem, nodes, counts[name]) for name, nodes in held.items()}
        for name, nodes in _filled(part.nodes, kept, counts).items():
            assignment[name] += nodes
    for trainer in problem.trainers:
        assignment[trainer.name] = _held_first(assignment[trainer.name], trainer.current)
    return assignment


def _first(problem: Problem, held: tuple[str, ...], count: int) -> tuple[str, ...]:
    """All of `held`, or the `count` most preferred of them."""
    return held if count >= len(held) else tuple(sorted(held, key=problem.pool.__getitem__)[:count])


def _filled(
    nodes: Sequence[str] | Mapping[str, int], kept: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """What is kept, filled up to the counts from the nodes that nobody keeps."""
    taken = {node for mine in kept.values() for node in mine}
    free = [node for node in nodes if node not in taken]
    start = 0
    filled = dict(kept)
    for name, mine in kept.items():
        more = counts[name] - len(mine)
        if more:
            filled[name] = mine + tuple(free[start : start + more])
            start += more
    return filled


def _held_first(nodes: tuple[str, ...], held: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes with those that are held in front, in the order they are held."""
    given, had = set(nodes), set(held)
    return (*(node for node in held if node in given), *(node for node in nodes if node not in had))
