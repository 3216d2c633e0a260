"""Rules on accounting: pilots are their users' jobs, but must cost their users' regular jobs nothing.

A partition's TRESBillingWeights decide what fair-share sees. Limits on used time, such as GrpTRESMins, count CPUs and
nodes directly, times the UsageFactor of the job's own QOS; that of a partition's QOS is ignored (measured on 22.05). So
bftd.lua gives pilots a QOS of their own.
"""

from __future__ import annotations

from slurm_plugin.read.settings import options
from slurm_plugin.site.helpers import elastic, exists, set_option
from slurm_plugin.site.model import Site
from slurm_plugin.site.rule import Rule

QOS = "bft-pilots"
_WEIGHTS = "TRESBillingWeights"


def keeps_accounts(site: Site) -> bool:
    """Whether slurmdbd records usage."""
    return site.config.get("AccountingStorageType", "").endswith("slurmdbd")


def needs_qos(site: Site) -> bool:
    """Whether limits on used time may be enforced, from which only a QOS exempts pilots."""
    enforced = options(site.config.get("AccountingStorageEnforce", ""))
    return keeps_accounts(site) and not {"limits", "safe"}.isdisjoint(enforced)


def qos_commands(site: Site) -> tuple[str, ...]:
    """Return the commands that make the QOS and grant it, to be run once by an administrator.

    They come before the lines for job_submit.lua. Accounts and users without their own list of QOS have their parent's;
    the last command is for accounts with a list.
    """
    cluster = site.config.get("ClusterName", "")
    return (
        f"sacctmgr -i add qos {QOS}",
        f"sacctmgr -i modify qos {QOS} set UsageFactor=0",
        f"sacctmgr -i modify cluster {cluster} set qos+={QOS}",
        f"sacctmgr -i modify account where cluster={cluster} set qos+={QOS}",
    )


def qos_of(site: Site, settings: dict[str, str] | None) -> str:
    """Return the QOS of pilots: the one set for bftd.lua already, or ours."""
    return (settings or {}).get("qos") or QOS


def factor_seen(site: Site, name: str) -> str:
    """Return the text on a QOS's UsageFactor."""
    if site.usage_factors is None:
        return "sacctmgr does not tell"
    return f"{name}, UsageFactor {site.usage_factors[name]:g}" if name in site.usage_factors else f"no QOS {name}"


def _weights(site: Site) -> dict[str, str]:
    return options(site.partitions[elastic(site)].get(_WEIGHTS, ""))


def _all_zero(site: Site) -> bool:
    try:
        return bool(_weights(site)) and not any(float(weight) for weight in _weights(site).values())
    except ValueError:  # with a unit, as in Mem=0.25G
        return False


RULES: tuple[Rule, ...] = (
    Rule(
        name=f"harvested partition: {_WEIGHTS}",
        right="CPU=0, where slurmdbd keeps accounts: what is not named weighs nothing",
        why="each pilot is a job of its user, on his account: what is billed for it lowers the fair-share of his "
        "regular jobs, under priority/multifactor, and counts towards limits on billing",
        loses="harvested time is charged like regular time: two pilots of 4 CPUs that ran 12 s added 96 to RawUsage, "
        "and nothing with this line (measured)",
        wrong="advice",
        seen=lambda site: site.partitions[elastic(site)].get(_WEIGHTS, "not set"),
        holds=_all_zero,
        edits=set_option(elastic, _WEIGHTS, "CPU=0"),
        applies=lambda site: keeps_accounts(site) and exists(elastic)(site),
    ),
)
