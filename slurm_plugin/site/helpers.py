"""Building blocks of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from slurm_plugin.read.parse import time_limit_s
from slurm_plugin.read.settings import number
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import NOT_SHOWN, Edit, Rule

LIST = "SchedulerParameters"
UNSET = "not set"

Whose = Callable[[Site], str]


def elastic(site: Site) -> str:
    """Return the name of the harvested partition."""
    return site.wanted.partition


def driver(site: Site) -> str:
    """Return the name of the drivers' partition."""
    return site.wanted.driver_partition


def exists(whose: Whose) -> Callable[[Site], bool]:
    """Return a function that tests whether the site has this partition."""
    return lambda site: site.has(whose(site))


def setting(key: str) -> Callable[[Site], str]:
    """Return a function that reads a setting of slurm.conf as text."""
    return lambda site: site.config.get(key, NOT_SHOWN)


def option_of(whose: Whose, key: str) -> Callable[[Site], str]:
    """Return a function that reads a partition's option as text."""
    return lambda site: site.partitions[whose(site)].get(key, NOT_SHOWN)


def set_to(key: str, value: str) -> Callable[[Site], Sequence[Edit]]:
    """Return a function that makes an edit to a line of slurm.conf."""
    return lambda site: (Edit("slurm.conf", "", key, value),)


def partition_edit(name: str, key: str, value: str) -> Edit:
    """Return an edit of an option on a partition's line."""
    return Edit("slurm.conf", f"PartitionName={name}", key, value)


def set_option(whose: Whose, key: str, value: str | Callable[[Site], str]) -> Callable[[Site], Sequence[Edit]]:
    """Return a function that makes an edit to an option on the line of one of our partitions."""
    return lambda site: (partition_edit(whose(site), key, value if isinstance(value, str) else value(site)),)


def pilot_limit(site: Site) -> str:
    """Return the longest limit of a pilot as slurm.conf writes it."""
    hours, minutes = divmod(site.wanted.pilot_limit_min, 60)
    return f"{hours:02d}:{minutes:02d}:00"


def outranked(site: Site, name: str, among: Sequence[str]) -> bool:
    """Whether another partition shares nodes with this one and has a higher tier."""
    nodes, tier = site.nodes_of(name), site.tier_of(name)
    return any(site.tier_of(other) > tier and not nodes.isdisjoint(site.nodes_of(other)) for other in among)


def max_time_s(site: Site, whose: Whose) -> float:
    """Return the longest time limit of one of our partitions; infinite without one."""
    limit_s = time_limit_s(site.partitions[whose(site)].get("MaxTime", "UNLIMITED"))
    return inf if limit_s is None else limit_s


def option_rule(
    whose: Whose,
    title: Callable[[str], str],
    key: str,
    value: str,
    loses: str,
    why: str,
    *,
    right: str = "",
    holds: Callable[[str], bool] | None = None,
    advice: bool = False,
) -> Rule:
    """Return a rule on one option of one of our partitions."""
    test = holds or (lambda text: text.upper() == value)
    return Rule(
        name=title(key),
        right=right or value,
        why=why,
        loses=loses,
        wrong="advice" if advice else "must",
        seen=option_of(whose, key),
        holds=lambda site: test(site.partitions[whose(site)][key]),
        edits=set_option(whose, key, value),
        applies=exists(whose),
    )


def seen_option(key: str, default: str = "") -> Callable[[Site], str]:
    """Return a function that reads an option of SchedulerParameters, or Slurm's default if it is not set."""

    def text(site: Site) -> str:
        if LIST not in site.config:
            return NOT_SHOWN
        found = site.scheduler_parameters
        if key in found:
            return found[key] or "set"
        return f"{UNSET} (default {default})" if default else UNSET

    return text


def value_of(site: Site, key: str, default: int) -> int:
    """Return the number of an option of SchedulerParameters, or Slurm's default."""
    found = number(site.scheduler_parameters.get(key, ""))
    return default if found is None else found


def set_parameter(key: str, value: str = "") -> Callable[[Site], Sequence[Edit]]:
    """Return a function that makes an edit to an option of SchedulerParameters."""
    return lambda site: (Edit("slurm.conf", LIST, key, value),)
