"""Output of `bft size choose`: the end of each run, why the winner wins, and its #SBATCH lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bftd.cli import common
from bftd.cli.size.shared import submit

if TYPE_CHECKING:
    from sizing.base.estimate import Estimate
    from sizing.choice.runs import JobRun, Rejected
    from sizing.functions.job_runs import ChooseResult

_ROWS = 12


def lines(shown: ChooseResult, top: int, program: str) -> Iterator[str]:
    """Yield the table and the notes; for the winner also the reason, its #SBATCH lines and the launch of `program`."""
    from bftd.base.tables import Column
    from sizing.sbatch import lines as emit

    columns = [
        Column("#", right=True),
        Column("PARTITION", least=10),
        Column("GPUS"),
        Column("SPREAD", rank=2),
        Column("STEP", rank=3, right=True),
        Column("ORIGIN"),
        Column("RUN"),
        Column("STARTS"),
        Column("ENDS"),
        Column("AT WORST"),
        Column("GPU-HOURS", rank=1, right=True),
    ]
    rows = shown.ordered[: max(_ROWS, top)]
    yield from common.table(columns, [_row(at, run, shown) for at, run in enumerate(rows, 1)])
    if len(shown.ordered) > len(rows):
        yield f"and {len(shown.ordered) - len(rows)} others (--json has them)"
    yield f"{shown.steps} steps and the start-up; GPU-hours of all GPUs that others cannot use meanwhile"
    yield from _refusals(shown)
    yield from _too_long(shown)
    for note in shown.notes:
        yield f"note: {note}"
    winner = shown.winner
    if winner is None:
        return
    yield ""
    yield shown.why
    yield ""
    written = winner.lines()
    yield from emit.commented(tuple(line.text for line in written), tuple(line.why for line in written))
    yield from submit.launch(winner, program)


def to_json(shown: ChooseResult, program: str) -> dict[str, Any]:
    """Return the output of `bft size choose --json`, which launches `program`."""
    winner = shown.winner
    return {
        "winner": None if winner is None else winner.to_json(shown.now_s),
        "why": shown.why or None,
        "environment": None if winner is None else submit.environment(winner),
        "launch": None if winner is None else list(submit.launch(winner, program)),
        "deadline_s": shown.deadline_s,
        "runs": [run.to_json(shown.now_s) for run in shown.ordered],
        "refused": [run.to_json(shown.now_s) for run in shown.best if run.refused],
        "cells": [run.to_json(shown.now_s) for run in shown.found],
        "out": [each.to_json() for each in shown.out],
        "notes": list(shown.notes),
    }


def until(at_s: float, now_s: float) -> str:
    """Format an estimated moment; more than a year ahead as a duration, so that nobody takes it for a date."""
    from sizing.choice.limits import YEAR_S, words
    from sizing.functions.job_runs import moment

    return f"in {words(at_s - now_s)}" if at_s - now_s >= YEAR_S else moment(at_s)


def _row(number: int, run: JobRun, shown: ChooseResult) -> tuple[str, ...]:
    from sizing.choice.limits import hours, words

    ends = run.ends_s(shown.now_s)
    nodes = f" on {run.nodes} nodes" if run.nodes > 1 else ""
    start = "not asked" if run.start_s is None else until(run.start_s, shown.now_s)
    return (
        str(number),
        run.partition,
        f"{run.gpus} x {run.gpu_type}{nodes}",
        run.spread,
        _step(run.step_s),
        run.step_s.origin,
        f"{words(run.run_s.value)} ({words(run.run_s.low)} - {words(run.run_s.high)})",
        start,
        until(ends.value, shown.now_s),
        until(ends.high, shown.now_s),
        hours(run.gpu_hours.value),
    )


def _refusals(shown: ChooseResult) -> Iterator[str]:
    """Yield the requests that Slurm refuses, with its messages."""
    refusals: dict[tuple[str, str], list[str]] = {}
    for run in shown.best:
        if run.refused:
            refusals.setdefault((run.partition, run.said), []).append(f"{run.gpus} x {run.gpu_type}")
    for (partition, words), which in refusals.items():
        yield f"{', '.join(which)} in {partition}: {words}"


def _too_long(shown: ChooseResult) -> Iterator[str]:
    """For each partition and type whose time limit rules out all runs, yield the shortest and the reason."""
    left = {(run.partition, run.gpu_type) for run in shown.found}
    shortest: dict[tuple[str, str], tuple[float, Rejected]] = {}
    for each in shown.out:
        key = (each.shape.pool.partition, each.shape.pool.gpu.name)
        if each.run_s is not None and key not in left:
            length = (each.run_s.value, each)
            shortest[key] = min(shortest.get(key, length), length, key=lambda pair: pair[0])
    for (partition, kind), (_, each) in shortest.items():
        yield f"{each.shape.gpus} x {kind} in {partition}: {each.why}"


def _step(step: Estimate) -> str:
    low, high = (f"{end:.2g}" if end < 99.5 else f"{end:.0f}" for end in (step.low, step.high))
    return f"{step.value:.3g} s ({low}-{high})"
