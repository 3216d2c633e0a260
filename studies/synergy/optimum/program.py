"""Linear and integer programs on HiGHS, as rows and columns that can still be added after a solution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from milp.running import highs

# Limits that no program here comes near: they only prevent hanging. Nodes are counted and not timed, so that equal
# programs have equal solutions on any machine.
_TIME_LIMIT_S = 20.0
_NODES = 2000


@dataclass(frozen=True, slots=True)
class Solved:
    """The best point found, its value, an upper bound of all points, and, without integers, the rows' prices."""

    x: tuple[float, ...]
    value: float
    bound: float
    prices: tuple[float, ...]


class Program:
    """A program: maximise the columns' worth under the rows, which are numbered like columns in the order of addition.

    An integer program is solved to the relative gap `gap`.
    """

    def __init__(self, gap: float = 1e-6, nodes: int = _NODES) -> None:
        self._highs = highs.make()
        options = {"time_limit": _TIME_LIMIT_S, "mip_max_nodes": nodes, "mip_rel_gap": gap, "mip_abs_gap": 0.0}
        # at least as exact as capacities are checked
        options |= {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._columns = 0
        self._rows = 0
        self._integer = False

    def row(self, low: float = -math.inf, high: float = math.inf) -> int:
        """Add a bounded sum; its terms are given with the columns."""
        self._highs.addRow(low, high, 0, np.empty(0, np.int32), np.empty(0, np.float64))
        self._rows += 1
        return self._rows - 1

    def column(self, worth: float, rows: Mapping[int, float], *, high: float = math.inf, integer: bool = False) -> int:
        """Add a variable from 0 to `high` with its coefficient in each row."""
        places, values = np.array(list(rows), np.int32), np.array(list(rows.values()), np.float64)
        self._highs.addCol(worth, 0.0, high, len(rows), places, values)
        if integer:
            self._highs.changeColIntegrality(self._columns, highspy.HighsVarType.kInteger)
            self._integer = True
        self._columns += 1
        return self._columns - 1

    def close_to(self, gap: float) -> None:
        """Set another relative gap to solve to."""
        self._highs.setOptionValue("mip_rel_gap", gap)

    def bound_row(self, row: int, low: float, high: float) -> None:
        """Change the bounds of a sum."""
        self._highs.changeRowBounds(row, low, high)

    def bound_column(self, column: int, high: float) -> None:
        """Change the upper bound of a variable."""
        self._highs.changeColBounds(column, 0.0, high)

    def change_worths(self, worths: Sequence[float]) -> None:
        """Change the worths of all columns."""
        places = np.arange(self._columns, dtype=np.int32)
        self._highs.changeColsCost(self._columns, places, np.array(worths, np.float64))

    def solve(self) -> Solved | None:
        """Return the best point, or the best found within the limits; None if there is none."""
        if self._integer:
            self._highs.clearSolver()  # traces of an earlier solution must not decide between equal ones
        self._highs.run()
        info = self._highs.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        solution = self._highs.getSolution()
        value = float(info.objective_function_value)
        bound = float(info.mip_dual_bound) if self._integer else value
        prices = () if self._integer else tuple(solution.row_dual)
        return Solved(tuple(solution.col_value), value, bound, prices)
