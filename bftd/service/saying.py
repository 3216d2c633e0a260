"""What of the core's decisions is told in the daemon's log, and how loud."""

from __future__ import annotations

import logging

from bftd.core.classes import Classes
from bftd.core.decisions import CancellingStopped, Decision, ForeignPilots, NodeOverdue, Noted, Saved

log = logging.getLogger("bftd")

# Decisions that somebody has to look at, and those in which a driver may say what it likes as often as it likes.
_ALARMS = (NodeOverdue, CancellingStopped, ForeignPilots)
_SAID_BY_DRIVERS = (Noted, Saved)


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
