"""Tables of the worth of every class and count to every trainer: equation (16) on several node classes.

`milp.utility` gives a trainer's options as straight lines over ranges of counts. The ends of the lines, the *points*,
decide the Lagrangian bound; counts in between are looked at only if they can still matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.problem import Problem
from milp.solvers.arrays import Floats, Ints, worst_that_matters
from milp.utility import TIE_BREAK, idle_worth, most_earned, pieces, tie_break


@dataclass(frozen=True)
class ChoiceLines:
    """Choices of trainer `row`: `low`..`high` nodes of class `kind`, worth linear from `worth_low` to `worth_high`.

    All are arrays (P,), sorted by row; the first line of every row is to get nothing, as 0..0 nodes of class 0.
    """

    row: Ints
    kind: Ints
    low: Ints
    high: Ints
    worth_low: Floats
    worth_high: Floats

    def worth_at(self, line: Ints, count: Ints) -> Floats:
        """Return the worth of `count` nodes, within the line's range."""
        low, high = self.low[line], self.high[line]
        part = (count - low) / np.maximum(high - low, 1)
        worth: Floats = self.worth_low[line] + (self.worth_high[line] - self.worth_low[line]) * part
        return worth


@dataclass(frozen=True)
class ClassTables:
    """A problem of J trainers on K classes of `capacity` (K,) nodes.

    The points of trainer j are `kinds[j]`, `counts[j]` and `worths[j]`, all (J, W), padded with points worth -inf.
    `stay` (J,) is the point nearest to its current map: unchanged if that is allowed, else nothing. `size` is the sum
    over the trainers of their largest absolute worth: rounding errors are relative to it. `tie_breaks` is the most that
    the tie-breaks of a whole plan, which are part of every worth, can add up to.
    """

    capacity: Ints
    lines: ChoiceLines
    kinds: Ints
    counts: Ints
    worths: Floats
    stay: Ints
    size: float
    tie_breaks: float


@dataclass(frozen=True)
class Picks:
    """A choice for every trainer: `count` (J,) nodes of class `kind` (J,), worth `worth` (J,)."""

    kind: Ints
    count: Ints
    worth: Floats

    @property
    def total(self) -> float:
        """Worth of the plan, tie-breaks included."""
        return float(self.worth.sum())

    def used(self, capacity: Ints) -> Ints:
        """Nodes in use by class (K,)."""
        return np.bincount(self.kind, self.count, len(capacity)).astype(np.int64)

    def shares(self, names: Sequence[str], kinds: int) -> dict[str, tuple[int, ...]]:
        """Counts per class by trainer name."""
        table = np.zeros((len(names), kinds), np.int64)
        table[np.arange(len(names)), self.kind] = self.count
        return dict(zip(names, map(tuple, table.tolist()), strict=True))


def tabulate(problem: Problem) -> ClassTables:
    """Build the tables of a problem that has trainers and nodes, and in which no trainer mixes classes."""
    place = {name: index for index, name in enumerate(problem.classes)}
    capacity = np.array([problem.class_sizes[name] for name in place], np.int64)
    rows: list[tuple[int, int, int, int, float, float]] = []
    unchanged: list[int] = []
    for row, trainer in enumerate(problem.trainers):
        nothing = idle_worth(problem, trainer)
        unchanged.append(len(rows))
        rows.append((row, 0, 0, 0, nothing, nothing))
        for piece in pieces(problem, trainer):
            (kind,) = piece.classes
            if piece.change == 0:
                unchanged[row] = len(rows)
            rows.append((row, place[kind], piece.low, piece.high, piece.worth_low, piece.worth_high))
    row, kind, low, high = np.array([line[:4] for line in rows]).T
    worth_low, worth_high = np.array([line[4:] for line in rows]).T
    first = np.flatnonzero(np.diff(row, prepend=-1))
    best = np.maximum.reduceat(np.maximum(worth_low, worth_high), first)
    floor = worst_that_matters(best, float(worth_low[unchanged].sum()), most_earned(problem))[row]
    worth_low, worth_high = np.maximum(worth_low, floor), np.maximum(worth_high, floor)
    largest = np.maximum.reduceat(np.maximum(np.abs(worth_low), np.abs(worth_high)), first)
    size = float(largest.sum()) or 1.0
    to_change = tie_break(size, int(capacity.sum()))
    held = np.array([len(trainer.current) for trainer in problem.trainers])[row]
    lines = ChoiceLines(
        row, kind, low, high, worth_low - to_change * np.abs(low - held), worth_high - to_change * np.abs(high - held)
    )
    kinds, counts, worths, column = _points(lines)
    return ClassTables(capacity, lines, kinds, counts, worths, column[unchanged], size, TIE_BREAK * size)


def _points(lines: ChoiceLines) -> tuple[Ints, Ints, Floats, Ints]:
    """Return the ends of all lines as padded arrays, and for every line the column of its lower end."""
    first = np.flatnonzero(np.diff(lines.row, prepend=-1))
    column = np.arange(len(lines.row)) - first[lines.row]
    wide = np.flatnonzero(lines.high > lines.low)
    width = int(column.max()) + 1
    extra = np.arange(len(wide)) - np.searchsorted(wide, first)[lines.row[wide]]
    shape = (len(first), width + int(extra.max(initial=-1)) + 1)
    kinds, counts, worths = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, -np.inf)
    for row, place, kind, count, worth in (
        (lines.row, column, lines.kind, lines.low, lines.worth_low),
        (lines.row[wide], width + extra, lines.kind[wide], lines.high[wide], lines.worth_high[wide]),
    ):
        kinds[row, place], counts[row, place], worths[row, place] = kind, count, worth
    return kinds, counts, worths, column
