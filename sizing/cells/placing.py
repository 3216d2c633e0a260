"""Where the ranks of a cell's stages lie, and so over which links they speak.

Ranks fill nodes one after another: stages in order, in a stage its replicas, in a replica its tensor-parallel ranks, so
that the most talkative are the closest (Megatron-LM).
"""

from __future__ import annotations

from dataclasses import dataclass

from sizing.cells.cell import Cell, Split
from sizing.cells.links import Link


@dataclass(frozen=True, slots=True)
class Rings:
    """A collective of `at_once` groups that share their nodes' ways out, as a table of one group is asked for it.

    Together they move what one group of all their GPUs would with their bytes added up, and that is the group which
    sites measure: all GPUs of some nodes.
    """

    link: Link
    at_once: int


def tensor_link(cell: Cell, stage: int, split: Split, per_node: int) -> Link:
    """Of the tensor-parallel ranks of one replica of a stage; of the replica that lies worst."""
    close = min(split.tp, per_node, _within(cell, stage, split.tp, per_node))
    return Link(cell.gpu_type, close, split.tp // close)


def data_rings(cell: Cell, stage: int, split: Split, per_node: int) -> Rings:
    """Of the ranks that hold the same part of a stage's weights."""
    per_node = min(per_node, _within(cell, stage, split.gpus, per_node))
    inside = min(split.tp, per_node)
    close = min(split.dp, per_node // inside)
    nodes = split.dp // close
    if nodes == 1:
        return Rings(Link(cell.gpu_type, close, 1), 1)
    return Rings(Link(cell.gpu_type, close * inside, nodes), inside)


def _within(cell: Cell, stage: int, group: int, per_node: int) -> int:
    """How many GPUs a node has of each `group` of a stage's: half of it where one lies across the end of a node."""
    first = sum(each.gpus for each in cell.stages[:stage])
    starts = range(first, first + cell.stages[stage].gpus, group)
    across = group <= per_node and any(at // per_node != (at + group - 1) // per_node for at in starts)
    return group // 2 if across else per_node


def boundary_link(cell: Cell, stage: int, per_node: int) -> Link:
    """Between a rank of a stage and its peer in the stage before it: within a node only where all of both are."""
    before = sum(each.gpus for each in cell.stages[: stage - 1])
    last = before + cell.stages[stage - 1].gpus + cell.stages[stage].gpus - 1
    return Link(cell.gpu_type, 2, 1) if before // per_node == last // per_node else Link(cell.gpu_type, 1, 2)


def usable_per_node(per_node: int) -> int:
    """The GPUs of a node that cells use: a power of two."""
    return int(2 ** (per_node.bit_length() - 1))
