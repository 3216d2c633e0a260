"""Sections 2 and 5.1 of the paper: the trace, and one user's search for hyperparameters on it."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.markdown import NOT_PRINTED, bars, percent, section, signed, table
from benchmarks.paper import figures
from benchmarks.paper.replays import Case, Floats, Results, case
from bftd.simulation.replay import EXACT

T_FWD_S = (10.0, 30.0, 60.0, 90.0, 120.0, 170.0, 240.0, 300.0, 600.0)
EXACT_T_FWD_S = (10.0, 60.0, 120.0, 300.0, 600.0)

MILP = case("hpo")
EQUAL_SHARE = case("hpo", policy="equal-share")
MILP_EXACT = case("hpo", EXACT)
EQUAL_SHARE_EXACT = case("hpo", EXACT, policy="equal-share")


def sweep() -> dict[float, Case]:
    """The cases of Figures 7 and 9, by T_fwd."""
    return {t_fwd_s: case("hpo", t_fwd_s=t_fwd_s) for t_fwd_s in T_FWD_S}


def exact_sweep() -> dict[float, Case]:
    """The same with exact accounting."""
    return {t_fwd_s: case("hpo", EXACT, t_fwd_s=t_fwd_s) for t_fwd_s in EXACT_T_FWD_S}


# -- Table 1 ---


def table1(results: Results) -> str:
    """The trace itself."""
    whole, subset = results.trace["whole"], results.trace["subset"]
    for stats in (whole, subset):
        _, stats["short_share"], stats["short_time"] = next(
            each for each in stats["fragments"]["shorter"] if each[0] == 600
        )
    counts = {"inc_per_h": "INC/h", "dec_per_h": "DEC/h", "events_per_h": "events/h"}
    counts |= {"joined_per_h": "events/h with a node joining", "left_per_h": "events/h with a node leaving"}
    rows = [[text, *(_number(each.get(key)) for each in _columns(whole, subset))] for key, text in counts.items()]
    shares = {"ratio": "ratio", "short_share": "fragments under 10 minutes", "short_time": "idle node time in those"}
    rows[2:2] = [["eq-Nodes", *(_number(each.get("eq_nodes"), 0) for each in _columns(whole, subset))]]
    rows += [[text, *(percent(each.get(key)) for each in _columns(whole, subset))] for key, text in shares.items()]
    head = ["", "paper: 2 months", "paper: first 2 weeks", f"week 1, {whole['nodes']:,} nodes", "week 1, 1,024 nodes"]
    return section(
        "Table 1: what cannot be backfilled",
        table(head, rows),
        "INC/h and DEC/h count the times at which the number of idle nodes rose or fell; an event of section 2.1 may "
        "be both, with a node joining and another leaving.",
    )


def _columns(whole: dict[str, Any], subset: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return figures.TABLE_1, figures.TWO_WEEKS, whole, subset


def _number(value: float | None, digits: int = 1) -> str:
    return NOT_PRINTED if value is None else f"{value:,.{digits}f}"


# -- Figures 7 to 9 ---


def figure7_cases() -> list[Case]:
    """T_fwd, and equal shares beside it."""
    return [*sweep().values(), EQUAL_SHARE]


def figure7(results: Results) -> str:
    """Preemptions within T_fwd, and what rescaling costs."""
    cases = sweep()
    per_event = {t_fwd_s: cost_per_event(results[each]) for t_fwd_s, each in cases.items()}
    equal = cost_per_event(results[EQUAL_SHARE])
    printed = {figures.PREEMPTED_AT_S: percent(figures.PREEMPTED_SHARE, 0)}
    first = T_FWD_S[0]
    printed_cost = {first: f"{figures.EQUAL_SHARE_COST_PER_EVENT / figures.EQUAL_SHARE_COST_RATIO:,.0f}"}
    rows = [
        [
            f"{t_fwd_s:g}",
            percent(results[each]["t_fwd_preempted_share"]),
            printed.get(t_fwd_s, NOT_PRINTED),
            f"{per_event[t_fwd_s]:,.0f}",
            printed_cost.get(t_fwd_s, NOT_PRINTED),
        ]
        for t_fwd_s, each in cases.items()
    ]
    rows.append(["equal shares", *[NOT_PRINTED] * 2, f"{equal:,.0f}", f"{figures.EQUAL_SHARE_COST_PER_EVENT:,.0f}"])
    head = ["T_fwd, s", "7a: preemptions within it", "paper"]
    head += ["7b: rescale cost per event, samples", "paper"]
    return section(
        "Figure 7: the forward-looking time",
        table(head, rows),
        "Of all preemptions, 7a counts those that come within T_fwd of the plan before them. Equal shares cost "
        f"{equal / max(per_event[first], 1e-9):.0f} times what the MILP with a T_fwd of 10 s costs; "
        f"the paper prints {figures.EQUAL_SHARE_COST_RATIO:.0f}.",
    )


def cost_per_event(result: Any) -> float:
    """Samples lost to rescaling, over the events."""
    return float(result["rescale_cost_samples"] / max(result["events"], 1))


def figure8_cases() -> list[Case]:
    """T_fwd."""
    return list(sweep().values())


def figure8(results: Results) -> str:
    """What an investment into rescaling returns."""
    rows = []
    for t_fwd_s, each in sweep().items():
        outcome, cost = (results[each][key] for key in ("outcome_samples", "rescale_cost_samples"))
        quartiles = [f"{value:,.0f}" for value in results.extras(each)["returns"]]
        rows.append(
            [
                f"{t_fwd_s:g}",
                f"{outcome / 1e9:.1f}",
                f"{cost / 1e9:.2f}",
                f"{outcome / max(cost, 1e-9):.0f}",
                *quartiles,
            ]
        )
    head = ["T_fwd, s", "outcome, 10⁹ samples", "rescale cost, 10⁹ samples", "outcome / cost"]
    return section(
        "Figure 8: the return of rescaling",
        table([*head, "of an event: 25 %", "median", "75 %"], rows),
        "The investment is the cost of rescaling. The return is the outcome after costs, over the week, and from each "
        "event that rescales to the next one. The text says that it falls as T_fwd grows, and is more stable then, "
        "while the outcome grows and saturates.",
    )


def figure9_cases() -> list[Case]:
    """T_fwd in both accountings."""
    return [*figure7_cases(), *exact_sweep().values(), EQUAL_SHARE_EXACT]


def figure9(results: Results) -> str:
    """U against T_fwd."""
    exact = exact_sweep()
    rows = []
    for t_fwd_s, each in sweep().items():
        printed = percent(figures.U_MILP, 0) if t_fwd_s == figures.SATURATED_AT_S else NOT_PRINTED
        other = percent(results[exact[t_fwd_s]]["efficiency"]) if t_fwd_s in exact else ""
        rows.append([f"{t_fwd_s:g}", percent(results[each]["efficiency"]), printed, other])
    equal, equal_exact = (results[each]["efficiency"] for each in (EQUAL_SHARE, EQUAL_SHARE_EXACT))
    rows.append(["equal shares", percent(equal), percent(figures.U_EQUAL_SHARE, 0), percent(equal_exact)])
    return section(
        "Figure 9: U against the forward-looking time",
        table(["T_fwd, s", "reference", "paper", "exact"], rows),
        "The paper does not tell over which part of its two weeks it averaged.",
    )


# -- Figures 10 and 11 ---


def figure10_cases() -> list[Case]:
    """The week at a T_fwd of 120 s."""
    return [MILP, EQUAL_SHARE, MILP_EXACT]


def figure10(results: Results) -> str:
    """U every six hours."""
    milp, equal, exact = (results[each]["series"]["efficiency"] for each in figure10_cases())
    pool = results[MILP]["series"]["node_hours"]
    charts = [["idle node-hours", bars(pool, 0, max(pool)), f"{min(pool):.0f}", f"{max(pool):.0f}"]]
    for text, series in (("MILP, reference", milp), ("equal shares, reference", equal), ("MILP, exact", exact)):
        charts.append([text, bars(series, 0.4, 1.0), percent(min(series)), percent(max(series))])
    above = [mine / other - 1 for mine, other in zip(milp, equal, strict=True) if other > 0]
    good = sum(each >= figures.BEST_WINDOW_U for each in milp)
    ours = results.derived.get("per_event")
    rows = [
        ["average U", percent(results[MILP]["efficiency"]), percent(figures.U_MILP, 0)],
        ["most above equal shares in six hours", signed(max(above)), signed(figures.MOST_ABOVE_EQUAL_SHARE)],
        ["windows of six hours at 90 % or more", good, f"{figures.BEST_WINDOWS}, about 90 %"],
    ]
    if ours:
        texts = {"worse": "events with fewer samples than equal shares", "twice": "events with twice the samples"}
        texts |= {"five_times": "events with five times the samples"}
        rows += [[text, percent(ours[key]), percent(figures.PER_EVENT[key])] for key, text in texts.items()]
        rows.append(["mean of samples over those of equal shares", f"{ours['mean']:.1f}", figures.PER_EVENT["mean"]])
    return section(
        "Figure 10: U over the week",
        "Every bar is six hours; those of U go from 40 % to 100 %.",
        table(["", "", "least", "most"], charts),
        table(["T_fwd 120 s, reference", "here", "paper"], rows),
        "An event is the time between two changes of the pool. Those in which equal shares earn nothing, or less than "
        "nothing after costs, have no ratio and are left out" + (f" ({percent(ours['without'])})." if ours else "."),
    )


def per_event(milp: Floats, equal: Floats) -> dict[str, float]:
    """How much more the MILP earns than equal shares between consecutive events (section 5.1.2)."""
    has_ratio = equal > 0
    ratio = milp[has_ratio] / equal[has_ratio]
    return {
        "worse": float(np.mean(ratio < 1 - 1e-9)),
        "twice": float(np.mean(ratio >= 2)),
        "five_times": float(np.mean(ratio >= 5)),
        "mean": float(np.mean(ratio)),
        "without": float(1 - np.mean(has_ratio)),
    }


def figure11_cases() -> list[Case]:
    """MILP and equal shares."""
    return [MILP, EQUAL_SHARE]


def figure11(results: Results) -> str:
    """Preemption and rescaling cost over the week."""
    rows = []
    for key, text in (("preempt", "11a: preemption"), ("rescale", "11b: rescaling")):
        series = {name: results.extras(each)["costs"][key] for name, each in (("MILP", MILP), ("equal", EQUAL_SHARE))}
        most = max(max(values) for values in series.values()) or 1.0
        for name, label in (("MILP", "MILP"), ("equal", "equal shares")):
            values = series[name]
            rows.append([f"{text}, {label}", bars(values, 0, most), f"{sum(values) / 1e9:,.3f}"])
    ratio = results[EQUAL_SHARE]["rescale_cost_samples"] / max(results[MILP]["rescale_cost_samples"], 1e-9)
    return section(
        "Figure 11: what preemption and rescaling cost",
        table(["T_fwd 120 s, reference", "every six hours", "10⁹ samples in all"], rows),
        "The paper says of its plot that the costs of preemption differ little and that rescaling costs the MILP much "
        f"less; here equal shares pay {ratio:.1f} times as much.",
    )
