"""The inventory as it comes from Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sizing.inventory.gpus import CATALOGUE
from sizing.inventory.inventory import GpuType, Inventory, emptied, from_slurm, with_idle
from slurm_plugin.read.types import Node, Partition
from tests.support.messages import says


def node(name: str, gpus: dict[str, int], **changes: object) -> Node:
    """An idle node of 64 CPUs and 512 GiB."""
    base = Node(
        name=name,
        state="IDLE",
        flags=frozenset(),
        partitions=("gpu",),
        features=(),
        gres="",
        gpus=gpus,
        cpus=64,
        memory_bytes=512 * 2**30,
        reason="",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def partition(name: str, nodes: tuple[str, ...], state: str = "UP", **changes: object) -> Partition:
    base = Partition(name, nodes, state, 86400.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def read(*nodes: Node, **options: object) -> Inventory:
    """The inventory of one partition with all these nodes."""
    names = tuple(item.name for item in nodes)
    return from_slurm({item.name: item for item in nodes}, {"gpu": partition("gpu", names)}, **options)  # type: ignore[arg-type]


def test_nodes_that_are_alike_are_a_group_whatever_jobs_they_have() -> None:
    busy = node("n2", {"v100s": 4}, state="MIXED", gpus_used={"v100s": 3}, cpus_used=60, memory_used_bytes=2**38)
    other = node("n3", {"v100s": 4}, features=("nvlink",))
    first, second = read(node("n1", {"v100s": 4}), busy, other).offers[0].groups
    assert (first.nodes, first.gpu_type, first.gres_type, first.gpus) == (("n1", "n2"), "v100s-pcie-32gb", "v100s", 4)
    assert (first.cpus, first.memory_bytes, first.features) == (64, 2**39, ())
    assert first.idle == {"n1": 4, "n2": 1}
    assert (first.idle_cpus, first.idle_memory_bytes) == ({"n2": 4}, {"n2": 2**38})
    assert (second.nodes, second.features) == (("n3",), ("nvlink",))


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("DOWN", ()),
        ("IDLE", ("DRAIN",)),
        ("IDLE", ("PLANNED",)),
        ("MIXED", ("PLANNED",)),
        ("IDLE", ("RESERVED",)),
        ("IDLE", ("MAINTENANCE",)),
        ("IDLE", ("NOT_RESPONDING",)),
        ("IDLE", ("COMPLETING",)),
        ("IDLE", ("REBOOT_REQUESTED",)),
        ("ALLOCATED", ()),
        ("FUTURE", ()),
    ],
)
def test_a_node_that_takes_no_job_now_has_nothing_idle_and_is_there_all_the_same(
    state: str, flags: tuple[str, ...]
) -> None:
    (group,) = read(node("n1", {"t4": 2}, state=state, flags=frozenset(flags))).offers[0].groups
    assert group.idle == {"n1": 0}
    assert group.gpus == 2


def test_a_node_that_sleeps_in_the_cloud_can_be_had() -> None:
    (group,) = read(node("n1", {"t4": 2}, flags=frozenset({"CLOUD", "POWERED_DOWN"}))).offers[0].groups
    assert group.idle == {"n1": 2}


def test_gpus_in_use_of_a_type_that_is_not_told_may_be_any() -> None:
    groups = read(node("n1", {"t4": 2, "v100s": 2}, state="MIXED", gpus_used={"": 1})).offers[0].groups
    assert [group.idle["n1"] for group in groups] == [1, 1]


def test_partitions_are_offers_of_their_own_but_for_those_that_are_down_without_gpus_or_bftds() -> None:
    nodes = {"n1": node("n1", {"t4": 2}), "c1": node("c1", {})}
    partitions = [
        partition("long", ("n1", "c1"), max_nodes=4),
        partition("short", ("n1",), max_time_s=None, exclusive=True),
        partition("closed", ("n1",), state="DOWN"),
        partition("draining", ("n1",), state="DRAIN"),
        partition("cpu", ("c1",)),
        partition("elastic", ("n1",)),
        partition("gone", ("n9",)),
    ]
    found = from_slurm(nodes, {item.name: item for item in partitions}, without={"elastic"})
    assert [(at.partition, at.max_nodes, at.max_time_s, at.exclusive) for at in found.offers] == [
        ("long", 4, 86400.0, False),
        ("short", None, None, True),
    ]
    assert all(offer.groups[0].nodes == ("n1",) for offer in found.offers)


def test_of_a_node_in_an_exclusive_partition_a_job_has_all_or_nothing() -> None:
    nodes = {"n1": node("n1", {"t4": 2}), "n2": node("n2", {"t4": 2}, state="MIXED", cpus_used=1)}
    found = from_slurm(nodes, {"gpu": partition("gpu", ("n1", "n2"), exclusive=True)})
    assert found.offers[0].groups[0].idle == {"n1": 2, "n2": 0}


def test_a_node_with_several_types_is_in_a_group_of_each_with_a_part_of_its_cpus_and_memory() -> None:
    groups = read(node("n1", {"a100_1g.5gb": 6, "t4": 2})).offers[0].groups
    assert [(group.gpu_type, group.gpus, group.cpus, group.memory_bytes) for group in groups] == [
        ("a100-pcie-40gb-1g.5gb", 6, 48, 384 * 2**30),
        ("t4", 2, 16, 128 * 2**30),
    ]


def test_an_unknown_type_is_left_out_and_told_with_how_to_name_it() -> None:
    found = read(node("n1", {"turbo": 4}), node("n2", {"turbo": 4}), node("n3", {"": 1}), node("n4", {"t4": 1}))
    assert found.unknown == ("", "turbo")
    assert [group.gpu_type for group in found.offers[0].groups] == ["t4"]
    assert [note for note in found.notes if says(note, "sizing.inventory.unknown_type", name="turbo", nodes="n[1-2]")]
    assert [note for note in found.notes if "without a name (n3)" in note]
    own = GpuType("turbo", 10, {}, 1.0, 1.0)
    assert read(node("n1", {"turbo": 4}), types={"turbo": own}).types == {"turbo": own}


def test_what_the_site_says_of_a_type_comes_before_the_catalogue() -> None:
    by_name = replace(CATALOGUE["a100-sxm-80gb"], name="ours", names=("a100",))
    assert set(read(node("n1", {"a100": 4}), types={"ours": by_name}).types) == {"ours"}
    corrected = replace(CATALOGUE["t4"], memory_bytes=10)
    assert read(node("n1", {"tesla_t4": 4}), types={"t4": corrected}).types == {"t4": corrected}


def test_what_was_taken_for_granted_is_noted_once() -> None:
    found = read(node("n1", {"a100": 4}), node("n2", {"a100": 8}))
    assert len(found.notes) == 1
    assert "a100 is taken for a100-pcie-40gb" in found.notes[0]


def test_the_same_name_on_nodes_with_other_features_can_be_another_type() -> None:
    groups = read(node("n1", {"a100": 4}, features=("a100_40",)), node("n2", {"a100": 4}, features=("a100_80",)))
    assert {group.gpu_type for group in groups.offers[0].groups} == {"a100-pcie-40gb", "a100-pcie-80gb"}


def test_what_is_idle_can_be_read_anew_or_thought_away() -> None:
    found = read(node("n1", {"t4": 2}), node("n2", {"t4": 2}))
    now = with_idle(found, {"n1": node("n1", {"t4": 2}, state="MIXED", gpus_used={"t4": 1}, cpus_used=32)})
    (group,) = now.offers[0].groups
    assert (group.idle, group.idle_cpus) == ({"n1": 1, "n2": 0}, {"n1": 32, "n2": 0})
    assert emptied(now) == found
