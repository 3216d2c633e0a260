"""The site's promise to regular jobs: if pilots have delayed them by more than its budget, nothing new is lent.

Lent nodes stay: their pilots delay only jobs that need the nodes, and leave as always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bftd.core.model import messages
from bftd.core.model.delays import Delays
from bftd.core.model.domain import PoolView, Settings, State
from bftd.core.model.draft import Draft

ALARM = "delay"


def kept(turn: Draft, view: PoolView) -> PoolView:
    """Count the starts that a view shows. Returns the view, which forbids growing if the budget is spent."""
    if view.touched or turn.delays.recent:
        turn.delays = turn.delays.noted(view.touched, view.time_s)
    for start in view.touched if turn.explain else ():
        times = {"since_s": start.since_s, "start_s": start.start_s, "delay_s": start.delay_s}
        turn.happened("regular_start", data={"job": start.job, "nodes": len(start.nodes), **times})
    why = spent(turn.delays, turn.settings, view.time_s)
    return replace(view, hold=why) if why and view.hold is None else view


def spent(delays: Delays, settings: Settings, at_s: float) -> str:
    """Say that the budget of the last hour is spent; "" if it is not."""
    budget_s, counted_s = settings.promise.delay_s_per_hour, delays.counted_s(at_s)
    return messages.delayed(counted_s, budget_s) if budget_s and counted_s > budget_s else ""


def shown(state: State, now_s: float) -> dict[str, Any]:
    """Return the part of `GET /v1/status` about delays."""
    delays = state.delays
    return {
        "starts": delays.starts,
        "unknown": delays.unknown,
        "delay_seconds": delays.total_s,
        "counted_s": delays.counted_s(now_s),
        "budget_s": state.settings.promise.delay_s_per_hour or None,
    }


def alarms(state: State, now_s: float) -> list[Mapping[str, Any]]:
    """Return the alarm for as long as the budget is spent."""
    why = spent(state.delays, state.settings, now_s)
    return [{"kind": ALARM, "node": None, "text": why}] if why else []
