"""What goes between two stages of a pipeline, also where they are split differently."""

from __future__ import annotations

from sizing.cells.cell import Cell, Split
from sizing.cells.links import Communication, Link
from sizing.cells.placing import boundary_link, tensor_link
from sizing.errors import NoTable
from sizing.estimate import Estimate, worst

NOTHING = Estimate(0.0, 0.0, 0.0, "measured")


def total(*parts: Estimate) -> Estimate:
    """All of them one after another."""
    return Estimate(
        sum(part.value for part in parts),
        sum(part.low for part in parts),
        sum(part.high for part in parts),
        worst(*(part.origin for part in parts)),
    )


def times(count: float, part: Estimate) -> Estimate:
    """The same so many times."""
    return Estimate(count * part.value, count * part.low, count * part.high, part.origin)


def transfer(
    cell: Cell, stage: int, sent_bytes: float, before: Split, own: Split, comm: Communication, per_node: int
) -> Estimate:
    """Activations of a micro-batch into a stage and their gradients back, in seconds.

    `sent_bytes` are those of the whole micro-batch. Each tensor-parallel rank of a replica needs all of its replica's,
    so there are two ways: each gets them whole from its peers, or each gets a part and they gather it among themselves
    (Crius's send/recv with all_gather; Megatron-LM's scatter/gather). The quicker one counts.
    """
    peers = boundary_link(cell, stage, per_node)
    forward = _one_way(sent_bytes, before, own, comm, peers, tensor_link(cell, stage, own, per_node))
    backward = _one_way(sent_bytes, own, before, comm, peers, tensor_link(cell, stage - 1, before, per_node))
    return total(forward, backward)


def _one_way(
    sent_bytes: float, source: Split, target: Split, comm: Communication, peers: Link, gathering: Link
) -> Estimate:
    into = sent_bytes / target.dp
    # each of a target's tensor-parallel ranks is sent all that its replica needs, and all sources take part in it
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
