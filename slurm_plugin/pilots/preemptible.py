"""The check that regular jobs get harvested nodes back, from Slurm's settings of the harvested partitions. Pure.

The rules of `bft site check` and the daemon, which harvests nothing otherwise, both use these functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from slurm_plugin.nodeset import expand

BY_TIER = "preempt/partition_prio"
BY_QOS = "preempt/qos"
_ENDING = frozenset({"CANCEL", "REQUEUE"})
_NEEDED = ("Nodes", "PriorityTier", "PreemptMode", "Default")


def ends(mode: str) -> bool:
    """Whether a partition's PreemptMode ends a preempted job; a job that is only stopped keeps its memory."""
    return mode.upper() in _ENDING


def below(tier: int, others: Iterable[int]) -> bool:
    """Whether a PriorityTier is lower than all others."""
    return all(tier < other for other in others)


def objection(
    config: Mapping[str, str], partitions: Mapping[str, Mapping[str, str]], harvested: Collection[str]
) -> str:
    """Return the reason why `harvested` must not be harvested, in one line with the change to slurm.conf, else "".

    `config` is `scontrol show config` by key, `partitions` the options of every partition as scontrol shows them. Under
    preempt/qos the jobs' QOS decide, which neither shows, so the tier is ignored.
    """
    kind = config.get("PreemptType", "")
    if kind not in (BY_TIER, BY_QOS):
        return (
            f"nothing ends pilots when regular jobs need their nodes: set PreemptType={BY_TIER} (now {kind or 'none'})"
        )
    for name in harvested:
        options = partitions.get(name)
        if options is None:
            return f"there is no partition {name}"
        if missing := [key for key in _NEEDED if key not in options]:
            return f"Slurm does not show {missing[0]} of the partition {name}"
        if options["Default"].upper() == "YES":
            return f"the partition {name} is where regular jobs go: set Default=NO on it, or harvest another"
        if kind == BY_TIER and (why := _not_by_tier(name, partitions, harvested)):
            return why
    return ""


def _not_by_tier(name: str, partitions: Mapping[str, Mapping[str, str]], harvested: Collection[str]) -> str:
    """Return the reason why a partition's tier does not let its jobs be preempted, or ""."""
    mode, tier = partitions[name]["PreemptMode"], _tier(partitions[name])
    if not ends(mode):
        return f"jobs of the partition {name} cannot be preempted: set PreemptMode=CANCEL on it (now {mode})"
    mine = _nodes(partitions[name])
    for other, options in partitions.items():
        theirs = _nodes(options)
        shared = mine is None or theirs is None or not mine.isdisjoint(theirs)
        if other not in harvested and shared and not below(tier, [_tier(options)]):
            return (
                f"jobs of the partition {other} cannot take nodes back from {name}: give {name} a lower PriorityTier "
                f"({name} has {tier}, {other} {_tier(options)})"
            )
    return ""


def _tier(options: Mapping[str, str]) -> int:
    text = options.get("PriorityTier", "")
    return int(text) if text.isdecimal() else 0


def _nodes(options: Mapping[str, str]) -> frozenset[str] | None:
    """Return the nodes of a partition, None for all nodes."""
    text = options.get("Nodes", "ALL")
    return None if text == "ALL" else frozenset(expand(text))
