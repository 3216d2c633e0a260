"""The replays behind the page: what is replayed, each in its own process, and what is kept of it."""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import bftd.simulation.trace
from bftd.simulation.drivers.driver import Charge
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.drivers.trainers import read as read_trainers
from bftd.simulation.replay import EXACT, REFERENCE, Mends, Options, Result, run
from bftd.simulation.replay.options import Accounting
from bftd.simulation.trace import Trace

TRACE = "idle-week1.csv.gz"
TRAINERS = {
    "hpo": "trainers-hpo-shufflenet-1000.json.gz",
    "throughput": "trainers-imagenet-throughput-1001.json.gz",
    "efficiency": "trainers-imagenet-efficiency-1001.json.gz",
}
# The authors' own 1,024 nodes are not known; these are as arbitrary as theirs.
SUBSET = "0-1023"
WINDOW_S = 6 * 3600.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One replay: `trainers` names a list of `TRAINERS`, or "hpo:KIND" for the trials with another network's curve.

    `nodes` selects nodes of the trace ("" takes all), and the recorded week is gone through `weeks` times. A `timed`
    case runs in a fresh process while no other does.
    """

    trainers: str
    options: Options
    nodes: str = SUBSET
    weeks: int = 1
    timed: bool = False

    @property
    def key(self) -> str:
        """The same text for the same case, in this run and in a file."""
        return json.dumps(self.to_json(), sort_keys=True)

    def to_json(self) -> dict[str, Any]:
        """Settings that differ from those of a replay of the week with the default options."""
        options = _changed(self.options, Options())
        if self.options.mends is not None:
            options["mends"] = [name for name, is_mended in asdict(self.options.mends).items() if is_mended]
        return {**_changed(self, Case("", Options())), "options": options}

    @property
    def title(self) -> str:
        """A few words for the log."""
        options, mends = self.options, self.options.mended
        mended = {EXACT: "exact", REFERENCE: "reference"}.get(
            mends, " and ".join(name.replace("_", " ") for name, is_mended in asdict(mends).items() if is_mended)
        )
        words = [self.trainers, options.policy, mended, f"T_fwd {options.t_fwd_s:g}", f"pj_max {options.pj_max}"]
        words += [f"costs x{options.cost_multiplier:g}"] * (options.cost_multiplier != 1)
        words += ["measured costs"] * (options.rescale_model == "measured")
        words += ["endless"] * options.endless + [f"{options.hours or 0:g} hours"] * (options.hours is not None)
        words += [f"K {options.scavenger_nodes}"] * (options.scavenger_nodes is not None)
        words += [f"{self.weeks} weeks"] * (self.weeks > 1) + ["timed"] * self.timed
        return ", ".join(words)


def _changed(given: Case | Options, default: Case | Options) -> dict[str, Any]:
    pairs = {field.name: (getattr(given, field.name), getattr(default, field.name)) for field in fields(given)}
    return {name: mine for name, (mine, usual) in pairs.items() if mine != usual}


def case(trainers: str, mends: Mends = REFERENCE, **options: Any) -> Case:
    """A case on the 1,024 nodes; further options as `Options` has them."""
    accounting: Accounting = "exact" if mends == EXACT else "reference"
    return Case(trainers, Options(accounting=accounting, mends=mends, **options))


class Results:
    """The rows of finished cases, by case, and what was derived from pairs of them."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], derived: Mapping[str, Any], trace: Mapping[str, Any]) -> None:
        self.rows = {json.dumps(row["case"], sort_keys=True): row for row in rows}
        self.derived = derived
        self.trace = trace

    def __getitem__(self, case: Case) -> Any:
        return self.rows[case.key]["result"]

    def extras(self, case: Case) -> Any:
        """What `measure` adds to the result."""
        return self.rows[case.key]["extras"]


# -- input ---


def missing(folder: Path) -> list[str]:
    """The files that are not there."""
    return [name for name in (TRACE, *TRAINERS.values()) if not (folder / name).is_file()]


@cache
def week(folder: Path, nodes: str, weeks: int) -> Trace:
    """The trace of a case."""
    trace = bftd.simulation.trace.read(folder / TRACE)
    return repeated(trace.select(nodes) if nodes else trace, weeks)


def repeated(trace: Trace, times: int) -> Trace:
    """The trace so many times in a row: where one ends the pool changes to what it was at the start."""
    idle = np.zeros(len(trace.nodes), dtype=bool)
    idle[trace.node] = trace.idle  # the last row of a node counts
    first = np.zeros(len(trace.nodes), dtype=bool)
    first[trace.node[trace.times_s == 0]] = True
    seam = np.flatnonzero(idle != first).astype(np.int32)
    later = trace.times_s > 0
    times_s, node, joins = [trace.times_s], [trace.node], [trace.idle]
    for number in range(1, times):
        start_s = number * trace.duration_s
        times_s += [np.full(len(seam), start_s), trace.times_s[later] + start_s]
        node += [seam, trace.node[later]]
        joins += [first[seam], trace.idle[later]]
    return replace(
        trace,
        times_s=np.concatenate(times_s),
        node=np.concatenate(node),
        idle=np.concatenate(joins),
        duration_s=times * trace.duration_s,
    )


@cache
def trainers_of(folder: Path, name: str) -> tuple[SimTrainer, ...]:
    """The trainers of a case."""
    base, _, kind = name.partition(":")
    trainers = read_trainers(folder / TRAINERS[base])
    if not kind:
        return trainers
    network = next(each for each in trainers_of(folder, "throughput") if each.kind == kind)
    return tuple(replace(each, curve=network.curve, objective=network.objective) for each in trainers)


# -- running ---


def measure(folder: Path, case: Case, hours: float | None) -> tuple[dict[str, Any], Floats]:
    """Replay one case; its row, and the samples earned between consecutive changes of the pool."""
    options = case.options if hours is None else replace(case.options, hours=hours)
    trace, trainers = week(folder, case.nodes, case.weeks), trainers_of(folder, case.trainers)
    began_s = time.process_time()
    result = run(trace, trainers, options)
    cpu_s = time.process_time() - began_s
    seen = trace if options.hours is None else trace.first(options.hours)
    changes_s = np.append(np.unique(seen.times_s), seen.duration_s)
    extras = {
        "completed": {kind: len(runtimes) for kind, runtimes in sorted(result.account.runtimes_s.items())},
        "costs": _costs(result, seen.duration_s),
        "returns": _returns(result, changes_s),
        "all_done": all_done(result, len(trainers)),
        "cpu_s": cpu_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    shown = {name: value for name, value in result.to_json(series=True).items() if name != "run"}
    shown["series"] = {key: [each[key] for each in shown["series"]] for key in ("efficiency", "node_hours")}
    row = {"case": case.to_json(), "result": shown, "extras": extras}
    return row, result.account.outcome(changes_s)


def _returns(result: Result, changes_s: Floats) -> list[float]:
    """Quartiles of the return of an event that rescales: samples until the next event over those that it cost."""
    account = result.account
    weights = [samples * (kind == "rescale") for kind, samples in zip(account.charge, account.charged, strict=True)]
    cost, _ = np.histogram(account.charged_s, changes_s, weights=weights)
    rescales = cost > 0
    earned = account.outcome(changes_s)[rescales]
    return np.percentile(earned / cost[rescales], (25, 50, 75)).tolist() if rescales.any() else [0.0] * 3


def _costs(result: Result, end_s: float) -> dict[str, list[float]]:
    """Samples charged in each six hours, by kind of charge."""
    edges_s = np.append(np.arange(0.0, end_s, WINDOW_S), end_s)
    account = result.account
    kinds: tuple[Charge, ...] = ("rescale", "preempt")
    costs: dict[str, list[float]] = {}
    for kind in kinds:
        pairs = zip(account.charge, account.charged, strict=True)
        weights = [samples if charge == kind else 0.0 for charge, samples in pairs]
        costs[kind] = np.histogram(account.charged_s, edges_s, weights=weights)[0].tolist()
    return costs


def all_done(result: Result, trainers: int) -> dict[str, float] | None:
    """Hours and node-hours of the pool until the last trainer was done; None where some were not."""
    account = result.account
    if result.trainers_completed < trainers:
        return None
    idle_from = max(place for place, rate in enumerate(account.rate) if rate > 0) + 1
    end_s = account.time_s[idle_from] if idle_from < len(account.time_s) else account.time_s[-1]
    edges_s = np.array([0.0, end_s])
    hours = (end_s, float(account.pool_node_s(edges_s)[0]), float(account.held_node_s(edges_s)[0]))
    return dict(zip(("hours", "node_hours", "used_node_hours"), (each / 3600 for each in hours), strict=True))


def run_all(
    folder: Path, cases: Sequence[Case], *, jobs: int, hours: float | None, log: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[str, Floats]]:
    """Replay all cases, `jobs` at a time and the timed ones alone; rows in the order of the cases, outcomes by key."""
    found: dict[str, tuple[dict[str, Any], Floats]] = {}
    spawn = multiprocessing.get_context("spawn")
    together = sorted((each for each in cases if not each.timed), key=_length, reverse=True)
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        running = {pool.submit(measure, folder, each, hours): each for each in together}
        for done in as_completed(running):
            found[running[done].key] = done.result()
            log(_told(len(found), len(cases), running[done], done.result()[0]))
    for each in cases:
        if each.timed:
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                found[each.key] = pool.submit(measure, folder, each, hours).result()
            log(_told(len(found), len(cases), each, found[each.key][0]))
    return [found[each.key][0] for each in cases], {key: outcome for key, (_, outcome) in found.items()}


def _length(case: Case) -> float:
    """Long ones first, so that no core is idle at the end."""
    return case.weeks * case.options.pj_max


def _told(number: int, of: int, case: Case, row: Mapping[str, Any]) -> str:
    result = row["result"]
    return f"[{number}/{of}] {case.title}: U {result['efficiency']:.4f}, {result['wall_s']:.0f} s"
