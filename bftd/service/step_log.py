"""Log lines about a step, and their levels: decisions, leases, cancellations, classes of nodes."""

from __future__ import annotations

import logging
from collections.abc import Collection

from bftd.core.model.classes import Classes
from bftd.core.model.decisions import (
    CancellingStopped,
    Decision,
    ForeignPilots,
    MapKept,
    NodeOverdue,
    Noted,
    Saved,
    SolverReplaced,
)
from bftd.core.model.domain import Action, CancelPilot, Decided, LeaseChanged

log = logging.getLogger("bftd")

# Decisions that need attention, and those in which a driver may write anything, as often as it likes.
_ALARMS = (NodeOverdue, CancellingStopped, ForeignPilots, SolverReplaced, MapKept)
_REPORTED_BY_DRIVERS = (Noted, Saved)


def log_action(action: Action, cancelling: Collection[str]) -> None:
    """Log one action; `cancelling` are the jobs whose cancellation was logged before."""
    if isinstance(action, Decided):
        log.log(level(action.decision), "%s", action.text)
    elif isinstance(action, LeaseChanged):
        log.debug("%s %s: %s", action.kind, action.lease.id, action.reason)
    elif isinstance(action, CancelPilot):
        whose = f"pilot {action.job_id} of trainer {action.trainer}" if action.trainer else f"job {action.job_id}"
        # a job that Slurm does not let us end comes again and again
        again = action.job_id in cancelling
        log.log(logging.DEBUG if again else logging.WARNING, "cancelling %s: %s", whose, action.reason)


def classes(before: Classes, after: Classes) -> None:
    """Log the classes of the harvested nodes if they have changed."""
    if dict(before) == dict(after):
        return
    sizes = ", ".join(f"{kind.size} of {name}" for name, kind in after.items())
    one = " (a trainer runs on one class unless it says mix)" if len(after) > 1 else ""
    log.info("classes of the harvested nodes: %s%s", sizes, one)


def level(decision: Decision) -> int:
    """Return the level at which a decision is logged."""
    if isinstance(decision, _ALARMS):
        return logging.WARNING
    return logging.DEBUG if isinstance(decision, _REPORTED_BY_DRIVERS) else logging.INFO
