"""Series for the charts of a history: one value per time step, a gap where nothing is known."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Trainers with their own colour; all others are summed up.
COLOURED = 4
# Possible distances between two times below a chart.
_TICKS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800)
_DAY_S = 86400
# A chart of fewer steps would show nothing.
SLOTS_LEAST = 10
# A step that began this recently may have no point yet.
LATE_S = 180.0

# The means of the trainers are rounded to three decimals.
_ROUNDED = 0.01

# The role of the band that marks times without a record.
GAP = "gap"
_BELOW = (("regular", "regular jobs"), ("planned", "kept for regular jobs"))
_ABOVE = (("idle", "idle in the pool"), ("away", "away"))
"""Role and name of each state except leased, which is split into nodes that train and nodes that are held."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value per step, None if unknown; `role` is the class of its colour in the style sheet."""

    role: str
    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All series of one chart over the same steps of `step_s` seconds, from `since_s` (unix seconds) on.

    The picture ends at `until_s`, in the last step or at its end.
    """

    since_s: float
    step_s: float
    until_s: float
    series: tuple[Series, ...]

    @property
    def starts_s(self) -> list[float]:
        """The time at which each step begins."""
        steps = max((len(each.values) for each in self.series), default=0)
        return [self.since_s + at * self.step_s for at in range(steps)]

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return at least two and about `most` times to write below the picture, each as unix seconds and as text."""
        offset_s = time.localtime(self.since_s).tm_gmtoff
        found: list[tuple[float, str]] = []
        for apart_s in _TICKS_S:
            first_s = math.ceil((self.since_s + offset_s) / apart_s) * apart_s - offset_s
            times_s = [first_s + at * apart_s for at in range(math.floor((self.until_s - first_s) / apart_s) + 1)]
            if found and len(times_s) < 2:
                break
            words = "%a %d" if apart_s >= _DAY_S else "%H:%M"
            found = [(at_s, time.strftime(words, time.localtime(at_s))) for at_s in times_s]
            if len(found) <= most:
                break
        return found


@dataclass(frozen=True, slots=True)
class Charted:
    """The charts of a history, and the trainers that have a colour: id -> role."""

    machine: Picture
    pool: Picture
    sizes: Picture
    rates: Picture
    efficiency: Picture
    roles: Mapping[str, str]


def charted(history: Mapping[str, Any]) -> Charted:
    """Make the charts of an answer of `GET /v1/history`."""
    step_s, until_s = float(history["step_s"]), float(history["until_s"])
    since_s = history["since_s"] // step_s * step_s
    slots = max(1, math.ceil((until_s - since_s) / step_s))
    points: list[Mapping[str, Any] | None] = [None] * slots
    for point in history["points"]:
        at = int((point["at_s"] - since_s) // step_s)
        points[min(max(at, 0), slots - 1)] = point
    # the point of the last minutes has yet to come
    while len(points) > 1 and points[-1] is None and until_s - (since_s + (len(points) - 1) * step_s) < LATE_S:
        del points[-1]
    # a record that has just begun should not be a sliver at the edge
    began = next((at for at, point in enumerate(points) if point is not None), 0)
    since_s += (cut := max(0, min(began, len(points) - SLOTS_LEAST))) * step_s
    del points[:cut]
    until_s = min(until_s, since_s + len(points) * step_s)

    def picture(*series: Series) -> Picture:
        return Picture(since_s, step_s, until_s, series)

    names = {id_: known["name"] for id_, known in history["trainers"].items()}
    largest = _largest(points)
    roles = {id_: f"t{at}" for at, id_ in enumerate(largest[:COLOURED])}
    labels = {id_: names.get(id_) or id_ for id_ in roles}
    twice = {name for name in labels.values() if list(labels.values()).count(name) > 1}
    labels = {id_: f"{name} ({id_})" if name in twice else name for id_, name in labels.items()}
    return Charted(
        picture(*_machine(points)),
        picture(*_pool(points, labels, roles, len(largest) - len(roles))),
        picture(*(Series(roles[id_], labels[id_], _of(points, id_, "working")) for id_ in roles)),
        picture(*(Series(roles[id_], labels[id_], _rates(points, id_)) for id_ in roles)),
        picture(
            Series("held", "held", _share(points, "held")),
            Series("training", "training", _share(points, "training")),
            *(
                [Series(GAP, "no record", tuple(100.0 if point is None else None for point in points))]
                if None in points
                else ()
            ),
        ),
        roles,
    )


def _largest(points: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Return the ids of trainers by their leased nodes, most first."""
    held: dict[str, float] = defaultdict(float)
    for point in points:
        for id_, trainer in (point or {}).get("trainers", {}).items():
            held[id_] += trainer["leased"]
    return sorted((id_ for id_ in held if held[id_] > 0), key=lambda id_: (-held[id_], id_))


def _machine(points: Sequence[Mapping[str, Any] | None]) -> tuple[Series, ...]:
    """Return bands that add up to all nodes, one of them for times without a record."""
    training = tuple(None if point is None else _training(point) for point in points)
    held = tuple(None if point is None else _states(point)["leased"] - _training(point) for point in points)
    bands = [
        *_named(points, _BELOW),
        Series("training", "training", training),
        Series("held", "held, not training", held),
        *_named(points, _ABOVE),
    ]
    return (*bands, *_gap(points, bands))


def _pool(
    points: Sequence[Mapping[str, Any] | None], labels: Mapping[str, str], roles: Mapping[str, str], others: int
) -> tuple[Series, ...]:
    """Return bands of the nodes without a regular job, those that trainers hold at the bottom; () if there are none."""
    held = tuple(_of(points, id_, "leased") for id_ in roles)
    rest = tuple(
        None if point is None else max(0.0, _states(point)["leased"] - sum(each[at] or 0 for each in held))
        for at, point in enumerate(points)
    )
    bands = [Series(roles[id_], labels[id_], values) for id_, values in zip(roles, held, strict=True)]
    if others > 0 or max((value or 0 for value in rest), default=0) > _ROUNDED:
        bands.append(Series("rest", f"{others:,} other trainers" if others > 0 else "other leases", rest))
    bands += [*_named(points, _ABOVE[:1]), *_named(points, _BELOW[1:])]
    return (*bands, *_gap(points, bands)) if any(value for each in bands for value in each.values) else ()


def _named(points: Sequence[Mapping[str, Any] | None], states: Sequence[tuple[str, str]]) -> list[Series]:
    return [
        Series(role, name, tuple(None if point is None else _states(point).get(role, 0) for point in points))
        for role, name in states
    ]


def _gap(points: Sequence[Mapping[str, Any] | None], bands: Sequence[Series]) -> list[Series]:
    """Return a band as high as the highest of the others where there is no record; [] if there is one everywhere."""
    most = max(sum(value or 0 for value in values) for values in zip(*(each.values for each in bands), strict=True))
    if None not in points or not most:
        return []
    return [Series(GAP, "no record", tuple(most if point is None else None for point in points))]


def _states(point: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the nodes of a point by state, not rounded: the trainers' nodes are not rounded either."""
    found: Mapping[str, float] = point["mean_nodes"]
    return found


def _training(point: Mapping[str, Any]) -> float:
    """Return the nodes at work; what its trainers' numbers are rounded to is no more than they were lent."""
    working = sum(trainer["working"] for trainer in point["trainers"].values())
    return float(min(working, _states(point)["leased"]))


def _of(points: Sequence[Mapping[str, Any] | None], id_: str, what: str) -> tuple[float | None, ...]:
    """Return one number of a trainer over time: 0 while the trainer is not there."""
    return tuple(None if point is None else point["trainers"].get(id_, {}).get(what, 0) for point in points)


def _rates(points: Sequence[Mapping[str, Any] | None], id_: str) -> tuple[float | None, ...]:
    """Return a trainer's samples/s over time, None while it does not train."""
    return tuple(value or None for value in _of(points, id_, "samples_per_s"))


def _share(points: Sequence[Mapping[str, Any] | None], what: str) -> tuple[float | None, ...]:
    """Return the share of each step's pool node-seconds that was `training` or `held`, in percent."""
    return tuple(
        100.0 * min(1.0, point[f"{what}_node_seconds"] / point["pool_node_seconds"])
        if point and point["pool_node_seconds"] > 0
        else None
        for point in points
    )
