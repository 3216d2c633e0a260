"""The JSON of all runs, and the tables made from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.impact.figures import against_displaced, figures, judged
from benchmarks.impact.recipe import DEFAULT, DISPLACED, RECIPES, RECOMMENDED, without_bftd
from benchmarks.impact.record import NO_TRAINING, Run

_KEY = ("recipe", "release", "training", "stream", "stretch")
_Key = tuple[str, str, str, int, int]

_SCALE = "benchmarks.impact_scale"


def summary(runs: Sequence[Run], *, measure_scale: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Figures of every recipe and release, the two main ones by their own names, and the demands.

    {"recommended": {...}, "default": {...}, "scale": {...}, "demands": [...], "recipes": [{...}, ...]}
    """
    groups: dict[_Key, list[Run]] = {}
    for run in runs:
        if run.kind == "B":
            groups.setdefault(_key(run), []).append(run)
    rows = [
        {
            **dict(zip(_KEY, key, strict=True)),
            **figures([*_beside(key, runs), *group]),
            **against_displaced(group, groups.get((DISPLACED.name, *key[1:]), [])),
        }
        for key, group in sorted(groups.items(), key=lambda item: _order(item[0]))
    ]
    recommended = _first(rows, RECOMMENDED.name)
    return {
        "recommended": recommended,
        "default": _first(rows, DEFAULT.name),
        "scale": _scale(log) if measure_scale else None,
        "demands": judged(recommended) if recommended else [],
        "recipes": rows,
    }


def _key(run: Run) -> _Key:
    return run.recipe, run.release, run.training, run.count, run.stretch


def _beside(key: _Key, runs: Iterable[Run]) -> list[Run]:
    """The runs without bftd that belong to a group of runs with it."""
    recipe, release, _, *of_stream = key
    name = without_bftd(RECIPES[recipe]).name if recipe in RECIPES else recipe
    return [run for run in runs if run.kind == "A" and _key(run) == (name, release, NO_TRAINING, *of_stream)]


def _order(key: _Key) -> tuple[int, int, _Key]:
    """The slowest stream first: the main figures are of that one."""
    return -key[-1], list(RECIPES).index(key[0]) if key[0] in RECIPES else len(RECIPES), key


def _first(rows: Iterable[dict[str, Any]], recipe: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["recipe"] == recipe and row["training"] == "sleeping"), None)


def _scale(log: Callable[[str], None]) -> dict[str, Any] | None:
    try:
        module = importlib.import_module(_SCALE)
    except ModuleNotFoundError:
        log(f"{_SCALE} is not there: nothing is measured at scale")
        return None
    found: dict[str, Any] = module.measure(nodes=5000, jobs=5000)
    return found


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of docs/impact.md."""
    parts = [_demands_table(found["demands"]), _recipes_table(found["recipes"])]
    if found.get("scale"):
        parts.append(_table(("scale", "value"), [(name, _number(value)) for name, value in found["scale"].items()]))
    return "\n\n".join(part for part in parts if part)


def _demands_table(demands: Sequence[Mapping[str, Any]]) -> str:
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = [(row["demand"], _number(row["value"]), _number(row["bound"]), words[row["met"]]) for row in demands]
    return _table(("demand on the recommended settings", "value", "bound", ""), rows) if rows else ""


_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("recipe", lambda row: str(row["recipe"])),
    ("stretch", lambda row: str(row["stretch"])),
    ("Slurm", lambda row: str(row["release"])),
    ("pairs (seeds)", lambda row: f"{row['pairs']} ({len(row['seeds'])})"),
    ("B-A mean (s)", lambda row: _with_interval(row["ba_mean_diff_s"], row["ba_mean_diff_interval_by_job_s"])),
    (
        "B-displaced mean (s)",
        lambda row: _with_interval(row["bd_mean_diff_s"], row["bd_mean_diff_interval_by_seed_s"]),
    ),
    ("A-A (s)", lambda row: _with_interval(row["aa_mean_diff_s"], row["aa_mean_diff_interval_s"])),
    ("B-A p95 / max (s)", lambda row: f"{_number(row['ba_p95_diff_s'])} / {_number(row['ba_max_diff_s'])}"),
    ("A-A p95 (s)", lambda row: _number(row["aa_p95_diff_s"])),
    ("preempt to start, mean / max (s)", lambda row: _preempt_cell(row["preempt_to_start_s"])),
    ("lock-outs", lambda row: _lockouts_cell(row)),
    ("planned later by (s)", lambda row: _number(row["planned_mean_diff_s"])),
    ("harvested", lambda row: _percent(row["harvested_share"])),
    ("while a queue stands", lambda row: _percent(row["harvested_share_queue"])),
    ("slurmctld CPU A / B", lambda row: _cpu_cell(row["slurmctld_cpu_share"])),
)


def _recipes_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table([name for name, _ in _COLUMNS], [[cell(row) for _, cell in _COLUMNS] for row in rows])


def _lockouts_cell(row: Mapping[str, Any]) -> str:
    by = ", ".join(f"{count} to {who}" for who, count in sorted(row["lockouts_by"].items()))
    return _number(row["lockouts"]) + (f" ({by})" if by else "")


def _preempt_cell(value: Mapping[str, Any]) -> str:
    return f"{_number(value['mean'])} / {_number(value['max'])} ({value['jobs']} jobs)"


def _cpu_cell(value: Mapping[str, Any]) -> str:
    return f"{_percent(value['a'], 1)} / {_percent(value['b'], 1)}"


def _with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    return _number(value) if interval is None else f"{_number(value)} [{_number(interval[0])}, {_number(interval[1])}]"


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
