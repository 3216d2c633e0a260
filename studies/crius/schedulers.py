"""The compared schedulers by name: Crius, its ablations and the simplified baselines."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from sizing.base.errors import UsageError
from studies.crius.baselines import BASELINES, ByGain, Profiled
from studies.crius.policy import PATIENCE_S, ROUND_S, CriusPolicy
from studies.simulation.types import Policy, Speeds

Maker = Callable[[Speeds, Speeds], Policy]


def _by_gain(name: str) -> Maker:
    return lambda told, true: ByGain(BASELINES[name](told, true), Profiled(told, true), PATIENCE_S)


_CRIUS: Mapping[str, Maker] = {
    "crius": lambda told, true: CriusPolicy(told, interval_s=ROUND_S),
    "crius-na": lambda told, true: CriusPolicy(told, interval_s=ROUND_S, adaptive=False),
    "crius-nh": lambda told, true: CriusPolicy(told, interval_s=ROUND_S, heterogeneous=False),
    "crius-ddl": lambda told, true: CriusPolicy(told, interval_s=ROUND_S, deadlines=True),
    "crius-patient": lambda told, true: CriusPolicy(told, patience_s=PATIENCE_S, name="Crius-patient"),
}
_BY_GAIN: Mapping[str, Maker] = {f"{name}-by-gain": _by_gain(name) for name in ("elasticflow-ls", "gandiva", "easy")}
SCHEDULERS: Mapping[str, Maker] = {**_CRIUS, **BASELINES, **_BY_GAIN}
"""Makers from the speeds that a scheduler is told, and the true ones, which a baseline's job shows at its start."""

NEED_DEADLINES = ("crius-ddl", "elasticflow")
"""Schedulers that behave differently for jobs with a deadline."""
USUAL: Sequence[str] = (
    *("crius", "crius-na", "crius-nh", "crius-patient"),
    *("elasticflow-ls", "gavel", "gandiva", "easy", "fcfs"),
)
"""The schedulers compared by default: all that ignore deadlines."""


def maker(name: str) -> Maker:
    """Return the maker of a scheduler. Raises UsageError, one line, for an unknown name."""
    if name in SCHEDULERS:
        return SCHEDULERS[name]
    near = difflib.get_close_matches(name.lower(), SCHEDULERS, n=1, cutoff=0.5)
    raise UsageError(
        f"--policy {name[:40]!r}: no such policy; "
        + (f"did you mean {near[0]}?" if near else f"one of {', '.join(SCHEDULERS)}")
    )
