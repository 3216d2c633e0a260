"""Fast good plans on several classes: trainers take their best choice at the prices, then change one at a time."""

from __future__ import annotations

import numpy as np

from milp.solvers.arrays import Floats
from milp.solvers.several_classes.dual import best_picks
from milp.solvers.several_classes.tables import ClassTables, Picks


def fill(tables: ClassTables, plan: Picks) -> Picks:
    """Improve a plan that fits the pool by the best change of one trainer, until no such change gains anything."""
    lines, kind, count, worth = tables.lines, plan.kind.copy(), plan.count.copy(), plan.worth.copy()
    row = lines.row
    noise = 1e-13 * tables.size
    free = tables.capacity - plan.used(tables.capacity)
    # Every step gains, so no plan comes twice; the limit is for steps that are too small to matter.
    for _ in range(4 * len(kind)):
        reach = free[lines.kind] + np.where(kind[row] == lines.kind, count[row], 0)
        top = np.minimum(lines.high, reach)
        fits = top >= lines.low
        at_top = lines.worth_at(np.arange(len(row)), top)
        gains: Floats = np.where(fits, np.maximum(lines.worth_low, at_top) - worth[row], -np.inf)
        line = int(gains.argmax())
        if gains[line] <= noise:
            break
        changed = row[line]
        free[kind[changed]] += count[changed]
        worth[changed] += gains[line]
        kind[changed] = lines.kind[line]
        count[changed] = top[line] if at_top[line] > lines.worth_low[line] else lines.low[line]
        free[kind[changed]] -= count[changed]
    return Picks(kind, count, worth)


def pack(tables: ClassTables, prices: Floats) -> Picks:
    """Return a plan that fits the pool: by nodes wanted, most first, each takes its best fitting choice at `prices`."""
    lines, free = tables.lines, tables.capacity.copy()
    wanted = best_picks(tables, prices)
    ends = np.searchsorted(lines.row, np.arange(len(wanted.count) + 1)).tolist()
    kind, count, worth = wanted.kind.copy(), wanted.count.copy(), wanted.worth.copy()
    for row in np.argsort(-wanted.count, kind="stable").tolist():
        line = np.arange(ends[row], ends[row + 1])
        kinds = lines.kind[line]
        top = np.minimum(lines.high[line], free[kinds])
        counts = np.stack([lines.low[line], top])
        worths = np.stack([lines.worth_low[line], lines.worth_at(line, top)])
        scores = np.where(top >= lines.low[line], worths - prices[kinds] * counts, -np.inf)
        end, at = divmod(int(scores.argmax()), len(line))
        kind[row], count[row], worth[row] = kinds[at], counts[end, at], worths[end, at]
        free[kind[row]] -= count[row]
    return Picks(kind, count, worth)
