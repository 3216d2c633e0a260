"""The site's control of the daemon as `bft status` shows it: pauses, hours, a bound; and what needs attention."""

from __future__ import annotations

from math import inf
from typing import Any

from bftd.core.inputs import delay_budget
from bftd.core.model import growth_stops, messages, timing
from bftd.core.model.domain import State
from bftd.core.planning import admin_limits


def shown(state: State, now_s: float) -> dict[str, Any]:
    """Return the part of `GET /v1/status` about the site's control of the daemon."""
    return {
        "pauses": pauses(state),
        "hours": _hours(state, now_s),
        "bound": _bound(state),
        "alarms": alarms(state, now_s),
        "silent": _silent(state, now_s),
    }


def pauses(state: State) -> list[dict[str, Any]]:
    """Return who paused what, when and why; nodes that one command paused are one item."""
    return [
        {
            "kind": pause.kind,
            "names": [name for name in names if name],
            "by": pause.by,
            "since_s": pause.since_s,
            "why": pause.why,
            "release": pause.release,
            "text": messages.paused(growth_stops.named(pause.kind, names), pause.by, pause.why),
        }
        for pause, names in growth_stops.folded(state.pauses.values())
    ]


def alarms(state: State, now_s: float, plugin_fault: str = "") -> list[dict[str, Any]]:
    """Return what needs attention: latched alarms, nodes not given back in time, and failures outside the core."""
    latched = [{"kind": kind, "node": None, "text": text} for kind, text in state.alarms.items()]
    overdue = [(lease.node, now_s - (lease.asked_back_s or now_s)) for lease in state.leases.values() if lease.alarmed]
    late = [
        {"kind": "overdue", "node": node, "text": f"{node} was asked back {since_s:.0f} s ago and is still in use"}
        for node, since_s in overdue
    ]
    text = f"{plugin_fault}: every sbatch of this host prints an error"
    plugin = [{"kind": "plugin", "node": None, "text": text}] if plugin_fault else []
    return latched + late + _solver(state) + plugin + delay_budget.alarms(state, now_s)


def _solver(state: State) -> list[dict[str, Any]]:
    """Return an alarm if the site's solver fails; "auto" has failed only if no plan could be made."""
    failed = state.failed_solvers.get(state.settings.decide.solver)
    if failed is None:
        return []
    text = messages.unsolved(failed.error)
    if failed.instead:
        text = messages.solver_replaced(failed.error, failed.instead)
    return [{"kind": failed.alarm, "node": None, "text": text}]


def _hours(state: State, now_s: float) -> dict[str, Any] | None:
    """Say whether this is an hour of harvesting, and until when; None if every hour is one."""
    if not state.settings.pool.harvest_at:
        return None
    opening = growth_stops.opening(state.settings, now_s)
    until_s = opening.until_s if opening.until_s < inf else None
    return {"open": opening.open, "until_s": until_s, "text": growth_stops.hours_text(state.settings, now_s)}


def _bound(state: State) -> dict[str, Any] | None:
    """Return the most nodes that all trainers together may have, and how many are taken; None if there is no bound."""
    most, key = admin_limits.bound(state.settings, len(state.pool.nodes))
    return None if most is None else {"most": most, "key": key, "used": len(state.leases), "text": state.pool.bound}


def _silent(state: State, now_s: float) -> list[str]:
    """Return the trainers whose driver has missed its polls."""
    return [
        trainer.id
        for trainer in state.trainers.values()
        if trainer.active and now_s - trainer.heard_s > timing.DRIVER_SILENT_S
    ]
