"""One node's details beside its row in the status: why it is or is not in the pool, in words. Pure."""

from __future__ import annotations

from typing import Any

from bftd.core import sampling
from bftd.core.model import growth_stops
from bftd.core.model.domain import State
from bftd.service import status


def shown(state: State, name: str, now_s: float) -> dict[str, Any] | None:
    """Return a node's row of the status with details; None for a node that is not harvested.

    `left_out_until_s` is the time until which a node that refused pilots is not lent (to `left_out_for` only, unless
    that is ""); `quarantined_until_s` is the same for a node whose workers crashed. `earmark` is the job that it is
    earmarked for.
    """
    item = state.pool.nodes.get(name)
    if item is None:
        return None
    held = next((lease for lease in state.leases.values() if lease.node == name), None)
    until_s, avoided = state.quarantined.get(name), state.backoff.get(name)
    earmark = next((earmark for earmark in state.pool.earmarks.values() if name in earmark.nodes), None)
    pauses = (growth_stops.of_all(state.pauses), growth_stops.of_node(state.pauses, name))
    return status.node(item, held, sampling.kinds(state)[name]) | {
        "gres": item.gres,
        "gpus": item.gpus,
        "co_located": item.co_located,
        "beside": item.co_located,  # until 0.2
        "pilot": item.pilot,
        "quarantined_until_s": until_s if until_s is not None and until_s > now_s else None,
        "failures": len(state.failures.get(name, ())),
        "left_out_until_s": avoided.until_s if avoided is not None and avoided.until_s > now_s else None,
        "left_out_for": avoided.user if avoided is not None and avoided.until_s > now_s else "",
        "earmark": None
        if earmark is None
        else {"job": earmark.job, "since_s": earmark.since_s, "due_s": earmark.due_s},
        "paused": [growth_stops.text(pause) for pause in pauses if pause is not None],
    }
