"""The transfers between two stages of a pipeline, which may have different splits."""

from __future__ import annotations

from sizing.base.errors import NoTable
from sizing.base.estimate import Estimate, worst
from sizing.base.parallel import Parallel
from sizing.cells.cell import Cell
from sizing.cells.comm.protocol import Communication, Link
from sizing.cells.placing import boundary_link, tensor_link

NOTHING = Estimate(0.0, 0.0, 0.0, "measured")


def total(*parts: Estimate) -> Estimate:
    """Return the sum of estimates, as of events one after another."""
    return Estimate(
        sum(part.value for part in parts),
        sum(part.low for part in parts),
        sum(part.high for part in parts),
        worst(*(part.origin for part in parts)),
    )


def times(count: float, part: Estimate) -> Estimate:
    """Return `count` times an estimate."""
    return Estimate(count * part.value, count * part.low, count * part.high, part.origin)


def transfer(
    cell: Cell, stage: int, sent_bytes: float, before: Parallel, own: Parallel, comm: Communication, per_node: int
) -> Estimate:
    """Estimate the seconds for a micro-batch's activations into a stage and their gradients back.

    `sent_bytes` are those of the whole micro-batch. Each tensor-parallel rank needs all activations of its replica. It
    can receive all of them from its peers, or a part that the ranks then gather among themselves (Crius's send/recv
    with all_gather; Megatron-LM's scatter/gather). The faster way counts.
    """
    peers = boundary_link(cell, stage, per_node)
    forward = _one_way(sent_bytes, before, own, comm, peers, tensor_link(cell, stage, own, per_node))
    backward = _one_way(sent_bytes, own, before, comm, peers, tensor_link(cell, stage - 1, before, per_node))
    return total(forward, backward)


def _one_way(
    sent_bytes: float, source: Parallel, target: Parallel, comm: Communication, peers: Link, gathering: Link
) -> Estimate:
    into = sent_bytes / target.dp
    # each tensor-parallel rank of the target receives all data of its replica, and all source ranks share the sending
    out = sent_bytes * target.tp / source.gpus
    whole = comm.time_s("send_recv", max(into, out), peers)
    if target.tp == 1:
        return whole
    try:
        gathered = comm.time_s("all_gather", into, gathering)
    except NoTable:
        return whole
    part = comm.time_s("send_recv", sent_bytes / min(source.gpus, target.gpus), peers)
    return min(whole, total(part, gathered), key=lambda way: way.value)
