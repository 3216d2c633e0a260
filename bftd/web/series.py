"""Series for the charts of a history: one value per time step, a gap where nothing is known."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Trainers with their own colour; all others are summed up.
COLOURED = 4
# Possible distances between two times below a chart.
_TICKS_S = (600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800)
_DAY_S = 86400
# A chart of fewer steps would show nothing.
SLOTS_LEAST = 10
# A step that began this recently may have no point yet.
LATE_S = 180.0

# The role of the band that marks times without a record.
GAP = "gap"
_STATES = (
    ("regular", "regular jobs"),
    ("planned", "kept for regular jobs"),
    ("idle", "idle in the pool"),
    ("away", "away"),
)
"""Role and name of each state except leased, which is shown by trainer."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value per step, None if unknown; `role` is the class of its colour in the style sheet."""

    role: str
    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All series of one chart over the same times (unix seconds, the middle of each step)."""

    times_s: tuple[float, ...]
    series: tuple[Series, ...]

    def coarse(self) -> Picture:
        """Return the picture with means of two steps each."""
        pairs = range(0, len(self.times_s) - 1, 2)
        times_s = tuple((self.times_s[at] + self.times_s[at + 1]) / 2 for at in pairs)
        return Picture(
            times_s,
            tuple(
                replace(each, values=tuple(_mean(each.values[at : at + 2], each.role == GAP) for at in pairs))
                for each in self.series
            ),
        )

    def ticks(self, most: int) -> dict[int, str]:
        """Return at most `most` steps with the times to write below them."""
        if len(self.times_s) < 2:
            return {}
        first_s, last_s = self.times_s[0], self.times_s[-1]
        step_s = self.times_s[1] - first_s
        apart_s = next((each for each in _TICKS_S if (last_s - first_s) / each < most), _TICKS_S[-1])
        offset_s = time.localtime(first_s).tm_gmtoff
        words = "%a %d" if apart_s >= _DAY_S else "%H:%M"
        found = {}
        tick_s = math.ceil((first_s + offset_s) / apart_s) * apart_s - offset_s
        while tick_s <= last_s:
            found[round((tick_s - first_s) / step_s)] = time.strftime(words, time.localtime(tick_s))
            tick_s += apart_s
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
    step_s: float


def charted(history: Mapping[str, Any]) -> Charted:
    """Make the charts of an answer of `GET /v1/history`."""
    step_s = float(history["step_s"])
    since_s = history["since_s"] // step_s * step_s
    slots = max(1, math.ceil((history["until_s"] - since_s) / step_s))
    points: list[Mapping[str, Any] | None] = [None] * slots
    for point in history["points"]:
        at = int((point["at_s"] - since_s) // step_s)
        points[min(max(at, 0), slots - 1)] = point
    # the point of the last minutes has yet to come
    while (
        len(points) > 1 and points[-1] is None and history["until_s"] - (since_s + (len(points) - 1) * step_s) < LATE_S
    ):
        del points[-1]
    # a record that has just begun should not be a sliver at the edge
    began = next((at for at, point in enumerate(points) if point is not None), 0)
    since_s += (cut := max(0, min(began, len(points) - SLOTS_LEAST))) * step_s
    del points[:cut]
    slots = len(points)
    times_s = tuple(since_s + (at + 0.5) * step_s for at in range(slots))
    names = {id_: known["name"] for id_, known in history["trainers"].items()}
    largest = _largest(points)
    roles = {id_: f"t{at}" for at, id_ in enumerate(largest[:COLOURED])}
    labels = {id_: names.get(id_) or id_ for id_ in roles}
    twice = {name for name in labels.values() if list(labels.values()).count(name) > 1}
    labels = {id_: f"{name} ({id_})" if name in twice else name for id_, name in labels.items()}
    bands = _machine(points, labels, roles, len(largest) - len(roles))
    return Charted(
        Picture(times_s, bands),
        Picture(times_s, _pool(bands)),
        Picture(times_s, tuple(Series(roles[id_], labels[id_], _of(points, id_, "working")) for id_ in roles)),
        Picture(times_s, tuple(Series(roles[id_], labels[id_], _rates(points, id_)) for id_ in roles)),
        Picture(
            times_s,
            (Series("t0", "training", _share(points, "training")), Series("starting", "held", _share(points, "held"))),
        ),
        roles,
        step_s,
    )


def _mean(values: Sequence[float | None], gap: bool) -> float | None:
    """Return the mean of two steps; unknown if one is, unless the series marks gaps."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and (gap or len(known) == len(values)) else None


def _largest(points: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """Return the ids of trainers by their leased nodes, most first."""
    held: dict[str, float] = defaultdict(float)
    for point in points:
        for id_, trainer in (point or {}).get("trainers", {}).items():
            held[id_] += trainer["leased"]
    return sorted((id_ for id_ in held if held[id_] > 0), key=lambda id_: (-held[id_], id_))


def _machine(
    points: Sequence[Mapping[str, Any] | None], labels: Mapping[str, str], roles: Mapping[str, str], others: int
) -> tuple[Series, ...]:
    """Return bands that add up to all nodes, one of them for times without a record."""
    totals = [sum(point["nodes"].values()) for point in points if point]
    most = max(totals, default=0)
    leased = tuple(_of(points, id_, "leased") for id_ in roles)
    training = tuple(_of(points, id_, "working") for id_ in roles)
    starting = tuple(
        sum(max(0.0, (had[at] or 0) - (worked[at] or 0)) for had, worked in zip(leased, training, strict=True))
        if point is not None
        else None
        for at, point in enumerate(points)
    )
    rest = tuple(
        None if point is None else max(0.0, point["nodes"].get("leased", 0) - sum(each[at] or 0 for each in leased))
        for at, point in enumerate(points)
    )
    states = [
        Series(role, name, tuple(None if point is None else point["nodes"].get(role, 0) for point in points))
        for role, name in _STATES
    ]
    bands = states[:2]
    bands += [Series(roles[id_], labels[id_], worked) for id_, worked in zip(roles, training, strict=True)]
    if any(starting):
        bands.append(Series("starting", "held, not training", starting))
    if others > 0 or max((value or 0 for value in rest), default=0) >= 1:  # less than 1 is due to averaging
        bands.append(Series("rest", f"{others:,} other trainers" if others > 0 else "other leases", rest))
    bands += states[2:]
    if None in points and most:
        bands.append(Series(GAP, "no record", tuple(most if point is None else None for point in points)))
    return tuple(bands)


def _pool(bands: Sequence[Series]) -> tuple[Series, ...]:
    """Return the bands of nodes without a regular job, those of trainers at the bottom."""
    free = [each for each in bands if each.role not in ("regular", "away", "planned", GAP)]
    free += [each for each in bands if each.role == "planned"]
    tops = [sum(values) for values in zip(*([value or 0 for value in each.values] for each in free), strict=True)]
    most = max(tops, default=0)
    gaps = [replace(each, values=tuple(value and most for value in each.values)) for each in bands if each.role == GAP]
    return tuple(free + gaps) if most else ()


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
