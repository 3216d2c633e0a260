"""The placement of a cell's ranks on nodes, and the links that they communicate over.

Ranks fill nodes one after another: stages in order, the replicas in a stage, the tensor-parallel ranks in a replica. So
the ranks that communicate most are closest (Megatron-LM).
"""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.parallel import Parallel
from sizing.cells.cell import Cell
from sizing.cells.comm.protocol import Link


@dataclass(frozen=True, slots=True)
class Rings:
    """A collective that `at_once` groups run at the same time over the network of the same nodes.

    Together they move as much as one group of all their GPUs with their bytes added up. `link` is that of the one
    group, because sites measure such groups: all GPUs of some nodes.
    """

    link: Link
    at_once: int


def tensor_link(cell: Cell, stage: int, split: Parallel, per_node: int) -> Link:
    """Return the link between the tensor-parallel ranks of one replica of a stage, the worst placed one."""
    close = min(split.tp, per_node, _within(cell, stage, split.tp, per_node))
    return Link(cell.gpu_type, close, split.tp // close)


def data_rings(cell: Cell, stage: int, split: Parallel, per_node: int) -> Rings:
    """Return the rings of the ranks that hold the same part of a stage's weights."""
    per_node = min(per_node, _within(cell, stage, split.gpus, per_node))
    inside = min(split.tp, per_node)
    close = min(split.dp, per_node // inside)
    nodes = split.dp // close
    if nodes == 1:
        return Rings(Link(cell.gpu_type, close, 1), 1)
    return Rings(Link(cell.gpu_type, close * inside, nodes), inside)


def _within(cell: Cell, stage: int, group: int, per_node: int) -> int:
    """Return the GPUs of a `group` within one node: half the group if any group of the stage crosses a node's end.

    If none does, or if groups are larger than a node, return `per_node`.
    """
    first = sum(each.gpus for each in cell.stages[:stage])
    starts = range(first, first + cell.stages[stage].gpus, group)
    across = group <= per_node and any(at // per_node != (at + group - 1) // per_node for at in starts)
    return group // 2 if across else per_node


def boundary_link(cell: Cell, stage: int, per_node: int) -> Link:
    """Return the link between a rank of a stage and its peer in the stage before.

    It is within a node only if all ranks of both stages are on one node.
    """
    before = sum(each.gpus for each in cell.stages[: stage - 1])
    last = before + cell.stages[stage - 1].gpus + cell.stages[stage].gpus - 1
    return Link(cell.gpu_type, 2, 1) if before // per_node == last // per_node else Link(cell.gpu_type, 1, 2)


def usable_per_node(per_node: int) -> int:
    """Return the GPUs of a node that cells can use: the largest power of two."""
    return int(2 ** (per_node.bit_length() - 1))
