"""Maps of the pool: blocks of interchangeable nodes, the choice of nodes for counts, and the map that stays.

Without migration all choices of nodes within a block are equally good, so a count per block describes a map. Doing
nothing is the current map as far as it is allowed: the answer if no solver has a better one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, filterfalse, islice

from milp.problem import Problem, TrainerSpec
from milp.utility import outcome


@dataclass(frozen=True)
class NodeBlock:
    """Nodes of one class in order of preference, or, if `whole`, a group that is given out whole or not at all."""

    nodes: tuple[str, ...]
    classes: frozenset[str]
    whole: bool

    @cached_property
    def members(self) -> frozenset[str]:
        """The nodes as a set."""
        return frozenset(self.nodes)


def blocks(problem: Problem) -> tuple[NodeBlock, ...]:
    """Return a block for the ungrouped nodes of every class, then one for every group of more than one node."""
    groups = [group for group in problem.groups if len(group.nodes) > 1]
    grouped = {node for group in groups for node in group.nodes}
    by_class: dict[str, list[str]] = {name: [] for name in problem.classes}
    for node in problem.nodes:
        if node.name not in grouped:
            by_class[node.node_class].append(node.name)
    plain = [NodeBlock(tuple(nodes), frozenset({name}), False) for name, nodes in by_class.items() if nodes]
    return (*plain, *(NodeBlock(group.nodes, problem.classes_of(group.nodes), True) for group in groups))


def counts_in(nodes: Collection[str], parts: Sequence[NodeBlock]) -> tuple[int, ...]:
    """Count the `nodes` in each block."""
    if len(parts) == 1:
        return (len(nodes),)
    inside = set(nodes)
    return tuple(len(inside & part.members) for part in parts)


def sums(sizes: Iterable[int]) -> frozenset[int]:
    """Return every total that some of the `sizes` add up to, including 0."""
    reached = {0}
    for size in sizes:
        reached |= {total + size for total in reached}
    return frozenset(reached)


def assign(problem: Problem, counts: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Name the nodes of every trainer, without migration: equations (5)-(10) hold for any counts that fit the pool.

    A trainer that shrinks keeps its most preferred nodes; one that grows keeps all it has and takes the most
    preferred free nodes, trainers in their order. Nodes given up in the same plan are free at once. Nodes are taken
    as one class.
    """
    kept = {trainer.name: _first(problem, trainer.current, counts[trainer.name]) for trainer in problem.trainers}
    taken: Collection[str] = problem.held
    shrinking = [trainer for trainer in problem.trainers if counts[trainer.name] < len(trainer.current)]
    if shrinking:
        taken = set(taken)
        for trainer in shrinking:
            taken.difference_update(trainer.current)
            taken.update(kept[trainer.name])
    return _filled(problem.pool, taken, kept, counts)


def assign_blocks(
    problem: Problem, parts: Sequence[NodeBlock], shares: Mapping[str, Sequence[int]]
) -> dict[str, tuple[str, ...]]:
    """Name the nodes of every trainer in a pool of several blocks, from its count in each block (as many as `parts`).

    In each block a trainer keeps its nodes first, as in `assign`. Its counts must grow in every block or shrink in
    every block, and a group is given out whole.
    """
    if len(parts) == 1:
        return assign(problem, {name: share[0] for name, share in shares.items()})
    assignment: dict[str, tuple[str, ...]] = {trainer.name: () for trainer in problem.trainers}
    for place, part in enumerate(parts):
        inside = set(part.nodes)
        counts = {name: share[place] for name, share in shares.items()}
        held = {t.name: tuple(node for node in t.current if node in inside) for t in problem.trainers}
        kept = {name: _first(problem, nodes, counts[name]) for name, nodes in held.items()}
        taken = frozenset(chain.from_iterable(kept.values()))
        for name, nodes in _filled(part.nodes, taken, kept, counts).items():
            assignment[name] += nodes
    for trainer in problem.trainers:
        assignment[trainer.name] = _held_first(assignment[trainer.name], trainer.current)
    return assignment


def _first(problem: Problem, held: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return all of `held`, or the `count` most preferred of them."""
    return held if count >= len(held) else tuple(sorted(held, key=problem.pool.__getitem__)[:count])


def _filled(
    nodes: Iterable[str], taken: Collection[str], kept: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Return the kept nodes, filled up to the counts from the nodes that are not `taken` (all nodes kept by anyone)."""
    filled = dict(kept)
    growing = [(name, more) for name, mine in kept.items() if (more := counts[name] - len(mine))]
    if not growing:
        return filled
    free = filterfalse(taken.__contains__, nodes)
    for name, more in growing:
        filled[name] += tuple(islice(free, more))
    return filled


def _held_first(nodes: tuple[str, ...], held: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes with the held ones in front, in the order they are held."""
    given, had = set(nodes), set(held)
    return (*(node for node in held if node in given), *(node for node in nodes if node not in had))


def keep(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Let every trainer keep its nodes, or as many as its sizes and caps allow, earlier trainers first.

    No trainer gets a node that it does not hold, so this needs no solving and is never infeasible.
    """
    parts = blocks(problem)
    left = {cap: cap.nodes_max for cap in problem.caps}
    shares: dict[str, tuple[int, ...]] = {}
    for trainer in problem.trainers:
        caps = [cap for cap in problem.caps if cap.covers(trainer.user, trainer.account)]
        at_most = min((left[cap] for cap in caps), default=len(problem.nodes))
        shares[trainer.name] = _share(problem, trainer, parts, at_most)
        for cap in caps:
            left[cap] -= sum(shares[trainer.name])
    return assign_blocks(problem, parts, shares)


def _share(problem: Problem, trainer: TrainerSpec, parts: tuple[NodeBlock, ...], at_most: int) -> tuple[int, ...]:
    """Return the counts per block that the trainer keeps."""
    held = counts_in(trainer.current, parts)
    # Part of a group is of no use: a group is kept whole or not at all.
    usable = [0 if part.whole and count < len(part.nodes) else count for part, count in zip(parts, held, strict=True)]
    if trainer.only_classes is not None:
        allowed = [part.classes <= set(trainer.only_classes) for part in parts]
        usable = [count if may_use else 0 for may_use, count in zip(allowed, usable, strict=True)]
    if trainer.mixes_classes or len(problem.classes) <= 1:
        return _largest(trainer, parts, usable, at_most)
    kept = []
    for name in problem.classes:
        of_class = [count if part.classes == {name} else 0 for part, count in zip(parts, usable, strict=True)]
        kept.append((_largest(trainer, parts, of_class, at_most), {name}))
    return max(kept, key=lambda share: (outcome(problem, trainer, sum(share[0]), share[1]), sum(share[0])))[0]


def _largest(trainer: TrainerSpec, parts: tuple[NodeBlock, ...], usable: list[int], at_most: int) -> tuple[int, ...]:
    """Return the most of the `usable` counts that make an allowed size: whole groups, and any part of the rest."""
    loose = sum(count for part, count in zip(parts, usable, strict=True) if not part.whole)
    groups = [place for place, part in enumerate(parts) if part.whole and usable[place]]
    totals = sums(usable[place] for place in groups)
    size = trainer.largest_allowed(min(sum(usable), at_most))
    while size and not any(size - loose <= total <= size for total in totals):
        size = trainer.largest_allowed(size - 1)
    wanted = max((total for total in totals if size - loose <= total <= size), default=0)
    shares = [0] * len(parts)
    for at, place in enumerate(groups):
        if wanted - usable[place] in sums(usable[later] for later in groups[at + 1 :]):
            shares[place] = usable[place]
            wanted -= usable[place]
    left = size - sum(shares)
    for place, part in enumerate(parts):
        if not part.whole:
            shares[place] = min(usable[place], left)
            left -= shares[place]
    return tuple(shares)
