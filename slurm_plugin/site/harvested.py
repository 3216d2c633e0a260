"""Rules on the harvested partition, and on the regular ones beside it."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_plugin.nodeset import expand, fold
from slurm_plugin.pilots.preemptible import below, ends
from slurm_plugin.read.parse import time_limit_s
from slurm_plugin.read.settings import number
from slurm_plugin.site.helpers import (
    driver,
    elastic,
    exists,
    max_time_s,
    option_of,
    option_rule,
    outranked,
    partition_edit,
    pilot_limit,
    set_option,
)
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import Edit, Rule


def neighbours(site: Site) -> tuple[str, ...]:
    """Return the regular partitions that share nodes with the harvested one."""
    ours = site.nodes_of(elastic(site))
    return tuple(name for name in site.regular if not ours.isdisjoint(site.nodes_of(name)))


def elastic_tier(site: Site) -> int:
    """Return the PriorityTier to give the harvested partition: below all others, and 1 if that is low enough."""
    lowest = min((site.tier_of(name) for name in site.regular), default=1)
    return min(1, max(0, lowest - 1))


# The shortest time limit in Slurm.
_SHORTEST = "00:01:00"


def _tiers(site: Site) -> str:
    others = ", ".join(f"{name} {site.tier_of(name)}" for name in neighbours(site))
    return f"{site.tier_of(elastic(site))}; of the regular: {others or 'none shares its nodes'}"


def _tier_edits(site: Site) -> Sequence[Edit]:
    tier = elastic_tier(site)
    raised = (name for name in neighbours(site) if site.tier_of(name) <= tier)
    return (
        partition_edit(elastic(site), "PriorityTier", str(tier)),
        *(partition_edit(name, "PriorityTier", "10") for name in raised),
    )


def _new_elastic(site: Site) -> Sequence[Edit]:
    options = {
        "Nodes": "",
        "PriorityTier": str(elastic_tier(site)),
        "PreemptMode": "CANCEL",
        "GraceTime": "0",
        "OverSubscribe": "EXCLUSIVE",
        "MaxNodes": "1",
        "MaxTime": pilot_limit(site),
        "DefaultTime": _SHORTEST,
        "Default": "NO",
        "State": "UP",
    }
    return tuple(partition_edit(elastic(site), key, value) for key, value in options.items())


def _preemptable_regular(site: Site) -> list[str]:
    """Return the regular partitions whose jobs a higher one may end, now that preemption is on."""
    return [
        name
        for name in site.regular
        if site.partitions[name].get("PreemptMode") != "OFF" and outranked(site, name, site.regular)
    ]


def _overtime(site: Site) -> str:
    own = site.partitions[elastic(site)].get("OverTimeLimit", "NONE")
    return site.config.get("OverTimeLimit", "0") if own == "NONE" else own


def _may_allocate(site: Site) -> bool:
    allowed = site.partitions[elastic(site)].get("AllocNodes", "ALL")
    if allowed == "ALL":
        return True
    return site.nodes_of(driver(site)) <= frozenset(expand(allowed))


def _of_elastic(key: str) -> str:
    return f"harvested partition: {key}"


_ELASTIC = (
    Rule(
        name="harvested partition",
        right="exists",
        why="pilots are one-node jobs of this partition; [slurm] partition names it",
        loses="nothing can be harvested",
        wrong="must",
        seen=lambda site: elastic(site) if site.has(elastic(site)) else f"no partition {elastic(site)}",
        holds=exists(elastic),
        edits=_new_elastic,
    ),
    Rule(
        name=_of_elastic("Nodes"),
        right="the nodes to harvest, none of the drivers'",
        why="a driver must outlive every node of its trainer",
        loses="a driver on a harvested node holds it, or ends with it: its trainer then starts again from what it "
        "saved last",
        wrong="must",
        seen=lambda site: fold(sorted(site.nodes_of(elastic(site)))) or "no node",
        holds=lambda site: (
            bool(site.nodes_of(elastic(site))) and site.nodes_of(elastic(site)).isdisjoint(site.nodes_of(driver(site)))
        ),
        edits=lambda site: (partition_edit(elastic(site), "Nodes", ""),),
        applies=exists(elastic),
    ),
    option_rule(
        elastic,
        _of_elastic,
        "State",
        "UP",
        "nothing is harvested: Slurm refuses every pilot",
        "pilots start only in a partition that is up",
    ),
    Rule(
        name=_of_elastic("PriorityTier"),
        right="lower than of each regular partition that shares its nodes",
        why="the tier alone decides who may preempt whom",
        loses="regular jobs of a partition with the same tier or a lower one cannot take a pilot's node back: they "
        "wait for its time limit",
        wrong="must",
        seen=_tiers,
        holds=lambda site: below(site.tier_of(elastic(site)), map(site.tier_of, neighbours(site))),
        edits=_tier_edits,
        applies=exists(elastic),
    ),
    option_rule(
        elastic,
        _of_elastic,
        "PreemptMode",
        "CANCEL",
        "OFF: regular jobs wait for the pilots' time limit; SUSPEND: a stopped pilot keeps its memory and its GPUs' "
        "memory beside the regular job. REQUEUE costs the same as CANCEL (measured)",
        "a preempted pilot is to end",
        right="CANCEL, or REQUEUE",
        holds=ends,
    ),
    option_rule(
        elastic,
        _of_elastic,
        "GraceTime",
        "0",
        "GraceTime 10: a regular job starts after 1.6-1.7 s instead of 0.4-1.2 s (5: 1.0-2.0 s) where agents leave at "
        "the notice, after 12-13 s where a pilot has no process yet, after 58-69 s with KillWait 30 where an agent "
        "hangs: Slurm looks for the end of GraceTime only every 30 s",
        "agents leave at the notice within 0.1 s; what Slurm grants beyond that only delays the regular job",
        advice=True,
    ),
    option_rule(
        elastic,
        _of_elastic,
        "OverSubscribe",
        "EXCLUSIVE",
        "FORCE: Slurm grants a second pilot on the same node (measured), and each takes it for its own",
        "a pilot has a whole node, or with NO the part that it asks for",
        right="EXCLUSIVE, or NO",
        holds=lambda text: text.split(":")[0] in ("EXCLUSIVE", "NO"),
    ),
    Rule(
        name=_of_elastic("MaxTime"),
        right="at least [pool] pilot_limit_s",
        why="Slurm refuses pilots with a longer limit",
        loses="pilots for long windows are refused, so the nodes that are idle longest stay unused",
        wrong="must",
        seen=option_of(elastic, "MaxTime"),
        holds=lambda site: max_time_s(site, elastic) >= 60 * site.wanted.pilot_limit_min,
        edits=set_option(elastic, "MaxTime", pilot_limit),
        applies=exists(elastic),
    ),
    Rule(
        name=_of_elastic("MaxTime bounds"),
        right="at most [pool] pilot_limit_s",
        why="a pilot whose driver and agent both died holds its node until its limit; and pilots alone need this "
        "partition",
        loses="such a node, still preemptable, is idle for as long as somebody asked for",
        wrong="advice",
        seen=option_of(elastic, "MaxTime"),
        holds=lambda site: max_time_s(site, elastic) <= 60 * site.wanted.pilot_limit_min,
        edits=set_option(elastic, "MaxTime", pilot_limit),
        applies=exists(elastic),
    ),
    option_rule(
        elastic,
        _of_elastic,
        "DefaultTime",
        _SHORTEST,
        "who goes round the daemon and names no limit holds a node for MaxTime",
        "a pilot always names its limit; MaxTime is what a job gets that names none",
        holds=lambda text: (limit_s := time_limit_s(text)) is not None and limit_s <= 60,
        advice=True,
    ),
    option_rule(
        elastic,
        _of_elastic,
        "MaxNodes",
        "1",
        "users can queue large jobs here, which take nodes from pilots and lock regular jobs out like any pending job "
        "of this partition (12-13 s each)",
        "every pilot has one node, and only pilots get the high priority number",
        advice=True,
    ),
    option_rule(
        elastic,
        _of_elastic,
        "MinNodes",
        "1",
        "Slurm refuses every pilot",
        "every pilot has one node",
        right="0 or 1",
        holds=lambda text: text in ("0", "1"),
    ),
    option_rule(
        elastic,
        _of_elastic,
        "Default",
        "NO",
        "jobs that name no partition are sent where they may be ended at any time",
        "users' ordinary jobs do not belong here",
    ),
    option_rule(elastic, _of_elastic, "RootOnly", "NO", "Slurm refuses every pilot", "pilots belong to their users"),
    option_rule(elastic, _of_elastic, "ReqResv", "NO", "Slurm refuses every pilot", "pilots ask for no reservation"),
    Rule(
        name=_of_elastic("AllocNodes"),
        right="ALL, or at least the drivers' nodes",
        why="drivers call salloc on their service nodes",
        loses="Slurm refuses every pilot",
        wrong="must",
        seen=option_of(elastic, "AllocNodes"),
        holds=_may_allocate,
        edits=set_option(elastic, "AllocNodes", "ALL"),
        applies=exists(elastic),
    ),
    Rule(
        name=_of_elastic("OverTimeLimit"),
        right="0 minutes",
        why="a pilot's time limit is its node's window",
        loses="a pilot that nobody withdraws holds its node so many minutes beyond the window, UNLIMITED: for ever",
        wrong="advice",
        seen=_overtime,
        holds=lambda site: number(_overtime(site)) == 0,
        edits=set_option(elastic, "OverTimeLimit", "0"),
        applies=exists(elastic),
    ),
)

_REGULAR = (
    Rule(
        name="regular partitions: PreemptMode",
        right="OFF, unless they are meant to preempt each other",
        why="with preemption on, a partition without a mode of its own has the cluster's",
        loses="jobs of these partitions may be ended for jobs of a regular partition with a higher PriorityTier",
        wrong="advice",
        seen=lambda site: ", ".join(f"{name} may be preempted" for name in _preemptable_regular(site)) or "none may be",
        holds=lambda site: not _preemptable_regular(site),
        applies=lambda site: bool(site.regular),
    ),
)

RULES: tuple[Rule, ...] = (*_ELASTIC, *_REGULAR)
