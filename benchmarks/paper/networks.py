"""Sections 5.2 and 5.3 of the paper: seven networks in turn, two objectives, and how many trainers at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.markdown import NOT_PRINTED, percent, section, signed, table
from benchmarks.paper import figures
from benchmarks.paper.replays import Case, Results, case

OBJECTIVES = ("throughput", "efficiency")
TABLES = {"throughput": figures.TABLE_3, "efficiency": figures.TABLE_4}
T_FWD_S = (10.0, 60.0, 120.0, 300.0)
# Tables 3 and 4 and Figure 14 were made with the default of the authors' code.
TABLES_T_FWD_S = 10.0
# All 1,001 trainers need more than the one week that there is; so it comes again.
WEEKS = 2
GOAL = 0.15
BOUNDED = "RMS log error"


def week(objective: str, pj_max: int) -> Case:
    """The recorded week."""
    return case(objective, t_fwd_s=TABLES_T_FWD_S, pj_max=pj_max)


def to_the_end(objective: str, pj_max: int) -> Case:
    """The week again and again, so that all trainers are done."""
    return replace(week(objective, pj_max), weeks=WEEKS)


def hours(results: Results, case: Case) -> dict[str, float | None]:
    """Mean run time of each network in hours, by its name in the paper."""
    found = results[case]["mean_runtime_s"]
    return {name: found[kind] / 3600 if kind in found else None for name, kind in figures.KINDS.items()}


def rms_log_error(ours: Mapping[str, float | None], printed: Mapping[str, float]) -> float | None:
    """Root mean square of log(ours / printed), over all networks; None where one is missing."""
    errors = []
    for name, value in printed.items():
        mine = ours[name]
        if not mine:
            return None
        errors.append(math.log(mine / value) ** 2)
    return math.sqrt(statistics.fmean(errors))


# -- Tables 3 and 4 ---


def table3_cases() -> list[Case]:
    """Samples/s as the objective."""
    return _table_cases("throughput")


def table4_cases() -> list[Case]:
    """Scaling efficiency as the objective."""
    return _table_cases("efficiency")


def _table_cases(objective: str) -> list[Case]:
    return [made(objective, pj_max) for made in (week, to_the_end) for pj_max in figures.PJ_MAX]


def table3(results: Results) -> str:
    """Mean run times, samples/s as the objective."""
    return _table(
        results,
        "throughput",
        "Table 3: mean run time with samples/s as the objective",
        f"T_fwd {TABLES_T_FWD_S:g} s, reference accounting, bound {percent(GOAL, 0)}. The printed values have one "
        "digit after the point: 0.4 may be 0.35 or 0.45, 12 % off. The paper ran its trainers to their end; all of "
        f"ours are done within {WEEKS} weeks, of which the second is the first again. In one week only, the trainers "
        "that are not done by then are missing from the mean.",
    )


def table4(results: Results) -> str:
    """Mean run times, scaling efficiency as the objective."""
    return _table(results, "efficiency", "Table 4: mean run time with scaling efficiency as the objective")


def _table(results: Results, objective: str, title: str, *notes: str) -> str:
    found = [hours(results, to_the_end(objective, pj_max)) for pj_max in figures.PJ_MAX]
    rows: list[Sequence[object]] = []
    for name, printed in TABLES[objective].items():
        cells = [f"{_hours(column[name])} / {value:g}" for column, value in zip(found, printed, strict=True)]
        rows.append([name, *cells])
    for text, made in ((BOUNDED, to_the_end), ("the same, one week only", week)):
        errors = [_error(results, made(objective, pj_max)) for pj_max in figures.PJ_MAX]
        missed = [text == BOUNDED and (error is None or error > GOAL) for error in errors]
        rows.append([text, *(percent(each) + ", missed" * over for each, over in zip(errors, missed, strict=True))])
    return section(
        title,
        table(["hours, here / paper; pj_max", *map(str, figures.PJ_MAX)], rows),
        *notes,
    )


def _error(results: Results, case: Case) -> float | None:
    objective = case.trainers
    column = figures.PJ_MAX.index(case.options.pj_max)
    printed = {name: values[column] for name, values in TABLES[objective].items()}
    return rms_log_error(hours(results, case), printed)


def _hours(value: float | None) -> str:
    return NOT_PRINTED if value is None else f"{value:.2f}"


# -- Figure 12 ---


def figure12_cases() -> list[Case]:
    """The cases of both tables."""
    return [to_the_end(objective, pj_max) for objective in OBJECTIVES for pj_max in figures.PJ_MAX]


def figure12(results: Results) -> str:
    """Run times under the two objectives."""
    found = {objective: hours(results, to_the_end(objective, 10)) for objective in OBJECTIVES}
    rows = [[name, *(_hours(found[objective][name]) for objective in OBJECTIVES)] for name in figures.KINDS]
    text = ""
    ratios = {objective: _ratios(results, objective) for objective in OBJECTIVES}
    if all(ratios.values()):
        fast, fair = ratios["throughput"], ratios["efficiency"]
        text = (
            f"With samples/s as the objective DenseNet takes {statistics.fmean(fast):.0f} times as long as AlexNet on "
            f"average over the seven values of pj_max, and up to {max(fast):.0f} times; the paper says more than "
            f"{figures.RUNTIME_RATIO_MEAN:.0f} on average and up to {figures.RUNTIME_RATIO_MOST:.0f}. With scaling "
            f"efficiency it is {min(fair):.1f} to {max(fair):.1f} times."
        )
    return section(
        "Figure 12: run times under two objectives",
        table(["mean run time in hours, pj_max 10", "samples/s", "scaling efficiency"], rows),
        text,
    )


def _ratios(results: Results, objective: str) -> list[float]:
    ratios = []
    for pj_max in figures.PJ_MAX:
        column = hours(results, to_the_end(objective, pj_max))
        if column["DenseNet"] and column["AlexNet"]:
            ratios.append(column["DenseNet"] / column["AlexNet"])
    return ratios


# -- Figure 13 ---


def _figure13(objective: str, t_fwd_s: float) -> Case:
    return case(objective, t_fwd_s=t_fwd_s)


def figure13_cases() -> list[Case]:
    """Two objectives, several T_fwd."""
    return [_figure13(objective, t_fwd_s) for objective in OBJECTIVES for t_fwd_s in T_FWD_S]


def figure13(results: Results) -> str:
    """U by objective and T_fwd."""
    columns = {objective: [results[_figure13(objective, t_fwd_s)] for t_fwd_s in T_FWD_S] for objective in OBJECTIVES}
    rows = []
    for place, t_fwd_s in enumerate(T_FWD_S):
        found = [columns[objective][place] for objective in OBJECTIVES]
        rows.append(
            [f"{t_fwd_s:g}", *(percent(each["efficiency"]) for each in found)]
            + [each["trainers_completed"] for each in found]
        )
    pairs = list(zip(*(columns[objective] for objective in OBJECTIVES), strict=True))
    higher = sum(fair["efficiency"] > fast["efficiency"] for fast, fair in pairs)
    more = sum(fair["trainers_completed"] > fast["trainers_completed"] for fast, fair in pairs)
    head = ["T_fwd, s", "U, samples/s", "U, scaling efficiency", "trainers done, samples/s", "scaling efficiency"]
    return section(
        "Figure 13: U by objective and forward-looking time",
        table(head, rows),
        "The text says that U is consistently higher with scaling efficiency. "
        f"Here it is in {higher} of {len(pairs)} cases, and more trainers are done in {more}. U counts samples, "
        "whatever was maximised, and is relative to dedicated nodes that are allocated for the same objective. The "
        "paper does not say with which static allocation it compares its diverse trainers, and which of the two comes "
        "out higher depends on that.",
    )


# -- Figure 14 ---


def figure14(results: Results) -> str:
    """Node-hours, run time and U against pj_max."""
    rows: list[Sequence[object]] = []
    changes = []
    for objective in OBJECTIVES:
        ends = {pj_max: results.extras(to_the_end(objective, pj_max))["all_done"] for pj_max in figures.PJ_MAX}
        means = {pj_max: _mean_hours(results, to_the_end(objective, pj_max)) for pj_max in figures.PJ_MAX}
        for pj_max, end in ends.items():
            result = results[week(objective, pj_max)]
            empty = 1 - result["used_node_hours"] / result["node_hours"]
            printed = percent(figures.UNOCCUPIED.get(pj_max, 0.0))
            used = f"{end['node_hours']:,.0f}" if end else NOT_PRINTED
            mean = f"{means[pj_max]:.2f}"
            rows.append([f"{objective}, {pj_max}", used, mean, percent(result["efficiency"]), percent(empty), printed])
        few, many = figures.PJ_MAX[0], figures.PJ_MAX[-1]
        first, last = ends[few], ends[many]
        if first and last:
            hours_change = last["node_hours"] / first["node_hours"] - 1
            changes.append(f"with {objective}, {signed(hours_change)} and {signed(means[many] / means[few] - 1)}")
    told = "; ".join(changes) or NOT_PRINTED
    head = ["objective, pj_max", "14a: node-hours for all", "14b: mean run time, h", "14c: U", "unoccupied", "paper"]
    return section(
        "Figure 14: how many trainers at once",
        table(head, rows),
        f"From pj_max 5 to 35, node-hours and mean run time change: {told}; the paper prints "
        f"{signed(figures.NODE_HOURS_CHANGE)} and {signed(figures.RUNTIME_CHANGE)}. Node-hours are those of the "
        "pool until the last of the 1,001 trainers is done, in the repeated week; U and the unoccupied share are those "
        "of the recorded week. Unoccupied nodes are the ones beyond 64 for each trainer: how often the pool is that "
        "large depends on which nodes it is of.",
    )


def _mean_hours(results: Results, case: Case) -> float:
    """Mean run time of all trainers that were done."""
    runtimes, counts = results[case]["mean_runtime_s"], results.extras(case)["completed"]
    done = sum(counts.values())
    return sum(runtimes[kind] * counts[kind] for kind in counts) / 3600 / done if done else 0.0
