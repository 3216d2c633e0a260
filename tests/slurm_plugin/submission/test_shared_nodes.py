"""Where a pilot may have a part of a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.types import Partition
from slurm_plugin.submission import shared_nodes
from slurm_plugin.submission.shared_nodes import NodePart, Sharing, against, unbounded
from slurm_plugin.submission.submission import PilotRequest, _options
from tests.bftd.builders import node
from tests.support.messages import excerpt, says, wording

SITE = Path(__file__).parents[1] / "site" / "assets" / "22.05" / "recommended"
PART = NodePart(2, 2**29)
CGROUPS = "\nCgroup Support Configuration:\nConstrainCores          = {}\nConstrainRAMSpace       = {}\n"


def config(cgroups: str = "", **settings: str) -> str:
    """What scontrol shows of a site that keeps jobs to their CPUs and memory."""
    told = {
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CORE_MEMORY",
        "TaskPlugin": "task/affinity",
        "JobAcctGatherParams": "OverMemoryKill",
        **settings,
    }
    lines = (SITE / "config.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("=")[0].strip() not in told]
    kept[1:1] = [f"{name:<23} = {value}" for name, value in told.items()]
    return "\n".join(kept) + "\n" + cgroups


@pytest.mark.parametrize(
    ("settings", "cgroups"),
    [
        ({}, ""),
        ({"SelectType": "select/cons_res", "SelectTypeParameters": "CR_CPU_MEMORY,CR_LLN"}, ""),
        ({"TaskPlugin": "task/cgroup,task/affinity", "JobAcctGatherParams": "(null)"}, CGROUPS.format("no", "yes")),
        ({"TaskPlugin": "task/cgroup", "JobAcctGatherParams": "NoOverMemoryKill"}, CGROUPS.format("yes", "yes")),
    ],
)
def test_nodes_are_shared_where_slurm_keeps_jobs_to_cpus_and_memory(settings: dict[str, str], cgroups: str) -> None:
    assert unbounded(config(cgroups, **settings)) == ""


@pytest.mark.parametrize(
    ("settings", "cgroups", "why"),
    [
        ({"SelectType": "select/linear"}, "", excerpt("slurm_plugin.sharing.whole_nodes")),
        ({"SelectTypeParameters": "CR_CORE"}, "", excerpt("slurm_plugin.sharing.memory_not_counted")),
        ({"SelectTypeParameters": "CR_MEMORYLESS"}, "", excerpt("slurm_plugin.sharing.memory_not_counted")),
        ({"TaskPlugin": "task/none"}, "", excerpt("slurm_plugin.sharing.cpus_not_kept")),
        ({"TaskPlugin": "task/cgroup"}, "", excerpt("slurm_plugin.sharing.cpus_not_kept")),
        ({"TaskPlugin": "task/cgroup"}, CGROUPS.format("no", "yes"), excerpt("slurm_plugin.sharing.cpus_not_kept")),
        ({"JobAcctGatherParams": "(null)"}, "", excerpt("slurm_plugin.sharing.memory_not_kept")),
        ({"JobAcctGatherParams": "NoOverMemoryKill"}, "", excerpt("slurm_plugin.sharing.memory_not_kept")),
        (
            {"JobAcctGatherParams": "(null)"},
            CGROUPS.format("yes", "yes"),
            excerpt("slurm_plugin.sharing.memory_not_kept"),
        ),
        ({"TaskPlugin": "task/cgroup", "JobAcctGatherParams": ""}, CGROUPS.format("yes", "no"), "to their memory"),
    ],
)
def test_elsewhere_a_pilot_has_its_node_alone(settings: dict[str, str], cgroups: str, why: str) -> None:
    assert why in unbounded(config(cgroups, **settings))


def test_a_pilot_that_nobody_hears_is_ended_for_its_memory_by_the_kernel_alone() -> None:
    assert "without a word" in unbounded(config(), heard=False)
    kernel = config(CGROUPS.format("yes", "yes"), TaskPlugin="task/cgroup")
    assert unbounded(kernel, heard=False) == ""


def test_what_a_site_like_the_recommended_one_lacks_is_said() -> None:
    assert unbounded((SITE / "config.txt").read_text())


def partition(name: str, *, exclusive: bool = False) -> Partition:
    return Partition(name, ("n1",), "UP", None, exclusive=exclusive)


BOTH = {"batch": partition("batch"), "elastic": partition("elastic")}


def test_a_part_is_worth_having_where_regular_jobs_may_have_the_rest() -> None:
    there = node("n1")
    assert against(there, BOTH, "elastic", PART) == ""
    alone = BOTH | {"elastic": partition("elastic", exclusive=True)}
    assert against(there, alone, "elastic", PART) == (
        wording("slurm_plugin.sharing.partition_exclusive", partition="elastic")
    )
    whole = BOTH | {"batch": partition("batch", exclusive=True)}
    assert says(against(there, whole, "elastic", PART), "slurm_plugin.sharing.others_exclusive")
    assert against(replace(there, partitions=("long", *there.partitions)), whole | {"long": partition("long")}, "elastic", PART) == ""  # fmt: skip  # noqa: E501
    alone_there = node("n1", partitions=("elastic",))
    assert against(alone_there, BOTH, "elastic", PART) == wording(
        "slurm_plugin.sharing.no_other_partition", partition="elastic"
    )
    assert against(there, BOTH, "other", PART) == wording("slurm_plugin.sharing.unknown_partition", partition="other")
    assert against(None, BOTH, "elastic", PART) == wording("slurm_plugin.sharing.unknown_node")


@pytest.mark.parametrize("part", [NodePart(4, 2**29), NodePart(5, 1), NodePart(1, 2**30), NodePart(1, 2**30 - 1)])
def test_a_part_that_is_all_of_the_node_is_none(part: NodePart) -> None:
    assert against(node("n1"), BOTH, "elastic", part) == wording(
        "slurm_plugin.sharing.no_larger", cpus=4, memory_bytes=1024
    )


class Client:
    """Tells of one site, and counts how often it is asked."""

    def __init__(self, out: str) -> None:
        self.out, self.asked = out, 0

    def run(self, *_: str) -> CommandResult:
        self.asked += 1
        return CommandResult(0, self.out, "")

    def partitions(self) -> dict[str, Partition]:
        return BOTH

    def nodes(self) -> dict[str, Any]:
        return {"n1": node("n1")}


def test_a_site_is_asked_once_a_minute_however_many_pilots_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(shared_nodes.time, "monotonic", lambda: now_s)
    client = Client(config())
    look = Sharing(cast("SlurmClient", client))
    assert {look.against("n1", "elastic", PART) for _ in range(5)} == {""}
    assert client.asked == 1
    now_s = 61.0
    client.out = config(SelectType="select/linear")
    assert "whole nodes" in look.against("n1", "elastic", PART)
    assert client.asked == 2


def test_a_site_that_cannot_be_read_shares_no_nodes() -> None:
    client = Client("slurm_load_ctl_conf error: Unable to contact slurm controller")
    assert says(
        Sharing(cast("SlurmClient", client)).against("n1", "elastic", PART), "slurm_plugin.sharing.settings_unreadable"
    )
    with pytest.raises(SnapshotError):
        unbounded(config()[:300])


def test_a_pilot_asks_for_its_part_in_whole_mebibytes_or_for_the_node() -> None:
    whole = PilotRequest("n1", "elastic", 60.0, "p", "c")
    assert {"--exclusive", "--mem=0"} < set(_options(whole))
    part = _options(replace(whole, part=NodePart(3, 2**20 + 1)))
    assert {"--ntasks=1", "--cpus-per-task=3", "--mem=2M"} < set(part)
    assert not {"--exclusive", "--mem=0"} & set(part)
