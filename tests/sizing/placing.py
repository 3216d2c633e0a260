"""Small clusters and plans for tests of placements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from sizing.choice.place import PlacementRequest
from sizing.inventory.gpus import CATALOGUE, GIB
from sizing.inventory.inventory import GpuNodes, Inventory, PartitionOffer

# From the smallest memory on: 14, 39, 79 and 139 GiB.
TYPES = ("t4", "a100-sxm-40gb", "h100-sxm-80gb", "h200-sxm-141gb")


def group(gpu_type: str, idle: Mapping[str, int], gpus: int = 8, **fields: object) -> GpuNodes:
    """Nodes of eight GPUs, 64 CPUs and 512 GiB, of which so many GPUs are idle."""
    values: dict[str, object] = {"cpus": 64, "memory_bytes": 512 * GIB, "idle": idle, **fields}
    return GpuNodes(tuple(idle), gpu_type, gpus, **values)  # type: ignore[arg-type]


def inventory(*groups: GpuNodes, max_nodes: int | None = None) -> Inventory:
    """One partition of these groups."""
    return of_offers(PartitionOffer("gpu", groups, max_nodes))


def of_offers(*offers: PartitionOffer) -> Inventory:
    """These partitions, with what the catalogue says of their GPUs."""
    return Inventory({at.gpu_type: CATALOGUE[at.gpu_type] for offer in offers for at in offer.groups}, offers)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """One to three partitions of one to three types, on nodes with whatever is idle."""
    offers = []
    for at in range(draw(st.integers(1, 3))):
        groups = []
        for number, kind in enumerate(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True))):
            gpus = draw(st.sampled_from([1, 2, 4, 6, 8]))
            nodes = [f"p{at}g{number}n{node}" for node in range(draw(st.integers(1, 6)))]
            groups.append(
                group(
                    kind,
                    {node: draw(st.integers(0, gpus)) for node in nodes},
                    gpus,
                    idle_cpus={node: draw(st.integers(0, 64)) for node in nodes if draw(st.booleans())},
                )
            )
        offers.append(PartitionOffer(f"p{at}", tuple(groups), draw(st.none() | st.integers(1, 6))))
    return of_offers(*offers)


@st.composite
def asks(draw: st.DrawFn) -> PlacementRequest:
    """What a plan asks for, now and then only of one partition or type."""
    tp = draw(st.sampled_from([1, 1, 2, 4, 8]))
    count = draw(st.integers(1, 8))
    return PlacementRequest(
        gpus=tp * count,
        need_bytes=draw(st.sampled_from([10, 30, 70, 120, 200])) * GIB,
        tp=tp,
        partition=draw(st.sampled_from(["", "", "p0", "p1"])),
        gpu_type=draw(st.sampled_from(["", "", *TYPES])),
        per_node=draw(st.sampled_from([0, 0, tp, tp * count])),
    )


def usable(ask: PlacementRequest, at: GpuNodes) -> Sequence[int]:
    """How many GPUs of each node a plan could have."""
    share = at.cpus // at.gpus
    return [
        min(idle, at.idle_cpus.get(node, at.cpus) // share if share else idle) // ask.tp * ask.tp
        for node, idle in at.idle.items()
    ]


def feasible(ask: PlacementRequest, there: Inventory) -> bool:
    """Whether the GPUs of one type in one partition are enough, said in another way than the placement works."""
    for offer in there.offers:
        for kind in {at.gpu_type for at in offer.groups}:
            fits = there.types[kind].memory_bytes >= ask.need_bytes
            named = ask.partition in ("", offer.partition) and ask.gpu_type in ("", kind)
            counts = sorted(
                (count for at in offer.groups if at.gpu_type == kind for count in usable(ask, at)), reverse=True
            )
            if fits and named and sum(counts[: offer.max_nodes]) >= ask.gpus:
                return True
    return False
