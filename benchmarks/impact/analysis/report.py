"""The JSON of all runs, and the tables made from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.evidence.model import Figure
from benchmarks.impact.analysis.demands import judged
from benchmarks.impact.analysis.figures import figures, waited_longer
from benchmarks.impact.analysis.stats import WANTED_S
from benchmarks.impact.earmarks import STARTED
from benchmarks.impact.recipe import MAIN, RECIPES, control_of, without_bftd
from benchmarks.impact.record import NO_TRAINING, Run
from benchmarks.markdown import percent

_KEY = ("recipe", "release", "training", "stream", "stretch")
_Key = tuple[str, str, str, int, int]

_SCALE = "benchmarks.scale.cluster"


def summary(runs: Sequence[Run], *, measure_scale: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Figures of every recipe and release, the main ones by their own names too, and the demands on each.

    {"default": {...}, "bf30": {...}, "slow": {...}, "tuned": {...}, "scale": {...}, "demands": [...],
    "recipes": [{...}, ...]}
    """
    groups: dict[_Key, list[Run]] = {}
    for run in runs:
        if run.kind == "B":
            groups.setdefault(_key(run), []).append(run)
    rows = []
    for key, group in sorted(groups.items(), key=lambda item: _order(item[0])):
        found = {
            **dict(zip(_KEY, key, strict=True)),
            **figures([*_beside(key, runs), *group]),
            "bd": waited_longer(group, groups.get(control, []) if (control := _control(key)) else []),
        }
        rows.append({**found, "demands": judged(key[0], found)})
    main = {recipe.name: _first(rows, recipe.name) for recipe in MAIN}
    return {
        **main,
        "scale": _scale(log) if measure_scale else None,
        "demands": [{"recipe": name, **one} for name, row in main.items() if row for one in row["demands"]],
        "recipes": rows,
    }


def _control(key: _Key) -> _Key | None:
    """The runs without bftd under the same Slurm whose first jobs are displaced as well."""
    recipe, release, _, *of_stream = key
    if recipe not in RECIPES or RECIPES[recipe].displaced:
        return None
    stream, stretch = of_stream
    return control_of(RECIPES[recipe]), release, "sleeping", stream, stretch


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
    """The tables of docs/evidence/impact.md: what has one cause first."""
    rows = found["recipes"]
    parts = [
        _demands_table(found["demands"]),
        _columns_table(_CAUSAL, rows),
        _columns_table(_EARMARKS, [row for row in rows if row["earmarks"]["made"]]),
        _columns_table(_WAITS, rows),
        _lost_table(rows),
        _notes_table(rows),
    ]
    if found.get("scale"):
        parts.append(_table(("scale", "value"), [(name, _number(value)) for name, value in found["scale"].items()]))
    return "\n\n".join(part for part in parts if part)


def _demands_table(demands: Sequence[Mapping[str, Any]]) -> str:
    words = {True: "met", False: "**missed**", None: "not measured"}
    rows = [
        (
            row["recipe"],
            row["demand"],
            "-" if row["value"] is None else f"{row['value']:.3g}",
            f"{'at least' if row['at_least'] else 'at most'} {row['bound']:g}",
            words[row["met"]],
        )
        for row in demands
    ]
    return _table(("recipe", "demand", "value", "bound", ""), rows) if rows else ""


_Columns = tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...]

_WHICH: _Columns = (
    ("recipe", lambda row: str(row["recipe"])),
    ("stretch", lambda row: str(row["stretch"])),
    ("Slurm", lambda row: str(row["release"])),
    ("pairs (seeds)", lambda row: f"{row['pairs']} ({len(row['seeds'])})"),
)
_CAUSAL: _Columns = (
    *_WHICH,
    ("starts on harvested nodes", lambda row: _number(row["harvested_starts"])),
    ("slots lost", lambda row: _lost_cell(row)),
    ("preempt to start, mean / max (s)", lambda row: _preempt_cell(row["preempt_to_start_s"])),
    ("of those, started by main", lambda row: _preempt_cell(row["preempt_to_start_s"]["by_scheduler"]["main"])),
    ("by backfill", lambda row: _preempt_cell(row["preempt_to_start_s"]["by_scheduler"]["backfill"])),
    ("give-back, median / max (s)", lambda row: _give_back_cell(row["give_back_s"])),
    ("by backfill, of starts on harvested nodes", lambda row: _percent(row["backfill_preempted_share"])),
    ("started a cycle late, A / B a run", lambda row: _late_cell(row)),
    ("held", lambda row: _percent(row["harvested_share"])),
    ("while a queue stands", lambda row: _percent(row["harvested_share_queue"])),
)
_EARMARKS: _Columns = (
    *_WHICH,
    ("earmarks made", lambda row: _number(row["earmarks"]["made"])),
    ("led to a start", lambda row: _number(row["earmarks"]["led_to_start"])),
    ("wasted", lambda row: _wasted_cell(row["earmarks"])),
    ("kept, of all node-seconds", lambda row: _percent(row["earmarks"]["kept_share"], 1)),
    ("of that wasted", lambda row: _percent(row["earmarks"]["wasted_share"])),
    (
        "backfill cycle, mean / max (s)",
        lambda row: f"{_number(row['cycle_s']['mean'])} / {_number(row['cycle_s']['max'])}",
    ),
)
_WAITS: _Columns = (
    *_WHICH,
    ("B-A mean (s)", lambda row: _of_streams(row["ba"])),
    ("B-displaced mean (s)", lambda row: _of_streams(row["bd"])),
    ("chance explains B-A below (s)", lambda row: _power_cell(row["ba"])),
    (f"streams for ±{WANTED_S} s", lambda row: _number(row["ba"]["streams_needed"])),
    ("A-A (s)", lambda row: _number(row["aa_mean_diff_s"])),
    ("B-A p95 / max (s)", lambda row: f"{_number(row['ba_p95_diff_s'])} / {_number(row['ba_max_diff_s'])}"),
    ("A-A p95 (s)", lambda row: _number(row["aa_p95_diff_s"])),
    ("makespan A / B (s)", lambda row: f"{_number(row['makespan_s']['a'])} / {_number(row['makespan_s']['b'])}"),
    ("planned later by (s)", lambda row: _number(row["planned_mean_diff_s"])),
    ("requests a poll", lambda row: _number(row["rpc_per_poll"])),
    ("slurmctld CPU A / B", lambda row: _cpu_cell(row["slurmctld_cpu_share"])),
)


def _columns_table(columns: _Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    return _table([name for name, _ in columns], [[cell(row) for _, cell in columns] for row in rows]) if rows else ""


def evidence(found: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of the main recipes, each by the recipe's name; slots are of all its streams, however stretched."""
    there = {recipe.name: row for recipe in MAIN if (row := found[recipe.name]) is not None}
    told: dict[str, Figure] = {}
    for name, row in there.items():
        told[f"{name}.harvested_share"] = Figure(percent(row["harvested_share"], 0), row["harvested_share"])
        mean_s = row["preempt_to_start_s"]["mean"]
        if mean_s is not None:
            told[f"{name}.preempt_to_start"] = Figure(f"{mean_s:.2f} s", mean_s)
        told[f"{name}.slots"] = _slots([row for row in found["recipes"] if row["recipe"] == name])
    return told | {"slots": _slots([row for row in found["recipes"] if row["recipe"] in there])}


def _slots(rows: Sequence[Mapping[str, Any]]) -> Figure:
    lost, starts = (sum(row[part] for row in rows) for part in ("slots_lost", "harvested_starts"))
    return Figure(f"{lost} of {starts}", lost / max(1, starts))


def _lost_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Each lost slot and each start a cycle late with its line from the log."""
    lost = [
        (
            str(row["recipe"]),
            str(row["release"]),
            f"{one['seed']}.{one['pair']}",
            str(one["job"]),
            _number(one["took_s"]),
            f"{one['load_most']:.0f}",
            str(one["why"]),
        )
        for row in rows
        for one in (*row["slots_lost_why"], *row["late_starts_why"])
    ]
    return (
        _table(("recipe", "Slurm", "seed.pair", "job", "took (s)", "load", "what the log says"), lost) if lost else ""
    )


def _notes_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """What was not as it should be in single runs: their figures say little."""
    notes = [(str(row["recipe"]), str(row["release"]), str(note)) for row in rows for note in row["notes"]]
    return _table(("recipe", "Slurm", "what was not as it should be"), notes) if notes else ""


def _lost_cell(row: Mapping[str, Any]) -> str:
    by = ", ".join(f"{count} to {who}" for who, count in sorted(row["slots_lost_by"].items()))
    return _number(row["slots_lost"]) + (f" ({by})" if by else "")


def _wasted_cell(earmarks: Mapping[str, Any]) -> str:
    by = ", ".join(f"{count} {end}" for end, count in sorted(earmarks["by_end"].items()) if end != STARTED)
    return _number(earmarks["wasted"]) + (f" ({by})" if by else "")


def _late_cell(row: Mapping[str, Any]) -> str:
    return " / ".join(_number(row["late_starts_per_run"][kind]) for kind in ("a", "b"))


def _preempt_cell(value: Mapping[str, Any]) -> str:
    return f"{_number(value['mean'])} / {_number(value['max'])} ({value['jobs']} jobs)"


def _give_back_cell(value: Mapping[str, Any]) -> str:
    return f"{_number(value['median'])} / {_number(value['max'])} ({value['jobs']} jobs)"


def _cpu_cell(value: Mapping[str, Any]) -> str:
    return f"{_percent(value['a'], 1)} / {_percent(value['b'], 1)}"


def _of_streams(value: Mapping[str, Any]) -> str:
    """A mean over streams and its interval."""
    if value["mean_s"] is None:
        return "-"
    if value["interval_s"] is None:
        return f"{_number(value['mean_s'])} (one stream: no interval)"
    low, high = map(_number, value["interval_s"])
    return f"{_number(value['mean_s'])} [{low}, {high}]"


def _power_cell(value: Mapping[str, Any]) -> str:
    """The least difference that can be told from chance, and by which spread."""
    if value["spread_s"] is None:
        return "-"
    least = "any size" if value["tells_s"] is None else _number(value["tells_s"])
    return f"{least} (a stream's spread is {_number(value['spread_s'])}, of the {value['spread_of']})"


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
