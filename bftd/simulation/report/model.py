"""The contents of a report as values: per site the pool, the replays and the settings that were tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bftd.simulation.price import Price

WEEK_S = 7 * 86400.0
OURS: Final = "milp"
EQUAL_SHARE: Final = "equal-share"
RIGID: Final = "scavenger"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NodeUse:
    """Mean numbers of nodes that trainers held, and on which they trained, in the bins of the trace's idle nodes."""

    held: Floats
    training: Floats


@dataclass(frozen=True)
class Replayed:
    """One replay: `data` is all the JSON of `bft replay`, the properties are the parts that a report needs.

    `use` is known only of a replay that was made for this report.
    """

    data: Mapping[str, Any]
    use: NodeUse | None = None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the replay."""
        arguments: Mapping[str, Any] = self.data["run"]["arguments"]
        return arguments

    @property
    def policy(self) -> str:
        """The allocation policy, one of those of `bft replay`."""
        return str(self.arguments["policy"])

    @property
    def efficiency(self) -> float:
        """U = A_e / A_s."""
        return float(self.data["efficiency"])

    @property
    def duration_s(self) -> float:
        """The duration of the trace, from equation (18): N_eq is node-seconds over duration."""
        return float(self.data["node_hours"]) * 3600 / float(self.data["eq_nodes"])

    @property
    def idle_per_week(self) -> float:
        """The idle node-hours, scaled to a week."""
        return float(self.data["node_hours"]) * WEEK_S / self.duration_s

    @property
    def series(self) -> Sequence[Mapping[str, float]]:
        """One entry for every six hours; empty if it was not stored."""
        series: Sequence[Mapping[str, float]] = self.data.get("series") or ()
        return series

    def of_idle(self, word: str) -> float:
        """Return the part of the idle node-hours that was "training", or "held"."""
        return float(self.data[f"{word}_node_hours"]) / float(self.data["node_hours"])

    def share(self, samples: str) -> float:
        """Return one of the figures in samples as a share of the outcome of dedicated nodes."""
        static = float(self.data["static_outcome_samples"])
        return float(self.data[samples]) / static if static > 0 else 0.0

    def same_but_policy(self, other: Replayed) -> bool:
        """Whether two replays may be compared: they differ in nothing but the policy."""
        return _setting(self) == _setting(other)


def _setting(replayed: Replayed) -> dict[str, Any]:
    free = {"policy", "scavenger_nodes", "solver"}
    return {key: value for key, value in replayed.arguments.items() if key not in free}


@dataclass(frozen=True)
class TriedSettings:
    """One pair of settings that was tried, and its results; None where they are not known.

    `efficiency` is the share of the idle node-hours that was recovered, which can be compared between values of pj_max.
    `u` is known only of a replay: a sweep counts in node-seconds, by which U is another figure than in samples.
    """

    t_fwd_s: float
    pj_max: int
    efficiency: float | None = None
    mean_runtime_s: float | None = None
    node_hours_per_week: float | None = None
    u: float | None = None


@dataclass(frozen=True)
class WeeklyGain:
    """Node-hours recovered a week with one pair of settings, with bounds and their confidence."""

    t_fwd_s: float
    pj_max: int
    node_hours_per_week: float
    low: float | None = None
    high: float | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class IdleNodes:
    """The idle nodes of a trace: mean count in bins of equal length, and the lengths of the idle periods in seconds.

    `edges_s` has one entry more than `idle_nodes`. The trace's start or end cuts `cut` of the periods. `notes` list
    unclear data met while the trace was made.
    """

    nodes: int
    duration_s: float
    start: str
    edges_s: Floats
    idle_nodes: Floats
    least: int
    most: int
    events_per_h: float
    lengths_s: Floats
    cut: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One site: a trace with all results for it. `pool` is None if only stored results were given.

    `price` is what its regular jobs pay, None without a log of them. `expected` is for the settings of the main replay
    or, with `recommended`, for those that `bft advise` chose.
    """

    name: str
    pool: IdleNodes | None = None
    replays: Sequence[Replayed] = ()
    points: Sequence[TriedSettings] = ()
    expected: WeeklyGain | None = None
    recommended: bool = False
    notes: Sequence[str] = ()
    price: Price | None = None

    @property
    def main(self) -> Replayed | None:
        """The main replay of the page: the first one of bftd's own policy."""
        return next((replayed for replayed in self.replays if replayed.policy == OURS), None)

    def compared(self, policy: str) -> Replayed | None:
        """Return the replay of another policy with the settings of the main one."""
        main = self.main
        if main is None:
            return None
        return next((each for each in self.replays if each.policy == policy and each.same_but_policy(main)), None)

    @property
    def setting(self) -> tuple[float, int] | None:
        """The (t_fwd in s, pj_max) of the page: that of the main replay, else the recommended one."""
        if self.main is not None:
            return float(self.main.arguments["t_fwd_s"]), int(self.main.arguments["pj_max"])
        return (self.expected.t_fwd_s, self.expected.pj_max) if self.expected is not None else None

    @property
    def recovered_per_week(self) -> float | None:
        """Node-hours recovered a week with `setting`, as the time a dedicated node would need for the same work.

        None if that setting was not among those tried.
        """
        if self.expected is not None and (self.expected.t_fwd_s, self.expected.pj_max) == self.setting:
            return self.expected.node_hours_per_week
        weekly = (point.node_hours_per_week for point in self.points if (point.t_fwd_s, point.pj_max) == self.setting)
        return next(weekly, None)

    def tried(self) -> Sequence[TriedSettings]:
        """Return the settings tried, each once, by pj_max and t_fwd; replays stand in if there was no sweep."""
        main = self.main
        replayed = [] if main is None or self.points else [_point(each) for each in _like(main, self.replays)]
        found = {(point.pj_max, point.t_fwd_s): point for point in (*replayed, *self.points)}
        return [found[key] for key in sorted(found)]


def _like(main: Replayed, replays: Sequence[Replayed]) -> list[Replayed]:
    """Return the replays that differ from the main one in t_fwd and pj_max at most."""
    free = {"t_fwd_s", "pj_max"}
    wanted = {key: value for key, value in main.arguments.items() if key not in free}
    return [each for each in replays if {k: v for k, v in each.arguments.items() if k not in free} == wanted]


def _point(replayed: Replayed) -> TriedSettings:
    arguments = replayed.arguments
    return TriedSettings(float(arguments["t_fwd_s"]), int(arguments["pj_max"]), u=replayed.efficiency)


@dataclass(frozen=True)
class Provenance:
    """All that is needed to make the page again: command, versions by name, and (file, kind, SHA-256) of each input."""

    command: str
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[tuple[str, str, str]] = ()
