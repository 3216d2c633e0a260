"""Numbers and times in as few characters as suit a screen of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

from bftd.client import NodeGroup, Status, Trainer
from bftd.client.display import moment

# The order in which node states are drawn and counted.
STATES = ("regular", "planned", "leased", "idle", "away")


def clock(at_s: float | None) -> str:
    """Format the time of day."""
    return (moment(at_s) or "--:--:--").rpartition(" ")[2]


def date(at_s: float | None) -> str:
    """Format the date and the time of day."""
    return "now" if at_s is None else moment(at_s) or "-"


def span(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3.5 h, 2.1 d."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def window(seconds: float) -> str:
    """Format a window of history: 1 h, 1 d, 7 d."""
    return f"{seconds / 3600:g} h" if seconds < 86_400 else f"{seconds / 86_400:g} d"


def share(value: float | None) -> str:
    """Format a share in per cent; "-" if it is not known."""
    return "-" if value is None else f"{value:.0%}"


def ends(trainer: Trainer, now_s: float) -> str:
    """Return the time until a trainer's expected end, or its exit code once it has one."""
    if trainer.exit_code is not None:
        return f"rc {trainer.exit_code}"
    return "-" if trainer.expected_end_s is None else span(trainer.expected_end_s - now_s)


def state_of(group: NodeGroup) -> str:
    """Return the state of a group's nodes: as the daemon says, else guessed from the reason."""
    if group.kind in STATES:
        return group.kind
    if group.trainer:
        return "leased"
    if group.in_pool:
        return "idle"
    if group.why.startswith(("runs a job", "has job ")):
        return "regular"
    words = ("is planned", "is left to", "is needed", "is idle", "stays free", "runs")
    return "planned" if group.why.startswith(words) else "away"


def size_of(group: NodeGroup) -> int:
    """Return the number of nodes in a group; older daemons do not send it."""
    if group.count is not None:
        return group.count
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.nodeset import expand

    try:
        return len(expand(group.nodes))
    except SlurmError:
        return 0


def counts(status: Status) -> Mapping[str, int]:
    """Count nodes by state, in the order of STATES."""
    found = dict.fromkeys(STATES, 0)
    for group in status.groups:
        found[state_of(group)] += size_of(group)
    return found
