"""A mixed-integer linear program as rows and columns, before any engine sees it, and what an engine is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

# (column, coefficient) pairs
Terms = Iterable[tuple[int, float]]
# Told of a better point, if any, and of the upper bound proven so far.
Report = Callable[[Sequence[float] | None, float], None]


@dataclass(frozen=True)
class Row:
    """low <= sum of coefficient * column <= high; `equation` is the paper's number or a word for what it has not."""

    equation: str
    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    low: float
    high: float


@dataclass
class Linear:
    """Maximise `constant` + sum of objective * column under `rows`; columns are numbered in the order they are added.

    Of the columns in one entry of `sos2` at most two, neighbours in its order, are not 0 (equation 11).
    """

    constant: float = 0.0
    objective: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    sos2: list[tuple[int, ...]] = field(default_factory=list)

    def column(self, lower: float = 0.0, upper: float = 1.0, *, integer: bool = False, objective: float = 0.0) -> int:
        """Add a variable and return its number."""
        self.objective.append(objective)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.objective) - 1

    def binary(self, objective: float = 0.0) -> int:
        """Add a variable that is 0 or 1 and return its number."""
        return self.column(integer=True, objective=objective)

    def row(self, equation: str, terms: Terms, *, low: float = -math.inf, high: float = math.inf) -> None:
        """Add a constraint; terms of the same column are summed."""
        merged: dict[int, float] = {}
        for column, coefficient in terms:
            merged[column] = merged.get(column, 0.0) + coefficient
        kept = {column: coefficient for column, coefficient in merged.items() if coefficient}
        self.rows.append(Row(equation, tuple(kept), tuple(kept.values()), low, high))

    def value(self, x: Sequence[float]) -> float:
        """The objective at a point."""
        return self.constant + sum(c * v for c, v in zip(self.objective, x, strict=True))

    def violated(self, x: Sequence[float], tolerance: float = 1e-6) -> set[str]:
        """The equations that a point breaks; "bounds" and "integrality" are among them."""
        broken = set()
        for value, low, high, whole in zip(x, self.lower, self.upper, self.integer, strict=True):
            if not low - tolerance <= value <= high + tolerance:
                broken.add("bounds")
            if whole and abs(value - round(value)) > tolerance:
                broken.add("integrality")
        for row in self.rows:
            total = sum(c * x[column] for column, c in zip(row.columns, row.coefficients, strict=True))
            if not row.low - tolerance <= total <= row.high + tolerance:
                broken.add(row.equation)
        for columns in self.sos2:
            used = [place for place, column in enumerate(columns) if abs(x[column]) > tolerance]
            if len(used) > 2 or (len(used) == 2 and used[1] != used[0] + 1):
                broken.add("sos2")
        return broken


@dataclass(frozen=True)
class Solution:
    """What an engine found: the best point, if any, and a proven upper bound of the objective, if any.

    `value` is what the engine says that the point is worth. `distrusted` says that an engine's word was found wrong.
    """

    x: tuple[float, ...] | None
    bound: float | None
    optimal: bool
    infeasible: bool = False
    value: float | None = None
    distrusted: bool = False


class Optimise(Protocol):
    """Maximises a program, from the point `start` where there is one.

    It stops at the relative gap `gap`, or after `time_limit_s` where that is finite. `report` is told of every better
    point with the bound proven so far, and perhaps of better bounds (None). Raises `UnsupportedError` for a program
    that the engine may not solve here.
    """

    def __call__(
        self, linear: Linear, start: Sequence[float] | None, report: Report, *, gap: float, time_limit_s: float
    ) -> Solution: ...


@dataclass(frozen=True)
class Engine:
    """Something that solves programs: `title` is its name for people, `missing` what has to be installed first.

    `package` is what is imported for it.
    `ordered_sets` says that it takes special ordered sets of type 2; else curves need a binary a segment.
    """

    name: str
    title: str
    package: str
    ordered_sets: bool
    optimise: Optimise
    missing: Callable[[], str | None]


# By so much of the sum of its terms may a point's worth differ from what the engine says: points are within 1e-9 of
# their rows and of whole numbers, and coefficients of thousands multiply that.
_ROUNDING = 1e-6


def optimise_checked(
    engine: Engine,
    linear: Linear,
    start: Sequence[float] | None,
    report: Report,
    *,
    gap: float,
    time_limit_s: float,
    clock: Callable[[], float],
) -> Solution:
    """Maximise with an engine whose word is not taken for what its point is worth.

    HiGHS 1.16.0 returns its start with the value of another point. Where the two differ, the best point that the engine
    told on its way is taken, if that has the value; else it solves once more, without a start, in what is left of the
    time. The bound of an engine that is wrong twice counts for nothing.
    """
    deadline_s = clock() + time_limit_s
    told: list[Sequence[float]] = []

    def hear(x: Sequence[float] | None, bound: float) -> None:
        if x is not None and (not told or linear.value(x) > linear.value(told[0])):
            told[:] = [x]
        report(x, bound)

    first = engine.optimise(linear, start, hear, gap=gap, time_limit_s=time_limit_s)
    if _is_true(linear, first):
        return first
    for x in told:
        claimed = replace(first, x=tuple(x), distrusted=True)
        if _is_true(linear, claimed) and not linear.violated(x):
            return claimed
    again = engine.optimise(linear, None, hear, gap=gap, time_limit_s=max(0.0, deadline_s - clock()))
    points = [x for x in (again.x, first.x, *told) if x is not None and not linear.violated(x)]
    best = max(points, key=linear.value, default=None)
    bound = again.bound if _is_true(linear, again) else None
    return Solution(None if best is None else tuple(best), bound, optimal=False, distrusted=True)


def _is_true(linear: Linear, solution: Solution) -> bool:
    """Whether the point is worth what the engine says, but for rounding; so is what says nothing."""
    if solution.x is None or solution.value is None:
        return True
    terms = sum(abs(c * v) for c, v in zip(linear.objective, solution.x, strict=True))
    return abs(linear.value(solution.x) - solution.value) <= _ROUNDING * (1.0 + abs(linear.constant) + terms)
