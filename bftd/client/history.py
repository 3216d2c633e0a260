"""The daemon's answers about the past: history in steps, and usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bftd.base.format import moment
from bftd.client.decode import key
from bftd.client.display import Sheet, Shown, sheet
from bftd.client.models import Window

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class TrainerPoint:
    """One trainer in one step of history: means of working nodes, leases and samples/s, and its progress by then."""

    working: float = 0.0
    leased: float = 0.0
    samples_per_s: float = 0.0
    step: int = 0
    samples: float = 0.0


@dataclass(frozen=True, slots=True)
class HistoryPoint(Shown):
    """One step of history: nodes by state (regular, planned, leased, idle, away), trainers by id, node-seconds.

    `used_node_seconds` is the older name of `held_node_seconds`, and the only one that older daemons send.
    `regular_starts` counts regular jobs that started on nodes with pilots, which delayed them by
    `regular_delay_seconds`.
    """

    at_s: float = 0.0
    nodes: Mapping[str, int] = field(default_factory=dict)
    trainers: Mapping[str, TrainerPoint] = field(default_factory=dict)
    pool_node_seconds: float = 0.0
    held_node_seconds: float = 0.0
    training_node_seconds: float = 0.0
    used_node_seconds: float = 0.0
    regular_starts: int = 0
    regular_delay_seconds: float = 0.0

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {
            "time": moment(self.at_s),
            **self.nodes,
            "trainers": len(self.trainers),
            "pool node-hours": self.pool_node_seconds / _HOUR_S,
            "training node-hours": self.training_node_seconds / _HOUR_S,
            "held node-hours": self.used_node_seconds / _HOUR_S,
        }


@dataclass(frozen=True, slots=True)
class Named:
    """The name and the owner of a past trainer."""

    name: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class History(Shown):
    """A history in steps of `step_s` seconds, oldest first, with no steps for times when the daemon was down."""

    since_s: float = 0.0
    until_s: float = 0.0
    step_s: float = 0.0
    points: tuple[HistoryPoint, ...] = ()
    trainers: Mapping[str, Named] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()

    def sheets(self) -> Sequence[Sheet]:
        """Return tables of the steps and of the windows."""
        return (sheet("History", self.points), sheet("Windows", self.windows))

    def sizes(self, trainer: str) -> tuple[tuple[float, float], ...]:
        """Return (unix seconds, working nodes) of a trainer, for the steps in which it was there."""
        return tuple(
            (point.at_s, point.trainers[trainer].working) for point in self.points if trainer in point.trainers
        )


@dataclass(frozen=True, slots=True)
class UsageRow(Shown):
    """Node-seconds of one user, one account or one of both; the field not asked for is None.

    `used_node_seconds` is the older name of `held_node_seconds`, and the only one that older daemons send.
    """

    user: str | None = None
    account: str | None = None
    training_node_seconds: float = 0.0
    held_node_seconds: float = 0.0
    leaving_node_seconds: float = 0.0
    used_node_seconds: float = 0.0

    def cells(self) -> Mapping[str, Any]:
        """Return the fields as a row of a table."""
        return {
            "user": self.user or "",
            "account": self.account or "",
            "training node-hours": self.training_node_seconds / _HOUR_S,
            "held node-hours": self.used_node_seconds / _HOUR_S,
            "leaving node-hours": self.leaving_node_seconds / _HOUR_S,
        }


@dataclass(frozen=True, slots=True)
class Usage(Shown):
    """Usage by user or account; `first_s` is the first hour that is kept."""

    since_s: float = 0.0
    until_s: float = 0.0
    first_s: float | None = None
    rows: tuple[UsageRow, ...] = key("usage", ())

    def sheets(self) -> Sequence[Sheet]:
        """Return a table with a row per user, account or both, the largest first."""
        return (sheet("Usage", self.rows),)
