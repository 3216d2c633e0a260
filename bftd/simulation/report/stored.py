"""Stored results of `bft replay --json` and `bft advise -o`, all checked before use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from bftd.simulation.report.errors import ReportError
from bftd.simulation.report.model import Replayed, TriedSettings, WeeklyGain

# Digest and node count of the trace, hours, digest of the trainers: shared by all results of one case.
Key = tuple[str, int, float | None, str]

_REPLAYED = (
    "efficiency",
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
    """Read one file; raise ReportError with the file and the wrong field."""
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ReportError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or not ({"recommended", "efficiency"} & data.keys()):
        raise ReportError(f"{path} holds no result: give what bft replay --json or bft advise -o wrote, or a trace")
    inputs = _within(path, _within(path, data, "run"), "inputs")
    trace, trainers = _within(path, inputs, "trace"), _within(path, inputs, "trainers")
    arguments = _within(path, data["run"], "arguments")
    hours = None if arguments.get("hours") is None else _number(path, arguments, "hours")
    nodes = int(_number(path, trace, "nodes", least=1.0))
    key = (_text(path, trace, "sha256"), nodes, hours, _text(path, trainers, "sha256"))
    name = str(trace.get("source") or path.stem)
    if "recommended" in data:
        points = tuple(_point(path, entry) for entry in _objects(path, data, "grid"))
        return Stored(str(path), name, key, raw, points=points, expected=_expected(path, data))
    _check_replay(path, data, arguments)
    return Stored(str(path), name, key, raw, replayed=Replayed(data))


def _check_replay(path: Path, data: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    from bftd.simulation.replay.options import Policy

    for field in _REPLAYED:
        _number(path, data, field, least=-math.inf if field == "efficiency" else 0.0)
    if data["eq_nodes"] <= 0 or data["node_hours"] <= 0:
        raise ReportError(f"{path}: no node was idle, so there is nothing to report")
    if arguments.get("policy") not in get_args(Policy):
        raise ReportError(f"{path}: policy {arguments.get('policy')!r} is not known")
    if not isinstance(arguments.get("mends"), dict | None):
        raise ReportError(f"{path}: 'mends' must be a JSON object or null")
    for field in ("t_fwd_s", "pj_max"):
        _number(path, arguments, field)
    for window in _objects(path, data, "series") if "series" in data else ():
        for field in _WINDOW:
            _number(path, window, field, least=-math.inf)


def _point(path: Path, entry: Mapping[str, Any]) -> TriedSettings:
    def known(field: str) -> float | None:
        return None if entry.get(field) is None else _number(path, entry, field, least=-math.inf)

    efficiency = _number(path, entry, "efficiency", least=-math.inf)
    u = known("u")
    return TriedSettings(
        t_fwd_s=_number(path, entry, "t_fwd_s"),
        pj_max=int(_number(path, entry, "pj_max")),
        u=efficiency if u is None else u,
        efficiency=efficiency,
        mean_runtime_s=known("mean_runtime_s"),
        node_hours_per_week=known("node_hours_per_week"),
    )


def _expected(path: Path, data: Mapping[str, Any]) -> WeeklyGain:
    chosen, expected = _within(path, data, "recommended"), _within(path, data, "expected")
    bounds = (
        None if expected.get(field) is None else _number(path, expected, field)
        for field in ("low", "high", "confidence")
    )
    return WeeklyGain(
        _number(path, chosen, "t_fwd_s"),
        int(_number(path, chosen, "pj_max")),
        _number(path, expected, "node_hours_per_week", least=-math.inf),
        *bounds,
    )


def _within(path: Path, data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = data.get(field)
    if not isinstance(value, dict):
        raise ReportError(f"{path}: {field!r} must be a JSON object; write the file anew with this version of bft")
    return value


def _objects(path: Path, data: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = data.get(field)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ReportError(f"{path}: {field!r} must be an array of JSON objects")
    return value


def _text(path: Path, data: Mapping[str, Any], field: str) -> str:
    if not isinstance(data.get(field), str):
        raise ReportError(f"{path}: {field!r} must be a text")
    return str(data[field])


def _number(path: Path, data: Mapping[str, Any], field: str, least: float = 0.0) -> float:
    value = data.get(field)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < least:
        raise ReportError(f"{path}: {field!r} must be a number{' of 0 or more' if least == 0 else ''}, not {value!r}")
    return float(value)
