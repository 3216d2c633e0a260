"""The daemon's own past as a trace, rebuilt from the answer of `GET /v1/pool-trace`.

Time in which the daemon did not run is unknown and cut out: the trace continues where the pool is seen again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bftd.simulation.trace.model import Trace
from slurm_plugin.nodeset import expand


@dataclass(frozen=True)
class Past:
    """The pool from `start_s` (unix seconds) to `end_s`, as a trace without the `gaps`.

    `changes` counts the moments at which the pool changed. `repaired` counts the full records of the pool that did not
    match the changes before them: some changes are missing.
    """

    trace: Trace
    start_s: float
    end_s: float
    gaps: tuple[tuple[float, float], ...] = ()
    changes: int = 0
    repaired: int = 0

    def at(self, time_s: float) -> float:
        """Convert a wall time to seconds of the trace; 0 for a time before it."""
        unknown_s = sum(max(0.0, min(to_s, time_s) - from_s) for from_s, to_s in self.gaps)
        return max(0.0, time_s - self.start_s - unknown_s)


@dataclass
class _Pool:
    """The pool while its changes are read: nodes in it, nodes that only a bound keeps out, and those shown."""

    inside: set[str] = field(default_factory=set)
    beyond: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    rows: list[tuple[float, str, bool]] = field(default_factory=list)
    moments: int = 0

    def change(self, item: Mapping[str, Any]) -> None:
        """Let nodes join and leave."""
        for group, prefix in ((self.inside, ""), (self.beyond, "beyond_")):
            joined, left = _names(item.get(f"{prefix}joined")), _names(item.get(f"{prefix}left"))
            group -= left
            group |= joined
            self.touched |= joined | left

    def replace(self, item: Mapping[str, Any]) -> bool:
        """Replace the pool by a full record of it; returns whether it differed."""
        inside, beyond = _names(item["nodes"]), _names(item["beyond"])
        differs = (inside, beyond) != (self.inside, self.beyond)
        self.touched |= self.inside ^ inside | self.beyond ^ beyond
        self.inside, self.beyond = inside, beyond
        return differs

    def flush(self, time_s: float) -> None:
        """Write rows for all that has changed by this moment."""
        before = len(self.rows)
        for name in sorted(self.touched):
            now = name in self.inside or name in self.beyond
            if now != (name in self.shown):
                self.rows.append((time_s, name, now))
                (self.shown.add if now else self.shown.discard)(name)
        self.moments += before > 0 and len(self.rows) > before
        self.touched.clear()


def past_of(answer: Mapping[str, Any], since_s: float) -> Past | None:
    """Return the past since a time, or since the pool is known; None if nothing is known of it."""
    changes = _by_present_clock(answer["changes"])
    while changes and "nodes" not in changes[0]:
        del changes[0]
    if not changes:
        return None
    start_s, end_s = max(since_s, changes[0]["at_s"]), float(answer["time_s"])
    pool, gaps, repaired, last_s = _Pool(), list[tuple[float, float]](), 0, start_s
    known_s = 0.0  # seconds of the trace at `last_s`
    for item in changes:
        at_s = max(item["at_s"], last_s)
        passed_s = at_s - last_s
        if "seen_s" in item:
            seen_s = min(at_s, max(last_s, item["seen_s"] or last_s))
            passed_s = seen_s - last_s
            if at_s > seen_s:
                gaps.append((seen_s, at_s))
        if passed_s > 0.0:
            pool.flush(known_s)
        known_s, last_s = known_s + passed_s, at_s
        if "nodes" not in item:
            pool.change(item)
        else:
            repaired += pool.replace(item) and "seen_s" not in item and item is not changes[0]
    pool.flush(known_s)
    unknown_s = sum(to_s - from_s for from_s, to_s in gaps)
    duration_s = max(0.0, end_s - start_s - unknown_s)
    return Past(_trace(pool.rows, duration_s), start_s, end_s, tuple(gaps), pool.moments, repaired)


def _by_present_clock(changes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the changes without those of the clock, with all times as the present clock shows them."""
    shifted, by_s = [], 0.0
    for item in reversed(list(changes)):
        if "by_s" in item:
            by_s += item["by_s"]
            continue
        times = {name: item[name] + by_s for name in ("at_s", "seen_s") if item.get(name) is not None}
        shifted.append({**item, **times})
    return shifted[::-1]


def _names(text: str | None) -> set[str]:
    return set(expand(text)) if text else set()


def _trace(rows: Sequence[tuple[float, str, bool]], duration_s: float) -> Trace:
    """Make a trace of the rows, without changes at its very end."""
    within = rows[: bisect_left(rows, max(duration_s, 1e-9), key=lambda row: row[0])]
    nodes = tuple(sorted({name for _, name, _ in within}, key=lambda name: (len(name), name)))
    place = {name: at for at, name in enumerate(nodes)}
    return Trace(
        nodes=nodes,
        times_s=np.array([time_s for time_s, _, _ in within], dtype=np.float64),
        node=np.array([place[name] for _, name, _ in within], dtype=np.int32),
        idle=np.array([idle for _, _, idle in within], dtype=np.bool_),
        duration_s=duration_s,
        source="bftd's ledger",
    )
