"""Rules on the drivers' partition."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_plugin.nodeset import fold
from slurm_plugin.site.helpers import (
    driver,
    exists,
    max_time_s,
    option_of,
    option_rule,
    outranked,
    partition_edit,
    set_option,
)
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import Edit, Rule

# A driver lives as long as its trainer.
_SHORTEST_DRIVER_S = 86400.0


def _new_driver(site: Site) -> Sequence[Edit]:
    options = {
        "Nodes": "",
        "PreemptMode": "OFF",
        "OverSubscribe": "NO",
        "MaxTime": "UNLIMITED",
        "State": "UP",
    }
    return tuple(partition_edit(driver(site), key, value) for key, value in options.items())


def _memory_is_bounded(site: Site) -> bool:
    """Whether a job that names no memory leaves some for the next; this matters only if memory is a resource."""
    own = site.partitions[driver(site)]
    default = own.get("DefMemPerCPU") or own.get("DefMemPerNode") or "UNLIMITED"
    if default == "UNLIMITED":
        default = site.config.get("DefMemPerCPU") or site.config.get("DefMemPerNode") or "UNLIMITED"
    counts = own.get("SelectTypeParameters", "NONE")
    counts = site.config.get("SelectTypeParameters", "") if counts == "NONE" else counts
    return "MEMORY" not in counts.upper() or default != "UNLIMITED"


def _memory(site: Site) -> str:
    own = site.partitions[driver(site)]
    key = "DefMemPerCPU" if "DefMemPerCPU" in own else "DefMemPerNode"
    return f"{key}={own.get(key, 'UNLIMITED')} with {site.config.get('SelectTypeParameters', '')}"


def _of_driver(key: str) -> str:
    return f"driver partition: {key}"


RULES: tuple[Rule, ...] = (
    Rule(
        name="driver partition",
        right="exists",
        why="each trainer's driver is a job of one CPU, on a service or login node; [slurm] driver_partition names it",
        loses="bft sbatch and sbatch --elastic do not work; bft run does, as long as its terminal lives",
        wrong="must",
        seen=lambda site: driver(site) if site.has(driver(site)) else f"no partition {driver(site)}",
        holds=exists(driver),
        edits=_new_driver,
    ),
    option_rule(
        driver,
        _of_driver,
        "State",
        "UP",
        "no trainer starts",
        "drivers start only in a partition that is up",
    ),
    Rule(
        name=_of_driver("Nodes"),
        right="at least one",
        why="drivers run here for their trainers' whole lives",
        loses="no trainer starts",
        wrong="must",
        seen=lambda site: fold(sorted(site.nodes_of(driver(site)))) or "no node",
        holds=lambda site: bool(site.nodes_of(driver(site))),
        edits=lambda site: (partition_edit(driver(site), "Nodes", ""),),
        applies=exists(driver),
    ),
    Rule(
        name=_of_driver("PreemptMode"),
        right="OFF",
        why="a driver that is preempted ends its trainer",
        loses="a job of a partition with a higher PriorityTier on the service nodes ends drivers",
        wrong="must",
        seen=option_of(driver, "PreemptMode"),
        holds=lambda site: (
            site.partitions[driver(site)]["PreemptMode"] == "OFF" or not outranked(site, driver(site), site.regular)
        ),
        edits=set_option(driver, "PreemptMode", "OFF"),
        applies=exists(driver),
    ),
    Rule(
        name=_of_driver("MaxTime"),
        right="UNLIMITED, or at least a day",
        why="the driver lives as long as its trainer, which may wait long for idle nodes",
        loses="a trainer that is not ready by then ends, and has to be submitted again",
        wrong="advice",
        seen=option_of(driver, "MaxTime"),
        holds=lambda site: max_time_s(site, driver) >= _SHORTEST_DRIVER_S,
        edits=set_option(driver, "MaxTime", "UNLIMITED"),
        applies=exists(driver),
    ),
    option_rule(
        driver,
        _of_driver,
        "OverSubscribe",
        "NO",
        "EXCLUSIVE: each driver takes a whole service node for one CPU, the next one waits",
        "drivers share the service nodes, one CPU each",
        right="not EXCLUSIVE",
        holds=lambda text: text != "EXCLUSIVE",
        advice=True,
    ),
    Rule(
        name=_of_driver("memory"),
        right="a DefMemPerCPU, where memory is a resource",
        why="a job that names no memory gets all of its node's",
        loses="one driver takes all memory of a service node, the next one waits: measured with CR_Core_Memory, and "
        "both ran with DefMemPerCPU=1024",
        wrong="advice",
        seen=_memory,
        holds=_memory_is_bounded,
        edits=set_option(driver, "DefMemPerCPU", "1024"),
        applies=exists(driver),
    ),
    option_rule(driver, _of_driver, "RootOnly", "NO", "no trainer starts", "drivers belong to their users"),
    option_rule(driver, _of_driver, "ReqResv", "NO", "no trainer starts", "drivers ask for no reservation"),
)
