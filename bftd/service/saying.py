"""What of a step is told in the daemon's log, and how loud: decisions, leases, cancellations, classes of nodes."""

from __future__ import annotations

import logging
from collections.abc import Collection

from bftd.core.classes import Classes
from bftd.core.decisions import (
    CancellingStopped,
    Decision,
    ForeignPilots,
    MapKept,
    NodeOverdue,
    Noted,
    Saved,
    SolverReplaced,
)
from bftd.core.domain import Action, CancelPilot, Decided, LeaseChanged

log = logging.getLogger("bftd")

# Decisions that somebody has to look at, and those in which a driver may say what it likes as often as it likes.
_ALARMS = (NodeOverdue, CancellingStopped, ForeignPilots, SolverReplaced, MapKept)
_SAID_BY_DRIVERS = (Noted, Saved)


def tell(action: Action, cancelling: Collection[str]) -> None:
    """Log one action; `cancelling` are the jobs of which it was said already that they are cancelled."""
    if isinstance(action, Decided):
        log.log(level(action.decision), "%s", action.text)
    elif isinstance(action, LeaseChanged):
        log.debug("%s %s: %s", action.kind, action.lease.id, action.reason)
    elif isinstance(action, CancelPilot):
        whose = f"pilot {action.job_id} of trainer {action.trainer}" if action.trainer else f"job {action.job_id}"
        # one that Slurm does not let us end comes again and again
        again = action.job_id in cancelling
        log.log(logging.DEBUG if again else logging.WARNING, "cancelling %s: %s", whose, action.reason)


def classes(before: Classes, after: Classes) -> None:
    """Log which classes the harvested nodes are of, where that is news."""
    if dict(before) == dict(after):
        return
    sizes = ", ".join(f"{kind.size} of {name}" for name, kind in after.items())
    one = " (a trainer runs on one class unless it says mix)" if len(after) > 1 else ""
    log.info("classes of the harvested nodes: %s%s", sizes, one)


def level(decision: Decision) -> int:
    """The level at which a decision is logged."""
    if isinstance(decision, _ALARMS):
        return logging.WARNING
    return logging.DEBUG if isinstance(decision, _SAID_BY_DRIVERS) else logging.INFO
