"""A mixed-integer linear program as rows and columns, and the interface of an engine that solves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

# (column, coefficient) pairs
Terms = Iterable[tuple[int, float]]
# Called with a better point, if any, and the upper bound proven so far.
Report = Callable[[Sequence[float] | None, float], None]


@dataclass(frozen=True)
class Constraint:
    """low <= sum of coefficient * column <= high; `equation` is the paper's number, or a word if the paper has none."""

    equation: str
    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    low: float
    high: float


@dataclass
class Linear:
    """A program: maximise `constant` + sum of objective * column under `rows`.

    Columns are numbered in the order they are added. Of the columns in one entry of `sos2` at most two, neighbours in
    its order, are not 0 (equation 11).
    """

    constant: float = 0.0
    objective: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[Constraint] = field(default_factory=list)
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
        self.rows.append(Constraint(equation, tuple(kept), tuple(kept.values()), low, high))

    def value(self, x: Sequence[float]) -> float:
        """Return the objective at a point."""
        return self.constant + sum(c * v for c, v in zip(self.objective, x, strict=True))

    def violated(self, x: Sequence[float], tolerance: float = 1e-6) -> set[str]:
        """Return the equations that a point breaks, and "bounds", "integrality" or "sos2" if it breaks these."""
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
    """An engine's result: the best point, if any, and a proven upper bound of the objective, if any.

    `value` is the engine's own value of the point. `distrusted` says that the engine reported something wrong.
    """

    x: tuple[float, ...] | None
    bound: float | None
    optimal: bool
    infeasible: bool = False
    value: float | None = None
    distrusted: bool = False


class Optimise(Protocol):
    """The function that maximises a program, from the point `start` if there is one.

    It stops at the relative gap `gap`, or after `time_limit_s` if that is finite. It calls `report` with every better
    point and the bound proven so far, and perhaps with better bounds (point None). Raises `UnsupportedError` for a
    program that the engine may not solve here.
    """

    def __call__(
        self, linear: Linear, start: Sequence[float] | None, report: Report, *, gap: float, time_limit_s: float
    ) -> Solution: ...


@dataclass(frozen=True)
class Engine:
    """An engine that solves programs: `title` is its display name, `missing` returns what has to be installed first.

    `package` is the module to import for it. `ordered_sets` says that it takes special ordered sets of type 2;
    otherwise curves need a binary per segment.
    """

    name: str
    title: str
    package: str
    ordered_sets: bool
    optimise: Optimise
    missing: Callable[[], str | None]


# A point's worth may differ from the engine's value by this share of the sum of its terms: points are within 1e-9 of
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
    """Maximise with an engine, but check its value of the point it returns.

    HiGHS 1.16.0 returns its start with the value of another point. If the two differ, the best point reported on the
    way is taken, provided that it has the value; else the engine solves once more, without a start, in the time left.
    The bound of an engine that is wrong twice is ignored.
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
    """Whether the engine's value of the point is right but for rounding; also True if there is no point or value."""
    if solution.x is None or solution.value is None:
        return True
    terms = sum(abs(c * v) for c, v in zip(linear.objective, solution.x, strict=True))
    return abs(linear.value(solution.x) - solution.value) <= _ROUNDING * (1.0 + abs(linear.constant) + terms)
