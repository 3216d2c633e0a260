"""Stored results of `bft replay --json` and `bft advise -o`, all checked before use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bftd.base.errors import UsageError
from bftd.base.files import contents, decoded
from bftd.protocol.fields import Fields
from bftd.simulation.report.model import Replayed, TriedSettings, WeeklyGain

# Digest and node count of the trace, hours, digest of the trainers: shared by all results of one case.
Key = tuple[str, int, float | None, str]

_REPLAYED = (
    "static_outcome_samples",
    "eq_nodes",
    "node_hours",
    "training_node_hours",
    "held_node_hours",
    "rescale_cost_samples",
    "preempt_cost_samples",
    "preemptions",
)
_WINDOW = ("start_s", "efficiency", "node_hours", "training_node_hours", "held_node_hours")


@dataclass(frozen=True)
class Stored:
    """One file: a replay, or the tried, recommended and expected values of `bft advise`."""

    path: str
    name: str
    key: Key
    raw: bytes
    replayed: Replayed | None = None
    points: Sequence[TriedSettings] = ()
    expected: WeeklyGain | None = None


def read(path: Path) -> Stored:
    """Read one file; raise UsageError with the file and the wrong field."""
    raw = contents(path)
    data = decoded(raw, str(path))
    if not isinstance(data, dict) or not ({"recommended", "efficiency"} & data.keys()):
        raise UsageError(f"{path} holds no result: give what bft replay --json or bft advise -o wrote, or a trace")
    told = Fields(data, str(path), lambda fault: UsageError(f"{fault}; write the file anew with this version of bft"))
    run = told.inner("run")
    inputs, arguments = run.inner("inputs"), run.inner("arguments")
    trace, trainers = inputs.inner("trace"), inputs.inner("trainers")
    nodes, hours = trace.whole("nodes", minimum=1), arguments.number("hours", None)
    key = (trace.text("sha256"), nodes, hours, trainers.text("sha256"))
    name = str(trace.raw("source") or path.stem)
    if "recommended" in data:
        points = tuple(map(_point, told.objects("grid")))
        return Stored(str(path), name, key, raw, points=points, expected=_expected(told))
    _check_replay(path, told, arguments)
    return Stored(str(path), name, key, raw, replayed=Replayed(data))


def _check_replay(path: Path, told: Fields, arguments: Fields) -> None:
    from bftd.simulation.replay.options import Policy

    found = {name: told.number(name, maximum=math.inf) for name in _REPLAYED} | {"efficiency": _any(told, "efficiency")}
    if found["eq_nodes"] <= 0 or found["node_hours"] <= 0:
        raise UsageError(f"{path}: no node was idle, so there is nothing to report")
    arguments.text("policy", choices=get_args(Policy))
    arguments.nested("mends")
    for name in ("t_fwd_s", "pj_max"):
        arguments.number(name)
    for window in told.objects("series"):
        for name in _WINDOW:
            _any(window, name)


def _point(entry: Fields) -> TriedSettings:
    return TriedSettings(
        t_fwd_s=entry.number("t_fwd_s"),
        pj_max=entry.whole("pj_max"),
        efficiency=_any(entry, "efficiency"),
        mean_runtime_s=entry.measure("mean_runtime_s"),
        node_hours_per_week=entry.measure("node_hours_per_week"),
    )


def _expected(told: Fields) -> WeeklyGain:
    chosen, gain = told.inner("recommended"), told.inner("expected")
    return WeeklyGain(
        chosen.number("t_fwd_s"),
        chosen.whole("pj_max"),
        _any(gain, "node_hours_per_week"),
        *(gain.measure(name) for name in ("low", "high", "confidence")),
    )


def _any(told: Fields, name: str) -> float:
    number: float = told.number(name, minimum=-math.inf, maximum=math.inf)
    return number
