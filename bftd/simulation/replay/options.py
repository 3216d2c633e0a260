"""The options of a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from bftd.base.errors import UsageError
from bftd.config.keys import DecideConfig

Policy = Literal["milp", "equal-share", "scavenger"]
Objective = Literal["curve", "throughput", "efficiency"]
Accounting = Literal["exact", "reference"]
RescaleModel = Literal["paper", "measured"]

_DAEMON = DecideConfig()


@dataclass(frozen=True)
class Mends:
    """Corrections of the paper's reference implementation.

    `completion_events`: a trainer that completes or arrives is an event of its own, instead of waiting for the next
    change of the pool. `startup_charge`: a start from no nodes costs R_up too, and the plan knows it. `right_big_m`:
    the M of equations (8) and (10) is large enough for a trainer to change by any number of nodes at once.
    """

    completion_events: bool
    startup_charge: bool
    right_big_m: bool


EXACT = Mends(completion_events=True, startup_charge=True, right_big_m=True)
REFERENCE = Mends(completion_events=False, startup_charge=False, right_big_m=False)


@dataclass(frozen=True)
class Options:
    """Options of a replay; defaults are the daemon's, except for the objective: the paper plans by curves.

    `nodes` and `hours` cut the trace; `cost_multiplier` scales all rescale costs. `scavenger_nodes` is the size of the
    rigid jobs of the policy "scavenger" (None: the best power of 2), `checkpoint_every_s` the interval between their
    checkpoints. `mends` overrides `accounting`, to show the effect of each correction. With `endless` the list of
    trainers starts again when it is used up. `seed` is for callers that sample from the result; a replay draws nothing.
    With `warm_up_s` a node takes part that long after it was lent, at the trainers' own costs. `max_nodes` bounds all
    trainers together; 0 is no limit.
    """

    t_fwd_s: float = _DAEMON.t_fwd_s
    pj_max: int = _DAEMON.pj_max
    policy: Policy = "milp"
    objective: Objective = "curve"
    accounting: Accounting = "exact"
    cost_multiplier: float = 1.0
    hours: float | None = None
    nodes: str | None = None
    solver: str = _DAEMON.solver
    rescale_model: RescaleModel = "paper"
    scavenger_nodes: int | None = None
    checkpoint_every_s: float = 600.0
    seed: int = 0
    mends: Mends | None = None
    endless: bool = False
    warm_up_s: float = 0.0
    max_nodes: int = 0

    def __post_init__(self) -> None:
        for name, choices in (
            ("policy", Policy),
            ("objective", Objective),
            ("accounting", Accounting),
            ("rescale_model", RescaleModel),
        ):
            if getattr(self, name) not in get_args(choices):
                listed = ", ".join(get_args(choices))
                raise UsageError(f"{name} {getattr(self, name)!r} is not known: use one of {listed}")
        _at_least("t_fwd_s", self.t_fwd_s, 0.0, above=True)
        _at_least("cost_multiplier", self.cost_multiplier, 0.0)
        _at_least("checkpoint_every_s", self.checkpoint_every_s, 0.0, above=True)
        _at_least("warm_up_s", self.warm_up_s, 0.0)
        _at_least("max_nodes", self.max_nodes, 0)
        if self.hours is not None:
            _at_least("hours", self.hours, 0.0, above=True)
        for name in ("pj_max", "scavenger_nodes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.solver != "auto":
            _check_solver(self.solver)
        if self.rescale_model == "measured" and self.accounting == "reference":
            raise UsageError("the measured rescale model has no reference accounting: leave one of them out")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Options:
        """Return the options that `to_json` wrote."""
        mends = data.get("mends")
        return cls(**{**data, "mends": None if mends is None else Mends(**mends)})

    def to_json(self) -> dict[str, Any]:
        """Return all options as JSON data."""
        return asdict(self)

    @property
    def mended(self) -> Mends:
        """The corrections made in this replay."""
        return self.mends or (EXACT if self.accounting == "exact" else REFERENCE)


def _check_solver(name: str) -> None:
    from milp import solver_names

    if name not in solver_names():
        raise UsageError(f"unknown solver {name!r}: use one of {', '.join(solver_names())}")


def _at_least(name: str, value: float, least: float, *, above: bool = False) -> None:
    if not math.isfinite(value) or value < least or (above and value == least):
        raise UsageError(f"{name} must be a number {'above' if above else 'of at least'} {least:g}, not {value}")
