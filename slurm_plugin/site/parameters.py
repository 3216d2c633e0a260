"""Building blocks of rules on SchedulerParameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_plugin.read.settings import number
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import NOT_SHOWN, Edit

LIST = "SchedulerParameters"
UNSET = "not set"


def seen_option(key: str, default: str = "") -> Callable[[Site], str]:
    """Return a function that reads an option's text, or Slurm's default if it is not set."""

    def text(site: Site) -> str:
        if LIST not in site.config:
            return NOT_SHOWN
        found = site.scheduler_parameters
        if key in found:
            return found[key] or "set"
        return f"{UNSET} (default {default})" if default else UNSET

    return text


def value_of(site: Site, key: str, default: int) -> int:
    """Return the number of an option, or Slurm's default."""
    found = number(site.scheduler_parameters.get(key, ""))
    return default if found is None else found


def set_parameter(key: str, value: str = "") -> Callable[[Site], Sequence[Edit]]:
    """Return a function that makes an edit to an option in the list."""
    return lambda site: (Edit("slurm.conf", LIST, key, value),)
