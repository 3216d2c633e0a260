"""A multiple-choice knapsack in terms of losses, by dynamic programming over the nodes used so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from milp.solvers.tables import Floats, Ints


@dataclass(frozen=True)
class Candidates:
    """Counts that each trainer may get and what each loses, as three arrays sorted by row and then count."""

    rows: Ints
    counts: Ints
    losses: Floats


@dataclass(frozen=True)
class _Stage:
    """One undecided trainer: its choices as nodes above its least one, and the states before it.

    `before[i]` is the least loss of the earlier trainers when they use `start + i` nodes above their least.
    """

    row: int
    least: int
    extra: Ints
    losses: Floats
    start: int
    before: Floats


def cheapest(candidates: Candidates, capacity: int, price: float, limit: float) -> Ints | None:
    """The counts (J,) with the least total loss that fit `capacity`, or None where that exceeds `limit`.

    A node left unused loses `price`. Every trainer has a candidate.
    """
    bounds = np.searchsorted(candidates.rows, np.arange(int(candidates.rows[-1]) + 2))
    found = candidates.counts[bounds[:-1]]
    room = capacity - int(found.sum())
    spans = candidates.counts[bounds[1:] - 1] - found
    open_rows = np.flatnonzero(np.diff(bounds) > 1)
    # Narrow trainers first: the states stay few for as long as possible.
    open_rows = open_rows[np.argsort(spans[open_rows], kind="stable")]
    later = int(spans.sum())
    decided_loss = float(candidates.losses[bounds[:-1][np.diff(bounds) == 1]].sum())
    slack = int(min(room, (limit - decided_loss) / price)) if price > 0 else room

    stages: list[_Stage] = []
    start, state = 0, np.array([decided_loss])
    for row in open_rows.tolist():
        part = slice(bounds[row], bounds[row + 1])
        extra, losses = candidates.counts[part] - found[row], candidates.losses[part]
        stages.append(_Stage(row, int(found[row]), extra, losses, start, state))
        later -= int(spans[row])
        # States that fit, and from which the later trainers can still use enough.
        low = max(start, room - slack - later)
        high = min(start + len(state) - 1 + int(extra[-1]), room)
        state = _advance(state, start, extra, losses, low, high)
        inside = np.flatnonzero(state <= limit)
        if not len(inside):
            return None
        start, state = low + int(inside[0]), state[inside[0] : inside[-1] + 1]

    totals = state + price * (room - np.arange(start, start + len(state)))
    if room < 0 or totals.min() > limit:
        return None
    at = start + int(totals.argmin())
    for stage in reversed(stages):
        at = _retreat(stage, at, found)
    return found


def _advance(state: Floats, start: int, extra: Ints, losses: Floats, low: int, high: int) -> Floats:
    """Least losses after one more trainer, for `low`..`high` nodes used."""
    after = np.full(max(high - low + 1, 0), np.inf)
    for nodes, loss in zip(extra.tolist(), losses.tolist(), strict=True):
        first, last = max(low, start + nodes), min(high, start + nodes + len(state) - 1)
        if first <= last:
            target = after[first - low : last - low + 1]
            np.minimum(target, state[first - start - nodes : last - start - nodes + 1] + loss, out=target)
    return after


def _retreat(stage: _Stage, at: int, found: Ints) -> int:
    """Note what the stage's trainer got when `at` nodes were used after it; return how many were used before."""
    before = at - stage.extra - stage.start
    inside = (before >= 0) & (before < len(stage.before))
    totals = np.where(inside, stage.before[np.where(inside, before, 0)] + stage.losses, np.inf)
    choice = int(totals.argmin())
    found[stage.row] = stage.least + stage.extra[choice]
    return at - int(stage.extra[choice])
