"""A mixed-integer linear program as rows and columns, before any engine sees it, and what an engine is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
    """What an engine found: the best point, if any, and a proven upper bound of the objective, if any."""

    x: tuple[float, ...] | None
    bound: float | None
    optimal: bool
    infeasible: bool = False


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

    `ordered_sets` says that it takes special ordered sets of type 2; else curves need a binary a segment.
    """

    name: str
    title: str
    ordered_sets: bool
    optimise: Optimise
    missing: Callable[[], str | None]
