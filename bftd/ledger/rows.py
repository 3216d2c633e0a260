"""Events as rows of the ledger."""

from __future__ import annotations

import json

from bftd.core.model import decisions
from bftd.core.model.domain import Action, CancelPilot, Charged, Decided, Happened, LeaseChanged, SolverFailed

# Time, kind, the trainer and node that the event is about, and its data as JSON.
EventRow = tuple[float, str, str | None, str | None, str]


def of(at_s: float, action: Action) -> EventRow:
    """Return an action at `at_s` as a row of the events table; Charged actions belong to another table."""
    assert not isinstance(action, Charged)
    return at_s, *_row(action)


def _row(action: Action) -> tuple[str, str | None, str | None, str]:
    """Return kind, trainer, node and data of an action as columns of the events table."""
    if isinstance(action, Decided):
        decision = {"text": action.text, "decision": decisions.to_json(action.decision)}
        return "decision", action.trainer, None, json.dumps(decision)
    if isinstance(action, Happened):
        return action.kind, action.trainer, action.node, json.dumps(dict(action.data))
    if isinstance(action, SolverFailed):
        return "solver_failed", None, None, json.dumps({"error": action.error})
    if isinstance(action, CancelPilot):
        return "cancel", action.trainer, None, json.dumps({"job_id": action.job_id, "reason": action.reason})
    assert isinstance(action, LeaseChanged)
    lease = action.lease
    data = {"lease": lease.id, "reason": action.reason, "vacate": lease.vacate, "job_id": lease.job_id}
    return action.kind, lease.trainer, lease.node, json.dumps(data)
