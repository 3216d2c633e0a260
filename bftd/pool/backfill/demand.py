"""The number of nodes that a waiting job needs in one of its partitions, and the nodes that would do. Pure.

Not considered: `--switches`, a job's wishes about sockets, cores and threads, and GPUs that it asks for in total
instead of per node. Such a job may be taken for one that fits: nodes are earmarked, and the job is backed off if it
does not start there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bftd.pool.backfill.features import FeatureChoice, choose
from bftd.pool.backfill.model import Component
from bftd.pool.backfill.sizes import NodeDemand, gpus_asked
from bftd.pool.backfill.topology import Layout, remembered
from slurm_plugin.read.types import JobRequest


@dataclass(frozen=True, slots=True)
class Demand:
    """The `parts` a job needs at once.

    It `asks` for this much of each node that it shares, and `together` such jobs fit on one node.
    """

    parts: tuple[Component, ...]
    asks: NodeDemand
    together: int


@remembered(1 << 12)
def demand(layout: Layout, partition: str, request: JobRequest, node_count: int) -> Demand | None:
    """Return the demand of a job with this request; None if these nodes can never meet it.

    Slurm shows too small a `node_count` for a job that asked for CPUs or tasks only, until it has looked at it.
    """
    within = layout.by_partition.get(partition, 0)
    chosen = choose(request.features, layout.by_feature, within)
    gpus = gpus_asked(request.gres)
    able = chosen.allowed & ~layout.mask(request.excluded)
    able &= layout.sizes.holding(NodeDemand(request.cpus_per_node, _memory_bytes(request, request.cpus_per_node), gpus))
    required = layout.mask(request.required)
    if required.bit_count() < len(set(request.required)):
        return None
    need = max(1, node_count, required.bit_count(), sum(count for _, count in chosen.counted))
    if (fewest := layout.sizes.fewest(able, request.cpus)) is None:
        return None
    need = max(need, fewest)
    # even with all others as large as possible, a node must have this many
    least = request.cpus - (need - 1) * layout.sizes.most_cpus(able)
    if least > 0:
        able &= layout.sizes.cpus(least)
    parts = _parts(chosen, able, need, required, request.contiguous)
    if parts is None:
        return None
    share = max(request.cpus_per_node, -(-request.cpus // need), 1)
    asks = NodeDemand(share, _memory_bytes(request, share), gpus)
    together = layout.sizes.together(able, asks)
    return Demand(tuple(replace(part, within=within) for part in parts), asks, together)


def _memory_bytes(request: JobRequest, cpus: int) -> int:
    """Return the memory that a job asks for on a node on which it has `cpus` CPUs."""
    return request.memory_bytes * max(1, cpus) if request.memory_per_cpu else request.memory_bytes


def _parts(
    chosen: FeatureChoice, able: int, need: int, required: int, contiguous: bool
) -> tuple[Component, ...] | None:
    if chosen.counted:
        return _counted(chosen, able, need, required)
    if able.bit_count() < need or required & ~able:
        return None
    if not chosen.either:
        return (Component(able, need, required, contiguous),)
    either = tuple(one & able for one in chosen.either)
    either = tuple(one for one in either if one.bit_count() >= need and not required & ~one)
    if not either:
        return None
    if len(either) == 1:
        return (Component(either[0], need, required, contiguous),)
    allowed = 0
    for one in either:
        allowed |= one
    return (Component(allowed, need, required, contiguous, either),)


def _counted(chosen: FeatureChoice, able: int, need: int, required: int) -> tuple[Component, ...] | None:
    """Return a part for each set with a count, and one for the other nodes. Neighbours are not required."""
    wanted = [(mask & able, count) for mask, count in chosen.counted]
    wanted.sort(key=lambda one: one[0].bit_count() - one[1])  # those with the least choice are served first
    if (others := need - sum(count for _, count in wanted)) > 0:
        wanted.append((able, others))
    parts = []
    for mask, count in wanted:
        mine = _some(required & mask, count)
        required &= ~mine
        if mask.bit_count() < count:
            return None
        parts.append(Component(mask, count, mine))
    return None if required or able.bit_count() < need else tuple(parts)


def _some(mask: int, count: int) -> int:
    """Return the first `count` nodes of a set, or all."""
    some = 0
    while mask and count > 0:
        lowest = mask & -mask
        some |= lowest
        mask ^= lowest
        count -= 1
    return some
