"""Events, each with its time, that `bftd.core.step` folds into the state. Immutable."""

from __future__ import annotations

from dataclasses import dataclass

from bftd.core.model.domain import PoolView, Settings
from bftd.core.model.pause import Paused, Unpaused
from bftd.protocol.registration import Registration
from bftd.protocol.reports import NO_SUMMARY, Report, Summary
from bftd.protocol.sizes import Sizes


@dataclass(frozen=True, slots=True)
class PoolObserved:
    """A good snapshot was read."""

    time_s: float
    view: PoolView


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed without a good snapshot."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Registered:
    """A driver came, for the first time or again."""

    time_s: float
    request: Registration


@dataclass(frozen=True, slots=True)
class RequestChanged:
    """The user of a trainer, or an administrator, changed its numbers of nodes or its weight; None: not changed."""

    time_s: float
    trainer: str
    sizes: Sizes | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """A driver asked for its leases."""

    time_s: float
    trainer: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A driver reported what happened."""

    time_s: float
    trainer: str
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A driver ended its trainer."""

    time_s: float
    trainer: str
    exit_code: int
    reason: str
    summary: Summary = NO_SUMMARY


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings changed: by a reload, which ends latched alarms, or by `bft tune`."""

    time_s: float
    settings: Settings
    reloaded: bool = False


@dataclass(frozen=True, slots=True)
class ClockSet:
    """The wall clock jumped `by_s` seconds relative to elapsed time, negative for back; it shows `time_s` now."""

    time_s: float
    by_s: float


Event = (
    PoolObserved
    | Tick
    | Registered
    | RequestChanged
    | Heard
    | Reported
    | Finished
    | Configured
    | Paused
    | Unpaused
    | ClockSet
)
