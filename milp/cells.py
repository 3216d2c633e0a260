"""Cells: the parts of the pool whose nodes are interchangeable, so that a count per cell says all about a map."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from milp.problem import Problem


@dataclass(frozen=True)
class Cell:
    """Nodes of one class in order of preference, or where `whole` a group that is given out whole or not at all."""

    nodes: tuple[str, ...]
    classes: frozenset[str]
    whole: bool


def cells(problem: Problem) -> tuple[Cell, ...]:
    """A cell for the ungrouped nodes of every class, then one for every group of more than one node."""
    groups = [group for group in problem.groups if len(group.nodes) > 1]
    grouped = {node for group in groups for node in group.nodes}
    by_class: dict[str, list[str]] = {name: [] for name in problem.classes}
    for node in problem.nodes:
        if node.name not in grouped:
            by_class[node.node_class].append(node.name)
    plain = [Cell(tuple(nodes), frozenset({name}), False) for name, nodes in by_class.items() if nodes]
    return (*plain, *(Cell(group.nodes, problem.classes_of(group.nodes), True) for group in groups))


def counts_in(nodes: Collection[str], parts: Sequence[Cell]) -> tuple[int, ...]:
    """How many of `nodes` are in each cell."""
    if len(parts) == 1:
        return (len(nodes),)
    inside = set(nodes)
    return tuple(sum(node in inside for node in part.nodes) for part in parts)


def sums(sizes: Iterable[int]) -> frozenset[int]:
    """Every total that some of the `sizes` add up to, 0 included."""
    reached = {0}
    for size in sizes:
        reached |= {total + size for total in reached}
    return frozenset(reached)
