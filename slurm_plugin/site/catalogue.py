"""All rules, in the order in which they are shown for a site."""

from __future__ import annotations

from slurm_plugin.site import accounts, backfill, cluster, drivers, harvested, plugins, scheduler
from slurm_plugin.site.rule import Rule

RULES: tuple[Rule, ...] = (
    *cluster.RULES,
    *scheduler.RULES,
    *backfill.RULES,
    *harvested.RULES,
    *accounts.RULES,
    *drivers.RULES,
    *plugins.RULES,
)


def reference() -> str:
    """Return all rules as the Markdown table of docs/reference/site.md."""
    rows = ["| line | right | else | why | what another value costs |", "|---|---|---|---|---|"]
    rows += [f"| {rule.name} | {rule.right} | {rule.wrong} | {rule.why} | {rule.loses} |" for rule in RULES]
    return "\n".join(rows)
