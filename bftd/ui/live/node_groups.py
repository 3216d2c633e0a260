"""Groups of nodes: their state and their number, also from a daemon that tells neither."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bftd.base.view import NODE_STATES
from bftd.client import NodeGroup, Status


def state_of(group: NodeGroup) -> str:
    """Return the state of a group's nodes: as the daemon says, else guessed from the reason."""
    if group.kind in NODE_STATES:
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


def in_order(groups: Iterable[NodeGroup]) -> list[NodeGroup]:
    """Return the groups by state, the largest first."""
    return sorted(groups, key=lambda group: (NODE_STATES.index(state_of(group)), -size_of(group)))


def counts(status: Status) -> Mapping[str, int]:
    """Count nodes by state, in the order of NODE_STATES."""
    found = dict.fromkeys(NODE_STATES, 0)
    for group in status.groups:
        found[state_of(group)] += size_of(group)
    return found
