"""The reservation that lets pilots past a standing queue on newer releases of Slurm.

slurmctld refuses an immediate allocation that is not first in line. Up to 22.05 a high priority number makes it first.
On 24.11 and 26.05 the partitions' PriorityTier is compared before it, and the pilots' has to be the lowest. Jobs of a
reservation are not compared with jobs without one. A reservation that starts in years takes no nodes from any job, and
FLEX lets its jobs begin before it and run anywhere. (Measured on all three; the releases between were not tried.)
"""

from __future__ import annotations

NAME = "bft-pilots"
# The last release on which the number was seen to decide.
_NUMBER_DECIDES = (22, 5)
# Values of AccountingStorageEnforce with which a job needs an association, and so does a user named in a reservation.
_ENFORCING = frozenset({"associations", "limits", "qos", "safe", "wckeys", "all"})


def needed(release: tuple[int, int]) -> bool:
    """Whether pilots need the reservation on a release, as in (24, 11)."""
    return release > _NUMBER_DECIDES


def create_command(node: str, enforce: str = "") -> tuple[str, ...]:
    """Return the command that makes it of one service node; for root or a Slurm operator, once.

    Slurm lets every user use it, by AccountingStorageEnforce (`enforce`) all accounts below root, or all users but one
    who submits nothing: bftd.lua restricts it.
    """
    users = "users=-daemon" if _ENFORCING.isdisjoint(enforce.lower().split(",")) else "accounts=root"
    return (
        *("scontrol", "create", "reservation", f"reservationname={NAME}", "starttime=now+3650days", "duration=1"),
        *(f"nodes={node}", users, "flags=flex,ignore_jobs,overlap"),
    )
