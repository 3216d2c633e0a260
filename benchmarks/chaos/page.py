"""The table of the page, from a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.evidence.model import Figure
from benchmarks.markdown import NOT_PRINTED, Measured, measured

_WORDS = {"kill": "killed", "stop": "stopped for a while and resumed"}


def table(result: Mapping[str, Any]) -> str:
    """A line a figure, and one for each group of faults."""
    faults, violations = result["faults"], result["violations"]
    late_s, bound_s = result["regular_job_delay_max_s"], result["bound_s"]
    broken = {rule: count for rule, count in violations.items() if count}
    rows = [Measured(f"faults in {result['minutes']:g} minutes", f"{sum(faults.values())}")]
    for word, text in _WORDS.items():
        of = {kind.partition("_")[2]: count for kind, count in faults.items() if kind.startswith(f"{word}_")}
        if of:
            rows.append(Measured(text, _counts(of)))
    others = {kind.replace("_", " "): count for kind, count in faults.items() if kind.partition("_")[0] not in _WORDS}
    if others:
        rows.append(Measured("others", _counts(others)))
    rows += [
        Measured("violations of rules", _counts(broken) if broken else "0", "0", bool(broken)),
        Measured(
            "longest wait of a regular job while Slurm was whole", _s(late_s), _s(bound_s), (late_s or 0.0) > bound_s
        ),
        Measured("a node asked back until it is free: median, p99, most", _several(result["give_back_s"])),
        Measured("end of a fault until all trainers train again: median, most", _several(result["recovery_s"])),
        Measured("processes left at the end", f"{result['orphans']}", "0", result["orphans"] > 0),
    ]
    for trainer in result["trainers"]:
        right = trainer["finished"] and trainer["loss_ok"] and not trainer["steps_counted_twice"]
        text = (
            f"{'as undisturbed' if trainer['loss_ok'] else 'differs'}, {trainer['steps_counted_twice']} counted twice"
        )
        what = f"{trainer['name']}: {trainer['steps']} steps in {trainer['jobs']} jobs"
        rows.append(
            Measured(what, text if trainer["finished"] else f"not finished, {text}", "as undisturbed, 0", not right)
        )
    return measured(rows)


def figures(result: Mapping[str, Any]) -> Mapping[str, Figure]:
    """The numbers that pages name in a sentence."""
    faults, broken = sum(result["faults"].values()), sum(result["violations"].values())
    return {
        "faults": Figure(f"{faults}", faults),
        "violations": Figure(f"{broken}", broken, (0, 0)),
    }


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _s(value: float | None) -> str:
    return NOT_PRINTED if value is None else f"{value:.1f} s"


def _several(values: Mapping[str, float | None]) -> str:
    # a kept result has its keys in another order
    return ", ".join(_s(values[name]) for name in ("p50", "p99", "max") if name in values)
