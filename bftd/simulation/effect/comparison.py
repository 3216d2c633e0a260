"""Two settings compared over the same past: the work each recovers, the confidence of the difference, and U.

U is A_e over A_s. A_e is the work recovered. A_s is the work that the same trainers, with the same arrivals, would have
done on as many dedicated nodes as the pool had on average, without costs or a bound. A_s is the same for both settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, floor
from typing import Any

import numpy as np

import milp
from bftd.base.format import counted
from bftd.simulation.advise.confidence import CONFIDENCE, bounds
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.effect.past import Past, past_of
from bftd.simulation.effect.training import trainers_of, warm_up_s
from bftd.simulation.replay.account import Account, Floats
from bftd.simulation.replay.loop import Replay
from bftd.simulation.replay.options import Options
from bftd.simulation.trace.model import HOUR_S, Trace

# Less tells nothing: the pool of an hour is not the pool of a day.
LEAST_H = 1.0
# The time is cut into this many blocks, an hour each over a day: their spread gives the confidence of the sum.
_BLOCKS = 24
_BLOCKS_LEAST = 6
# A difference below this counts as none, however certain it is.
ALIKE = 0.0005
# The time an administrator waits for an answer.
LIMIT_S = 20.0
# The part of the time limit that the first replay may take. If it takes longer, fewer hours are replayed: this part of
# the hours it reached, as the other settings may take longer.
_FIRST = 0.25
_FEWER = 0.6


Progress = Callable[[float], None]


class _TooLong(Exception):
    """A replay has used up its time with `share` of it done."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share


@dataclass(frozen=True)
class Effect:
    """The effect of a change of settings over the last `hours`, out of `asked_hours`.

    `gain` is a fraction of the work that the present settings recover, and lies between `low` and `high` with
    `confidence`; `sure` says whether it is a gain or a loss at all. `u_before` and `u_after` are U. If nothing can be
    said, `why_not` gives the reason.
    """

    asked_hours: float
    hours: float = 0.0
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    sure: bool = False
    u_before: float | None = None
    u_after: float | None = None
    recovered_node_hours_before: float = 0.0
    recovered_node_hours_after: float = 0.0
    trainers: int = 0
    changes: int = 0
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    why_not: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the effect as JSON data."""
        return asdict(self) | {"notes": list(self.notes)}

    def text(self, what: str) -> str:
        """Return one line on the effect; `what` names the change."""
        if self.gain is None:
            return f"the effect of {what} is not known: {self.why_not}"
        over = f"over the last {self.hours:.3g} h"
        if self.sure and self.low is not None and self.high is not None:
            outcome = f"{what} would have recovered {self.gain:+.1%} {over}"
            how = f"{self.low:+.1%} to {self.high:+.1%} with {CONFIDENCE:.0%} confidence; "
        else:
            outcome = f"{what} would have made no difference that can be told {over}"
            how = f"{self.gain:+.1%}; " if abs(self.gain) >= ALIKE else ""
        u = "" if self.u_before is None or self.u_after is None else f"U {self.u_before:.1%} -> {self.u_after:.1%}; "
        counts = f"{counted(self.trainers, 'trainer')}, {counted(self.changes, 'change')} of the pool"
        return f"{outcome} ({how}{u}{counts}; replayed in {self.wall_s:.0f} s)"


def compared(
    answer: Mapping[str, Any],
    settings: Mapping[str, Any],
    hours: float = 24.0,
    limit_s: float = LIMIT_S,
    progress: Progress | None = None,
) -> Effect:
    """Return the effect of `settings` in place of the present ones, computed in about `limit_s`.

    `answer` is that of `GET /v1/pool-trace`, which includes the present settings. `progress` is called now and then
    with the fraction done, in 0..1.
    """
    begun_s = time.monotonic()
    present: Mapping[str, Any] = answer["settings"]
    changed = {name for name in settings if settings[name] != present.get(name)}
    if changed == {"solver"} and _planned_by(settings) == _planned_by(present):
        return Effect(hours, why_not="these solvers make the same plans, and differ only in the time that it takes")
    past = past_of(answer, answer["time_s"] - hours * HOUR_S)
    known_h = 0.0 if past is None else past.trace.duration_s / HOUR_S
    if past is None or known_h < LEAST_H:
        least = f"the ledger has {known_h:.1f} h of the pool, and {LEAST_H:g} h is the least that tells anything"
        return Effect(hours, known_h, why_not=least)
    notes = []
    if known_h < 0.99 * hours:
        notes.append(f"the ledger has {known_h:.3g} of the last {hours:g} h")
    runs = _Runs(answer, begun_s + limit_s, progress)
    try:
        try:
            before = runs.played(past, present, begun_s + _FIRST * limit_s)
        except _TooLong as slow:
            fewer_h = known_h * slow.share * _FEWER
            shorter = past_of(answer, past.end_s - fewer_h * HOUR_S)
            if fewer_h < LEAST_H or shorter is None:
                return Effect(hours, known_h, why_not=f"not even {LEAST_H:g} h can be replayed in {limit_s:.0f} s here")
            past, known_h = shorter, shorter.trace.duration_s / HOUR_S
            notes.append(f"more than {known_h:.3g} h cannot be replayed in {limit_s:.0f} s here")
            before = runs.played(past, present)
        if not before.any():
            return Effect(hours, known_h, why_not="no trainer had anything to do in that time")
        after, best = runs.played(past, settings), runs.dedicated(past)
    except _TooLong:
        return Effect(hours, known_h, why_not=f"it cannot be replayed in {limit_s:.0f} s here: ask for fewer hours")
    return _judged(past, before, after, best, hours, [*notes, *runs.notes(past)], runs, begun_s)


class _Runs:
    """The replays of one comparison, which all end by `end_s` (of the monotonic clock)."""

    def __init__(self, answer: Mapping[str, Any], end_s: float, progress: Progress | None) -> None:
        self._answer = answer
        self._end_s = end_s
        self._progress = progress
        self._done = 0
        self.count = 0

    def played(self, past: Past, settings: Mapping[str, Any], end_s: float | None = None) -> Floats:
        """Return the node-seconds of work that settings recover in each block of the past."""
        trainers = trainers_of(self._answer["trainers"], past, settings["objective"])
        self.count, edges_s = len(trainers), _edges(past.trace)
        most = _bound(settings, self._answer["partition_nodes"])
        if not trainers or most == 0 or not len(past.trace.times_s):
            return np.zeros(len(edges_s) - 1)
        options = Options(
            t_fwd_s=settings["t_fwd_s"],
            pj_max=settings["pj_max"],
            warm_up_s=warm_up_s(self._answer["trainers"]),
            max_nodes=most or 0,
            solver=_planned_by(settings),
        )
        return self._run(past.trace, trainers, options, end_s).outcome(edges_s)

    def dedicated(self, past: Past) -> float:
        """Return A_s in node-seconds, linear between whole numbers of nodes."""
        duration_s = past.trace.duration_s
        eq_nodes = _node_seconds(past.trace) / duration_s
        low = self._on(past, floor(eq_nodes))
        high = low if eq_nodes == floor(eq_nodes) else self._on(past, ceil(eq_nodes))
        return low + (high - low) * (eq_nodes - floor(eq_nodes))

    def notes(self, past: Past) -> list[str]:
        """Return the caveats."""
        found = []
        if left_out := self._answer["left_out"]:
            found.append(f"{counted(left_out, 'trainer')} of that time left out: nothing was kept of their speed")
        if past.repaired:
            found.append(f"changes of the pool are missing in {counted(past.repaired, 'hour')}")
        if self._answer["classes"] > 1:
            found.append("the nodes are of several classes, and are replayed as if they were alike")
        return found

    def _on(self, past: Past, nodes: int) -> float:
        if nodes < 1:
            return 0.0
        names = tuple(str(place) for place in range(nodes))
        trace = Trace(
            nodes=names,
            times_s=np.zeros(nodes),
            node=np.arange(nodes, dtype=np.int32),
            idle=np.ones(nodes, dtype=np.bool_),
            duration_s=past.trace.duration_s,
        )
        trainers = [
            replace(each, objective=each.curve, up_cost_s=0.0, down_cost_s=0.0)
            for each in trainers_of(self._answer["trainers"], past, "throughput")
        ]
        options = Options(t_fwd_s=past.trace.duration_s, pj_max=max(1, len(trainers)))
        return float(self._run(trace, trainers, options, None).outcome(_edges(past.trace)).sum())

    def _run(self, trace: Trace, trainers: Sequence[SimTrainer], options: Options, end_s: float | None) -> Account:
        latest_s = self._end_s if end_s is None else end_s

        def heard(share: float) -> None:
            if self._progress is not None:
                self._progress((min(self._done, 1) + share) / 2)
            if time.monotonic() > latest_s:
                raise _TooLong(share)

        account = Replay(trainers, options).through(trace, heard)
        self._done += 1
        return account


def _planned_by(settings: Mapping[str, Any]) -> str:
    """Return the solver with which settings are replayed.

    Settings whose solver proves optima are replayed with "auto": its plans are the same, it takes milliseconds, and it
    needs no engine on this host.
    """
    name: str = settings.get("solver", "auto")
    return "auto" if name == "auto" or milp.check_solver(name).proves else name


def _node_seconds(trace: Trace) -> float:
    """Return the node-seconds of the pool."""
    signs = np.where(trace.idle, 1.0, -1.0)
    return float((signs * (trace.duration_s - trace.times_s)).sum())


def _judged(
    past: Past,
    before: Floats,
    after: Floats,
    best: float,
    hours: float,
    notes: Sequence[str],
    runs: _Runs,
    begun_s: float,
) -> Effect:
    total = float(before.sum())
    gain = float(after.sum()) / total - 1.0
    low, high = bounds(after - before, np.full(len(before), total / len(before)), gain)
    return Effect(
        asked_hours=hours,
        hours=past.trace.duration_s / HOUR_S,
        gain=gain,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        sure=(low > 0.0 or high < 0.0) and abs(gain) >= ALIKE,
        u_before=total / best if best > 0 else None,
        u_after=float(after.sum()) / best if best > 0 else None,
        recovered_node_hours_before=total / HOUR_S,
        recovered_node_hours_after=float(after.sum()) / HOUR_S,
        trainers=runs.count,
        changes=past.changes,
        wall_s=time.monotonic() - begun_s,
        notes=tuple(notes),
    )


def _edges(trace: Trace) -> Floats:
    blocks = max(_BLOCKS_LEAST, min(_BLOCKS, floor(trace.duration_s / HOUR_S)))
    return np.linspace(0.0, trace.duration_s, blocks + 1)


def _bound(settings: Mapping[str, Any], partition_nodes: int) -> int | None:
    """Return the most nodes that trainers may hold at once; None without a bound."""
    found = [settings["max_nodes"]] if settings["max_nodes"] else []
    if settings["max_share"] < 1.0:
        found.append(int(settings["max_share"] * partition_nodes + 1e-6))
    return min(found) if found else None
