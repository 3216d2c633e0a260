"""The exact solver: reduce the problem to counts, then to the few that can still matter, then dynamic programming.

On interchangeable nodes equations (5)-(10) only say that the counts fit the pool, so the problem is a multiple-choice
knapsack. Its Lagrangian bound and a greedy plan leave a gap; a count whose reduced cost exceeds that gap is in no
better plan. The remaining counts are solved by dynamic programming, so the optimum is exact whatever the shape of the
curves.
"""

from __future__ import annotations

import numpy as np

from milp.assignments import assign
from milp.problem import Problem
from milp.solver import Effort, Solver, SolverAnswer
from milp.solvers.arrays import Bools, Floats, Ints
from milp.solvers.one_class.dual import Dual, minimise
from milp.solvers.one_class.knapsack import Candidates, cheapest
from milp.solvers.one_class.tables import Tables, tabulate

# Rounding of a sum of values, as a share of their size.
_NOISE = 4e-15
# Counts that lose up to this share of the gap take part in the first round, and in any case this number of those that
# lose least: a round with fewer takes as long.
_CORE = 1 / 16
_CORE_COUNTS = 64


def _run(problem: Problem, effort: Effort) -> SolverAnswer:
    if not problem.trainers:
        return SolverAnswer({}, bound=None)
    counts = dict(zip((trainer.name for trainer in problem.trainers), best_counts(problem), strict=True))
    return SolverAnswer(assign(problem, counts), bound=None)


def best_counts(problem: Problem) -> list[int]:
    """Return the trainers' counts that maximise equation (16), in their order."""
    tables = tabulate(problem)
    dual = minimise(tables)
    counts = _fill(tables, dual)
    noise = _NOISE * tables.size
    gap = dual.bound - tables.total(counts)
    members = tables.members() if gap > noise else []
    rows = np.array([trainers[0] for trainers in members])
    # A plan better by some loss consists of counts that each lose no more: once all counts within the gap took part,
    # the plan is the best. The first, cheap round with the few that lose least often finds one good enough for that.
    for whole in (False, True):
        reach = (gap if whole else _core(tables, dual, gap, rows)) + noise
        if gap > noise:
            left = survivors(tables, dual, reach, rows)
            best = cheapest(left, tables.capacity, dual.multiplier, gap + noise, members=members, reach=reach)
            if best is not None:
                counts = best
                gap = dual.bound - tables.total(counts)
            if gap <= reach:
                break
    found: list[int] = counts.tolist()
    return found


def _fill(tables: Tables, dual: Dual) -> Ints:
    """Return a good plan: the frugal choice of the bound, then more for the trainers that gain most from the rest."""
    rows = np.arange(len(tables.options))
    counts = tables.options[rows, dual.frugal]
    wanted = tables.options[rows, dual.greedy]
    left = tables.capacity - int(counts.sum())
    for row in np.flatnonzero(wanted != counts).tolist():
        if wanted[row] - counts[row] <= left:
            left -= int(wanted[row] - counts[row])
            counts[row] = wanted[row]
    while left > 0:
        more, gains = _best_growth(tables, counts, left)
        row = int(gains.argmax())
        if gains[row] <= 0:
            break
        left -= int(more[row] - counts[row])
        counts[row] = more[row]
    return counts


def _best_growth(tables: Tables, counts: Ints, left: int) -> tuple[Ints, Floats]:
    """Return the count each trainer would grow to if it alone used the `left` free nodes, and its gain."""
    rows = np.arange(len(counts))
    values = tables.value(rows, counts)
    within = np.where(tables.options <= (counts + left)[:, None], tables.values, -np.inf)
    column = within.argmax(axis=1)
    more, gains = tables.options[rows, column], within[rows, column] - values
    # If counts between options are allowed, all free nodes may go to one trainer.
    most = np.minimum(counts + left, tables.top)
    most = np.where(tables.filled & (most >= tables.lowest), most, counts)
    most_gains = tables.value(rows, most) - values
    return np.where(most_gains > gains, most, more), np.maximum(gains, most_gains)


def _core(tables: Tables, dual: Dual, gap: float, rows: Ints) -> float:
    """Return the largest loss with which a count takes part in the first round."""
    if gap <= 0 or not len(rows):
        return gap
    scores = tables.values[rows] - dual.multiplier * tables.options[rows]
    losses = (scores.max(axis=1)[:, None] - scores).ravel()
    losses = losses[losses > 0]
    if len(losses) <= _CORE_COUNTS:
        return gap
    return min(gap, max(_CORE * gap, float(np.partition(losses, _CORE_COUNTS)[_CORE_COUNTS])))


def survivors(tables: Tables, dual: Dual, gap: float, rows: Ints | None = None) -> Candidates:
    """Return all counts with a reduced cost, the loss against the trainer's choice at the multiplier, within `gap`.

    With `rows`, only those of these trainers; rows of the result are places in `rows`.
    """
    rows = np.arange(len(tables.options)) if rows is None else rows
    options, values = tables.options[rows], tables.values[rows]
    scores = values - dual.multiplier * options
    best = scores.max(axis=1)
    losses = best[:, None] - scores
    place, column = np.nonzero(losses <= gap)
    between_place, between_count = _between(options, losses, tables.filled[rows], gap)
    # Sorted by place and count, and without the options repeated as padding.
    stride = tables.capacity + 1
    keys = np.concatenate([place * stride + options[place, column], between_place * stride + between_count])
    keys = np.unique(keys)
    places, counts = keys // stride, keys % stride
    worth = tables.value(rows[places], counts) - dual.multiplier * counts
    lost: Floats = np.maximum(best[places] - worth, 0.0)
    within = lost <= gap
    return Candidates(places[within], counts[within], lost[within])


def _between(options: Ints, losses: Floats, filled: Bools, gap: float) -> tuple[Ints, Ints]:
    """Return (row, count) of all counts between two options that may be within `gap`, and perhaps a few beyond.

    The loss is no less than the straight line from option to option, which is within `gap` all along the segment or up
    to where it crosses.
    """
    start, end = options[:, :-1], options[:, 1:]
    near = np.minimum(losses[:, :-1], losses[:, 1:]) <= gap
    row, column = np.nonzero(near & (end - start > 1) & (start > 0) & filled[:, None])
    if not len(row):
        return row, row
    begin, stop = start[row, column], end[row, column]
    at_begin, at_stop = losses[row, column], losses[row, column + 1]
    # The part of the segment within `gap`, seen from the end that is within; all of it if both are.
    part = np.ones(len(row))
    np.divide(gap - np.minimum(at_begin, at_stop), np.abs(at_stop - at_begin), out=part, where=at_begin != at_stop)
    reach = np.ceil(np.minimum(part, 1.0) * (stop - begin)).astype(np.int64)
    first = np.where(at_begin > at_stop, np.maximum(stop - reach, begin + 1), begin + 1)
    last = np.where(at_begin > at_stop, stop - 1, np.minimum(begin + reach, stop - 1))
    lengths = last - first + 1
    steps = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(row, lengths), np.repeat(first, lengths) + steps


SOLVER = Solver(
    name="exact",
    summary="the optimum for one class of nodes, by dynamic programming over counts, in milliseconds",
    features=frozenset(),
    proves=True,
    run=_run,
)
