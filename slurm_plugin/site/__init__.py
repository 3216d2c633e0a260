"""Checks of a site's Slurm settings: rules that each read one setting, and the lines that make the rules hold."""

from slurm_plugin.site import accounts, backfill, cluster, drivers, harvested, plugins, scheduler
from slurm_plugin.site.lines import Advised, advise, render
from slurm_plugin.site.model import DaemonSettings, Site
from slurm_plugin.site.read import plugin_folders, read
from slurm_plugin.site.rule import Edit, Finding, Level, Rule, check

__all__ = [
    "RULES",
    "Advised",
    "DaemonSettings",
    "Edit",
    "Finding",
    "Level",
    "Rule",
    "Site",
    "advise",
    "check",
    "plugin_folders",
    "read",
    "render",
]


# In the order in which they are shown for a site.
RULES: tuple[Rule, ...] = (
    *cluster.RULES,
    *scheduler.RULES,
    *backfill.RULES,
    *harvested.RULES,
    *accounts.RULES,
    *drivers.RULES,
    *plugins.RULES,
)
