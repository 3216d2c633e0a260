"""The check whether a pilot may have a part of a node and leave the rest to regular jobs, which not every site allows.

A part is worth having only if Slurm gives the rest to regular jobs, and it must not cost them anything: Slurm has to
confine the pilot to its CPUs and its memory. A setting that cannot be read counts against it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.read.settings import options, parse_config
from slurm_plugin.read.types import Node, Partition
from slurm_plugin.submission.shared_queries import SharedQuery

_EVERY_S = 60.0  # only an administrator changes any of this
_CGROUP_SETTING = re.compile(r"(Constrain\w+)\s*=\s*(\S+)")
_BY_PARTS = re.compile(r"select/cons_(tres|res)$")
_AND_MEMORY = re.compile(r"CR_\w*MEMORY(?:,|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NodePart:
    """A pilot's request for its node beside GPUs."""

    cpus: int
    memory_bytes: int

    @property
    def memory_mib(self) -> int:
        """The memory requested from Slurm in MiB, rounded up."""
        return -(-self.memory_bytes // 2**20)


@dataclass(frozen=True, slots=True)
class _Site:
    """The settings read from the site; `against` is the reason why no node of it is shared, or ""."""

    against: str
    partitions: Mapping[str, Partition]
    nodes: Mapping[str, Node]


class Sharing:
    """A check whether a pilot may have a part of a node; it asks Slurm at most once a minute.

    Without `heard`, Slurm's message on a pilot's end reaches no process of ours. Then only the kernel may end a pilot
    for its memory, which its agent notices.
    """

    def __init__(self, client: SlurmClient, *, heard: bool = True) -> None:
        self._client = client
        self._heard = heard
        self._look = SharedQuery(self._read)
        self._seen: tuple[float, _Site] | None = None

    def against(self, node: str, partition: str, part: NodePart) -> str:
        """Return the reason why a pilot in this partition must have the whole node, or ""; may wait for Slurm."""
        try:
            site = self._known() or self._look.fresh()
        except SlurmError as error:
            return f"Slurm's settings cannot be read: {error}"
        return site.against or against(site.nodes.get(node), site.partitions, partition, part)

    def _known(self) -> _Site | None:
        seen = self._seen
        return seen[1] if seen is not None and time.monotonic() - seen[0] < _EVERY_S else None

    def _read(self) -> _Site:
        if (known := self._known()) is not None:  # another thread read it while this one waited
            return known
        answer = self._client.run("scontrol", "show", "config")
        site = _Site(unbounded(answer.out, heard=self._heard), self._client.partitions(), self._client.nodes())
        self._seen = (time.monotonic(), site)
        return site


def unbounded(config: str, *, heard: bool = True) -> str:
    """Return the reason why a site's nodes are not shared, or "", from `scontrol show config`; see `Sharing`.

    Raise SnapshotError if that text is incomplete.
    """
    settings = parse_config(config)
    constrained = {name: word.lower() == "yes" for name, word in _CGROUP_SETTING.findall(config)}
    task, gathers = settings.get("TaskPlugin", ""), options(settings.get("JobAcctGatherParams", ""))
    if not _BY_PARTS.search(kind := settings.get("SelectType", "")):
        return f"Slurm gives whole nodes (SelectType={kind})"
    if not _AND_MEMORY.search(settings.get("SelectTypeParameters", "")):
        return "Slurm does not count memory (SelectTypeParameters names none)"
    if "affinity" not in task and not ("cgroup" in task and constrained.get("ConstrainCores")):
        return "Slurm does not keep jobs to their CPUs (TaskPlugin has neither affinity nor cgroup with ConstrainCores)"
    if "cgroup" in task and constrained.get("ConstrainRAMSpace"):
        return ""
    if "OverMemoryKill" not in gathers:
        return "Slurm does not keep jobs to their memory (neither ConstrainRAMSpace nor OverMemoryKill)"
    if not heard:
        return "Slurm would end a pilot for its memory without a word (OverMemoryKill with pilot_mode sbatch)"
    return ""


def against(node: Node | None, partitions: Mapping[str, Partition], partition: str, part: NodePart) -> str:
    """Return the reason why a pilot in `partition` must have the whole of this node, or "" if it can have the part."""
    if node is None:
        return "the node is not known"
    there = {name: partitions[name] for name in node.partitions if name in partitions}
    if partition not in there:
        return f"partition {partition} is not known"
    if there[partition].exclusive:
        return f"a job of partition {partition} has whole nodes (OverSubscribe=EXCLUSIVE)"
    regular = [one for name, one in there.items() if name != partition]
    if not regular:
        return f"no partition but {partition} has the node"
    if all(one.exclusive for one in regular):
        return "the regular jobs there have whole nodes (OverSubscribe=EXCLUSIVE)"
    if part.cpus >= node.cpus or part.memory_mib * 2**20 >= node.memory_bytes:
        return f"it has {node.cpus} CPUs and {node.memory_bytes >> 20} MiB, no more than is asked for"
    return ""
