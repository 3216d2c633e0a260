"""A site's settings as Slurm shows them, parsed once for all rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slurm_plugin.nodeset import expand
from slurm_plugin.read.sdiag import Load
from slurm_plugin.read.settings import number, options

FileState = Literal["present", "absent", "unreadable"]


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """The parts of the daemon's configuration with which Slurm has to agree; the fields are its keys.

    `driver` is the only field that is no key: the path of the program bft-driver on the service nodes. If several
    `partitions` are harvested together, `partition` is the one that is checked.
    """

    partition: str
    driver_partition: str
    pilot_mode: str
    pilot_limit_s: float
    give_back_bound_s: float
    poll_s: float
    submit_rate_per_min: int
    socket: str
    driver: str
    partitions: tuple[str, ...] = ()
    spare_nodes: int = 0
    earmark: bool = True

    @property
    def harvested(self) -> tuple[str, ...]:
        """All harvested partitions."""
        return self.partitions or (self.partition,)

    @property
    def pilot_limit_min(self) -> int:
        """The longest limit that a pilot asks for, in whole minutes, at least one."""
        return max(1, int(self.pilot_limit_s // 60))


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file beside slurm.conf, with its text if this user can read it."""

    path: str
    state: FileState
    text: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """The settings of one cluster.

    `config` maps the keys of `scontrol show config` to their text, `partitions` each partition to its options, and
    `node_names` lists every node. `missing_plugins` are files that plugstack.conf names but that do not exist,
    `plugin_fault` is the reason why this host's Slurm does not load ours, and `module_missing` is the file that
    job_submit.lua loads, if it does not exist. `reservations` are their names. `load` is the controller's, None if
    sdiag gave no answer. `usage_factors` is the UsageFactor of each QOS, None if unknown.
    """

    config: Mapping[str, str]
    partitions: Mapping[str, Mapping[str, str]]
    node_names: tuple[str, ...]
    lua: SiteFile
    plugstack: SiteFile
    wanted: DaemonSettings
    missing_plugins: tuple[str, ...] = ()
    plugin_fault: str = ""
    module_missing: str = ""
    reservations: tuple[str, ...] = ()
    load: Load | None = None
    usage_factors: Mapping[str, float] | None = None

    @property
    def release(self) -> tuple[int, int]:
        """Slurm's release, as in (22, 5); (0, 0) if it is not shown."""
        found = re.match(r"(\d+)\.(\d+)", self.config.get("SLURM_VERSION", ""))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def scheduler_parameters(self) -> dict[str, str]:
        """The options of SchedulerParameters; an option without a value has the text ""."""
        return options(self.config.get("SchedulerParameters", ""))

    def has(self, partition: str) -> bool:
        """Whether a partition exists."""
        return partition in self.partitions

    def nodes_of(self, partition: str) -> frozenset[str]:
        """Return the nodes of a partition; none if it does not exist."""
        text = self.partitions.get(partition, {}).get("Nodes", "")
        return frozenset(self.node_names if text == "ALL" else expand(text))

    def tier_of(self, partition: str) -> int:
        """Return a partition's PriorityTier."""
        return number(self.partitions[partition].get("PriorityTier", "")) or 0

    @property
    def regular(self) -> tuple[str, ...]:
        """The partitions of the regular queue: all but ours."""
        ours = {*self.wanted.harvested, self.wanted.driver_partition}
        return tuple(name for name in self.partitions if name not in ours)
