"""The time of the solvers of the allocation problem, and the quality of their plans, side by side in one run.

    python -m benchmarks.milp [--json] [--only exact highs ...] [--repeats N] [--time-limit S] [--quick]

CPU time is that of this process and its children. It and the wall time are of the whole `solve()` as the daemon calls
it: choosing the solver, solving and verifying the plan, without sentences. Every instance is seeded and solved once,
after one small problem that loads the solver. Solvers that are not ready, or not licensed for a size, are listed with
why.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.instances import FAMILIES, STARTS, Family, Start, build, redraw
from benchmarks.markdown import percent, table
from milp import Cap, MilpError, Problem, UnsupportedError, solve

SMALL, MEDIUM, LARGE = (35, 800), (200, 5_000), (1_000, 20_000)
# Trainers and nodes at which the node-level models of the paper's Figure 5 are tried, with that many maps each.
FIGURE_5 = ((5, 50), (5, 100), (10, 100), (10, 200), (20, 400), (35, 800))
FIGURE_5_SOLVERS = ("exact", "highs", "gurobi", "highs-nodes", "gurobi-nodes", "equal-share")
FIGURE_5_MAPS = 10
PARTS = ("exact", "highs", "gurobi", "classes", "crossing", "figure5")
# Trainers and nodes with caps that cross: those of as many users and accounts, in shares of the pool. No user's cap is
# within an account's.
CROSSING = (35, 400)
CROSSING_SOLVERS = ("gurobi", "highs")
USERS, ACCOUNTS = 7, 3
USER_SHARE, ACCOUNT_SHARE = 0.1, 0.225

# Aims: how many times as long HiGHS takes on its count model, its median CPU time, and those of `exact` and
# of classes of nodes.
LEAST_RATIO = 25.0
HIGHS_MS = {SMALL: 1_000, MEDIUM: 3_000}
MOST_MS = {SMALL: 2.0, MEDIUM: 5.0, LARGE: 20.0}
MOST_WORST_MS = {MEDIUM: 20.0}
CLASSES_MS = 200.0

# Linux makes the clock of a process's CPU time from its id and this number (clock_getcpuclockid(3)).
_SCHEDULED_TIME = 2


@dataclass(frozen=True)
class Row:
    """One solver on the instances of one kind."""

    part: str
    solver: str
    family: Family
    start: Start
    trainers: int
    nodes: int
    repeats: int
    classes: int = 1
    time_limit_s: float | None = None


# -- what is measured ---


def rows(repeats: int, time_limit_s: float) -> Iterator[Row]:
    """All rows of the table, the slow ones with fewer repetitions."""
    few = max(1, repeats // 4)
    for size in (SMALL, MEDIUM, LARGE):
        for family in FAMILIES:
            for start in STARTS:
                yield Row("exact", "exact", family, start, *size, repeats)
            # Right after `exact`, so that both meet the same machine.
            for solver in ("highs", "gurobi") if size != LARGE else ():
                times = repeats if size == SMALL else few
                yield Row(solver, solver, family, "random", *size, times, time_limit_s=time_limit_s)
    for family in FAMILIES:
        yield Row("classes", "auto", family, "random", *SMALL, repeats, classes=3, time_limit_s=time_limit_s)
    for family in FAMILIES:
        for solver in CROSSING_SOLVERS:
            yield Row("crossing", solver, family, "random", *CROSSING, repeats, time_limit_s=time_limit_s)
    for trainers, nodes in FIGURE_5:
        for solver in FIGURE_5_SOLVERS:
            maps = min(repeats, FIGURE_5_MAPS)
            yield Row("figure5", solver, "paper", "random", trainers, nodes, maps, time_limit_s=time_limit_s)


def quick(every: Sequence[Row]) -> list[Row]:
    """A part of the rows that is done within a minute or so, to see that all is in order."""
    small = [row for row in every if row.nodes <= SMALL[1] and (row.part != "figure5" or row.nodes <= 100)]
    return [replace(row, repeats=min(row.repeats, 2)) for row in small]


def key(row: Row, number: int) -> tuple[Any, ...]:
    """What tells the row's problem of that number from all others, whoever solves it."""
    return (
        row.part in ("figure5", "crossing") and row.part,
        row.family,
        row.start,
        row.trainers,
        row.nodes,
        row.classes,
        number,
    )


def instances(row: Row) -> Iterator[Problem]:
    """The row's problems; those of Figure 5 differ only in the current map, as in the paper."""
    if row.part == "figure5":
        first = build(row.family, row.trainers, row.nodes, 0, start=row.start)
        yield from (redraw(first, seed) for seed in range(row.repeats))
        return
    for seed in range(row.repeats):
        problem = build(row.family, row.trainers, row.nodes, seed, start=row.start, classes=row.classes)
        yield crossing(problem) if row.part == "crossing" else problem


def crossing(problem: Problem) -> Problem:
    """The same trainers as those of several users on several accounts, each with a cap."""
    trainers = tuple(
        replace(trainer, user=f"u{number % USERS}", account=f"a{number % ACCOUNTS}")
        for number, trainer in enumerate(problem.trainers)
    )
    nodes = len(problem.nodes)
    caps = [Cap(int(USER_SHARE * nodes), user=f"u{number}") for number in range(USERS)]
    caps += [Cap(int(ACCOUNT_SHARE * nodes), account=f"a{number}") for number in range(ACCOUNTS)]
    return replace(problem, trainers=trainers, caps=tuple(caps))


# -- measuring ---


def measure(row: Row, optima: dict[tuple[Any, ...], float]) -> dict[str, Any]:
    """Solve the row's instances; raw values by instance, or the reason why the solver did not do them.

    `optima` has the proven optima so far by `key` and takes in those of this row; `of_optimum` is the part reached.
    """
    result: dict[str, Any] = {"row": vars(row), "cpu_s": [], "wall_s": [], "gap": [], "status": [], "of_optimum": []}
    try:
        _solve(row, build(row.family, 3, 12, 0, classes=row.classes))
        for number, problem in enumerate(instances(row)):
            gc.collect()  # what earlier instances left is not this one's cost
            # This process's clock is read last and first: asking after the children takes a while.
            children_s, wall_s, own_s = _children_cpu_s(), time.perf_counter(), time.process_time()
            plan = _solve(row, problem)
            own_s, wall_s = time.process_time() - own_s, time.perf_counter() - wall_s
            result["cpu_s"].append(own_s + _children_cpu_s() - children_s)
            result["wall_s"].append(wall_s)
            result["gap"].append(plan.gap)
            result["status"].append(plan.status)
            if row.solver == "exact":
                optima[key(row, number)] = plan.objective
            best = optima.get(key(row, number))
            result["of_optimum"].append(plan.objective / best if best else None)
    except MilpError as error:
        result["skipped"] = str(error)
        if not isinstance(error, UnsupportedError):
            result["failed"] = True
    return result


def _solve(row: Row, problem: Problem) -> Any:
    return solve(problem, row.solver, time_limit_s=row.time_limit_s, explain=False)


def _children_cpu_s() -> float:
    """CPU seconds of all child processes, those that ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(_cpu_s_of(child.pid) for child in psutil.Process().children(recursive=True))
    return ended.ru_utime + ended.ru_stime + running


def _cpu_s_of(pid: int) -> float:
    """CPU seconds of a running process, to the nanosecond where /proc would only say hundredths."""
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED_TIME)
    except OSError:  # it has just ended
        return 0.0


# -- a line of each row as it comes ---

_COLUMNS = "{:13} {:7} {:8} {:>13} {:>3}  {:>9} {:>9} {:>9}  {:>9} {:>8} {:>8}  {}"
_HEADINGS = ("solver", "family", "map", "size", "n", "cpu p50", "min", "max", "wall p50", "gap max", "of best", "notes")


def line(result: dict[str, Any]) -> str:
    """One row of the table: milliseconds, the largest proven gap and the median part of the optimum."""
    row = result["row"]
    size = f"{row['trainers']}x{row['nodes']}" + (f"/{row['classes']}" if row["classes"] > 1 else "")
    head = (row["solver"], row["family"], row["start"], size, len(result["cpu_s"]))
    if not result["cpu_s"]:
        return _text(*head, *[""] * 6, _note(result))
    cpu, wall = ([1e3 * value for value in result[key]] for key in ("cpu_s", "wall_s"))
    parts = [part for part in result["of_optimum"] if part is not None]
    figures = (statistics.median(cpu), min(cpu), max(cpu), statistics.median(wall))
    best = f"{100 * statistics.median(parts):.2f} %" if parts else ""
    texts = [f"{value:,.2f}" for value in figures]
    return _text(*head, *texts, f"{max(result['gap']):.1e}", best, _note(result))


def _text(*cells: object) -> str:
    return _COLUMNS.format(*cells).rstrip()


def _note(result: dict[str, Any]) -> str:
    if "skipped" in result:
        return f"{'failed' if 'failed' in result else 'skipped'}: {result['skipped']}"
    late, limit_s = _late(result), result["row"]["time_limit_s"]
    return f"time limit of {limit_s:g} s in {late} of {len(result['wall_s'])}" if late else ""


def _late(result: Mapping[str, Any]) -> int:
    """Count the times a solver was stopped at its limit: it stops a little before; a heuristic is soon done."""
    limit_s = result["row"]["time_limit_s"]
    runs = zip(result["status"], result["wall_s"], strict=True)
    return sum(limit_s is not None and status != "optimal" and wall_s > limit_s / 2 for status, wall_s in runs)


# -- what is aimed at ---


def ratios(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many times the CPU time of `exact` HiGHS takes on its count model, instance by instance of the same kind."""
    took: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for result in results:
        row = result["row"]
        if row["part"] in ("exact", "highs") and row["start"] == "random" and result["cpu_s"]:
            took.setdefault((row["family"], row["trainers"], row["nodes"]), {})[row["solver"]] = result["cpu_s"]
    found = []
    for (family, trainers, nodes), by_solver in took.items():
        if by_solver.keys() != {"exact", "highs"}:
            continue
        pairs = list(zip(by_solver["exact"], by_solver["highs"], strict=False))  # HiGHS has fewer where it is slow
        ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
        each = sorted(their / our for our, their in pairs)
        ratio = statistics.median(theirs) / statistics.median(ours)
        kind = {"family": family, "trainers": trainers, "nodes": nodes, "n": len(pairs)}
        times = {"exact_ms": 1e3 * statistics.median(ours), "highs_ms": 1e3 * statistics.median(theirs)}
        spread = {"ratio": ratio, "least": each[0], "most": each[-1], "aim": LEAST_RATIO, "met": ratio >= LEAST_RATIO}
        found.append({**kind, **times, **spread})
    return found


def medians(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median CPU milliseconds of `exact` in every row, and whether they are as few as they should be."""
    found = []
    for result in results:
        row = result["row"]
        size = (row["trainers"], row["nodes"])
        if row["part"] == "exact" and result["cpu_s"] and size in MOST_MS:
            kind = {name: row[name] for name in ("family", "start", "trainers", "nodes")}
            median_ms = 1e3 * statistics.median(result["cpu_s"])
            aim_ms = MOST_MS[size]
            found.append({**kind, "median_ms": median_ms, "aim_ms": aim_ms, "met": median_ms <= aim_ms})
    return found


# -- the tables ---

_FAMILY = {"paper": "paper's networks", "hpo": "one network", "random": "random"}
_MAPS = {"random": "a random map", "settled": "an optimum's map"}


def times(found: Mapping[str, Any]) -> str:
    """CPU milliseconds of `exact` by size and current map, and of three classes of nodes."""
    lines = []
    for size, bound_ms in MOST_MS.items():
        for start, name in _MAPS.items():
            cells = [
                _time(one, bound_ms, MOST_WORST_MS.get(size))
                for one in _rows(found, part="exact", start=start, trainers=size[0], nodes=size[1])
            ]
            worst = f", worst {MOST_WORST_MS[size]:g}" if size in MOST_WORST_MS else ""
            lines += [[f"{_size(size)}, {name}", *cells, f"{bound_ms:g}{worst}"]] if cells else []
    classes = [_time(one, CLASSES_MS) for one in _rows(found, part="classes")]
    lines += [[f"{_size(SMALL)}, 3 classes (`auto`)", *classes, f"{CLASSES_MS:g}"]] if classes else []
    return table(["trainers x nodes, from", *_FAMILY.values(), "bound"], lines) if lines else ""


def compared(found: Mapping[str, Any]) -> str:
    """Return the ratio of HiGHS's time on its count model to that of `exact`, by the medians on the same problems."""
    lines = []
    for size, bound_ms in HIGHS_MS.items():
        mine = {one["family"]: one for one in found["ratios"] if (one["trainers"], one["nodes"]) == size}
        if mine.keys() >= _FAMILY.keys():
            ratios_ = [f"{mine[name]['ratio']:.0f}{_missed(not mine[name]['met'])}" for name in _FAMILY]
            highs = [f"{mine[name]['highs_ms']:.0f}{_missed(mine[name]['highs_ms'] > bound_ms)}" for name in _FAMILY]
            lines.append([_size(size), *ratios_, f"{LEAST_RATIO:g}", " / ".join(highs), f"{bound_ms:,}"])
    head = ["trainers x nodes", *_FAMILY.values(), "bound", "HiGHS's medians, ms", "bound"]
    return table(head, lines) if lines else ""


def caps_that_cross(found: Mapping[str, Any]) -> str:
    """CPU milliseconds with caps that cross: median, least and most."""
    lines = []
    for family, name in _FAMILY.items():
        cells = []
        for one in _rows(found, part="crossing", family=family):
            cpu = [1e3 * value for value in one["cpu_s"]]
            late = f", {_late(one)} of {len(cpu)} stopped at the limit" if _late(one) else ""
            cells.append(f"{statistics.median(cpu):.0f} ({min(cpu):.0f}-{max(cpu):.0f}){late}" if cpu else "-")
        lines += [[name, *cells]] if cells else []
    return table(["family", *CROSSING_SOLVERS], lines) if lines else ""


def figure_5(found: Mapping[str, Any]) -> str:
    """CPU milliseconds on the paper's Figure 5's sizes, of equal shares the part of the optimum."""
    lines = []
    for size in FIGURE_5:
        mine = _rows(found, part="figure5", trainers=size[0], nodes=size[1])
        lines += [[_size(size), *map(_of_figure_5, mine)]] if mine else []
    head = ["trainers x nodes", *FIGURE_5_SOLVERS[:-1], "equal-share, of the optimum"]
    return table(head, lines) if lines else ""


def _of_figure_5(one: Mapping[str, Any]) -> str:
    if not one["cpu_s"]:
        return "-"
    if one["row"]["solver"] == "equal-share":
        return percent(statistics.median(one["of_optimum"]), 0)
    text = f"{1e3 * statistics.median(one['cpu_s']):,.3g}"
    return f"{text}, {_late(one)} of {len(one['cpu_s'])} stopped, gap {max(one['gap']):.1%}" if _late(one) else text


def _rows(found: Mapping[str, Any], **wanted: object) -> list[Any]:
    """The results whose row has these fields, in the order of the families."""
    return [one for one in found["results"] if all(one["row"][name] == value for name, value in wanted.items())]


def _time(one: Mapping[str, Any], bound_ms: float, worst_ms: float | None = None) -> str:
    cpu = [1e3 * value for value in one["cpu_s"]]
    if not cpu:
        return "-"
    missed = statistics.median(cpu) > bound_ms or (worst_ms is not None and max(cpu) > worst_ms)
    return f"{_ms(statistics.median(cpu))}, worst {_ms(max(cpu))}{_missed(missed)}"


def _ms(value: float) -> str:
    return f"{value:.{1 if value < 10 else 0}f}"


def _missed(missed: bool) -> str:
    return ", missed" if missed else ""


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,}"


def _figures(found: Mapping[str, Any]) -> Mapping[str, Figure]:
    """A plan for 35 trainers on 800 nodes from a random map: the medians of the families, and all runs."""
    small = _rows(found, part="exact", start="random", trainers=SMALL[0], nodes=SMALL[1])
    runs_ms = [[1e3 * value for value in one["cpu_s"]] for one in small]
    medians_ms = [statistics.median(one) for one in runs_ms]
    missed = sum(one > MOST_MS[SMALL] for one in medians_ms)
    text = f"{min(medians_ms):.1f}-{max(medians_ms):.1f} ms" + f", missed in {missed} of {len(small)}" * (missed > 0)
    return {"plan": Figure(text, max(medians_ms), (min(map(min, runs_ms)), max(map(max, runs_ms))))}


TABLES = {"times": times, "ratios": compared, "crossing": caps_that_cross, "figure5": figure_5}
_WORDS = ("benchmarks.milp", "--only")
EVIDENCE = {
    "milp": Benchmark((*_WORDS, *PARTS[:4]), 2.0, {"times": times, "ratios": compared}, _figures),
    "milp_crossing": Benchmark((*_WORDS, "crossing"), 3.0, {"crossing": caps_that_cross}),
    "milp_figure5": Benchmark((*_WORDS, "figure5"), 4.0, {"figure5": figure_5}),
}


def main() -> None:
    """Runs the parts asked for and prints tables, or JSON with all raw values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--repeats", type=int, default=20, help="instances of a row, fewer where it is slow")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="of one MILP solve")
    parser.add_argument("--quick", action="store_true", help="small sizes only, twice each")
    options = parser.parse_args()
    if options.repeats < 1 or not options.time_limit > 0:
        parser.error("--repeats and --time-limit must be positive")

    chosen = [row for row in rows(options.repeats, options.time_limit) if row.part in options.only]
    results = run(quick(chosen) if options.quick else chosen, sys.stderr)
    found = rounded({"ratios": ratios(results), "medians": medians(results), "results": results}, 5)
    print(
        json.dumps(found, indent=2)
        if options.json
        else "\n\n".join(filter(None, (of(found) for of in TABLES.values())))
    )


def run(chosen: Sequence[Row], out: Any) -> list[dict[str, Any]]:
    """Measure row by row, a line each as they come; milliseconds."""
    optima: dict[tuple[Any, ...], float] = {}
    print(_text(*_HEADINGS), file=out, flush=True)
    results = []
    for row in chosen:
        results.append(measure(row, optima))
        print(line(results[-1]), file=out, flush=True)
    return results


if __name__ == "__main__":
    main()
