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


def needed(release: tuple[int, int]) -> bool:
    """Whether pilots need the reservation on a release, as in (24, 11)."""
    return release > _NUMBER_DECIDES


def create_command(node: str) -> tuple[str, ...]:
    """Return the command that makes it of one service node; for root or a Slurm operator, once.

    Slurm lets every user use it (all but a user who submits nothing): bftd.lua restricts it.
    """
    return (
        *("scontrol", "create", "reservation", f"reservationname={NAME}", "starttime=now+3650days", "duration=1"),
        *(f"nodes={node}", "users=-daemon", "flags=flex,ignore_jobs,overlap"),
    )
