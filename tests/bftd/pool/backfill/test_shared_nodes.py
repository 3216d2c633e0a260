"""Nodes in use that can take a job beside the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.model import Numbering
from bftd.pool.backfill.shared_nodes import SharedNodes
from bftd.pool.backfill.sizes import NodeDemand, NodeSize, NodeSizes, gpus_asked
from slurm_plugin.read.types import Node
from tests.bftd.pool.backfill.queues import GB, both, mask, nodes


def holding(some: dict[str, Node], cpus: int, memory_bytes: int = GB, gres: str = "") -> int:
    return SharedNodes.of(some, Numbering.of(some)).holding(NodeDemand(cpus, memory_bytes, gpus_asked(gres)))


def used(**fields: object) -> dict[str, Node]:
    return nodes(1, **{"state": "MIXED", "cpus": 8, **fields})


def test_a_node_in_use_takes_what_is_free_of_its_cpus_and_memory() -> None:
    some = both(used(cpus_used=2), used(cpus_used=6), used(cpus_used=2, memory_used_bytes=14 * GB))
    assert holding(some, 2) == mask(0, 1, 2)
    assert holding(some, 3) == mask(0, 2)
    assert holding(some, 3, 3 * GB) == mask(0)
    assert holding(some, 7) == 0


def test_a_node_that_is_idle_full_or_flagged_has_no_share() -> None:
    some = both(
        nodes(1), nodes(1, state="ALLOCATED"), used(flags=frozenset({"DRAIN"})), used(flags=frozenset({"COMPLETING"})),
        used(flags=frozenset({"PLANNED"})),
    )  # fmt: skip
    assert holding(some, 1) == mask(4)


def test_gpus_count_by_type_and_those_of_an_untold_type_as_each() -> None:
    gpus = {"a100": 2, "h100": 4}
    some = both(
        used(gpus=gpus), used(gpus=gpus, gpus_used={"a100": 2}), used(gpus=gpus, gpus_used={"": 3}), used(),
        used(gpus={"": 4}, gpus_used={"": 3}),
    )  # fmt: skip
    assert holding(some, 1, gres="gpu:a100:1") == mask(0)
    assert holding(some, 1, gres="gpu:h100:2") == mask(0, 1)
    assert holding(some, 1, gres="gpu:5") == mask(0)
    assert holding(some, 1, gres="gpu:1") == mask(0, 1, 2, 4)


def test_a_job_that_names_no_memory_has_all_of_it_where_memory_counts() -> None:
    some = both(used(cpus_used=2), used(cpus_used=2, memory_used_bytes=GB))
    assert holding(some, 1, 0) == mask(0)
    shares = SharedNodes.of(some, Numbering.of(some))
    assert shares.together(NodeDemand(1), 4) == 1
    assert shares.together(NodeDemand(1, GB), 4) == 4
    without = both(used(cpus_used=2), used(cpus_used=3))
    assert holding(without, 1, 0) == mask(0, 1)
    assert SharedNodes.of(without, Numbering.of(without)).together(NodeDemand(1), 4) == 4


def test_gpus_are_read_as_squeue_and_sbatch_write_them() -> None:
    assert gpus_asked("gres:gpu:2") == gpus_asked("gres/gpu:2") == gpus_asked("gpu:2") == (("", 2),)
    assert gpus_asked("gpu") == (("", 1),)
    assert gpus_asked("gpu:a100") == (("a100", 1),)
    assert gpus_asked("gpu:a100:2(S:0,1),gpu:1g.5gb:1") == (("1g.5gb", 1), ("a100", 2))
    assert gpus_asked("gpu:1,gpu:2") == (("", 3),)
    assert gpus_asked("") == gpus_asked("N/A") == gpus_asked("nvme:1,gpus:2") == gpus_asked("gpu:0") == ()


@given(
    sizes=st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, 4), st.dictionaries(st.sampled_from(["", "x", "y"]), st.integers(0, 3))
        ),
        max_size=8,
    ),
    cpus=st.integers(-1, 5),
    memory_bytes=st.integers(0, 5),
    gpus=st.dictionaries(st.sampled_from(["", "x"]), st.integers(1, 4)),
)
def test_the_nodes_found_are_those_that_have_enough_of_everything(
    sizes: list[tuple[int, int, dict[str, int]]], cpus: int, memory_bytes: int, gpus: dict[str, int]
) -> None:
    found = NodeSizes.of(NodeSize(1 << index, *size) for index, size in enumerate(sizes))
    ask = NodeDemand(cpus, memory_bytes, tuple(gpus.items()))

    def has(kinds: dict[str, int], kind: str) -> int:
        return kinds.get(kind, 0) if kind else sum(kinds.values())

    enough = [
        index
        for index, (own_cpus, own_bytes, own) in enumerate(sizes)
        if own_cpus >= cpus
        and own_bytes >= memory_bytes
        and all(has(own, kind) >= count for kind, count in gpus.items())
    ]
    assert found.holding(ask) == mask(*enough)
    if enough:
        least = min(own_cpus for index, (own_cpus, _, _) in enumerate(sizes) if index in enough)
        assert found.cpus.of_all(mask(*enough)) == least
    assert found.cpus.of_all(mask(len(sizes))) == 0
