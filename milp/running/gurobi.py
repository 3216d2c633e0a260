"""Gurobi as an engine: curves are special ordered sets of type 2, as in the paper."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from milp.errors import UnsupportedError
from milp.solvers.programs.linear import Engine, Linear, Report, Solution

if TYPE_CHECKING:
    import gurobipy


# Gurobi's error codes for a program beyond the size that the licence allows, and for no licence at all.
_TOO_LARGE, _NO_LICENCE = 10010, 10009


def missing() -> str | None:
    """Return what has to be installed first, or None."""
    return None if importlib.util.find_spec("gurobipy") else "pip install 'bftd[gurobi]'"


def optimise(
    linear: Linear, start: Sequence[float] | None, report: Report, *, gap: float, time_limit_s: float
) -> Solution:
    """Maximise; `report` is called with every better point and the bound proven so far.

    Raises `UnsupportedError` if the licence does not allow a program of this size.
    """
    import gurobipy

    try:
        with gurobipy.Env(params={"OutputFlag": 0, "LogToConsole": 0, "Threads": 1}) as environment:
            return _optimise(environment, linear, start, report, gap=gap, time_limit_s=time_limit_s)
    except gurobipy.GurobiError as error:
        if error.errno == _TOO_LARGE:
            size = f"{len(linear.objective)} variables and {len(linear.rows)} constraints"
            raise UnsupportedError(
                f"the Gurobi licence does not allow a program of {size}: use highs, or install a full licence"
            ) from None
        if error.errno == _NO_LICENCE:
            raise UnsupportedError(f"Gurobi has no licence here ({error}): use highs, or install a licence") from None
        raise UnsupportedError(f"Gurobi failed ({error}): use highs") from None


def _optimise(
    environment: gurobipy.Env,
    linear: Linear,
    start: Sequence[float] | None,
    report: Report,
    *,
    gap: float,
    time_limit_s: float,
) -> Solution:
    import gurobipy
    from gurobipy import GRB

    model = gurobipy.Model(env=environment)
    model.Params.MIPGap = gap
    model.Params.MIPGapAbs = 0.0
    model.Params.IntFeasTol = 1e-9
    model.Params.FeasibilityTol = 1e-9
    if time_limit_s < math.inf:
        model.Params.TimeLimit = time_limit_s
    kinds = [GRB.INTEGER if whole else GRB.CONTINUOUS for whole in linear.integer]
    everyone = range(len(linear.objective))
    columns = model.addVars(everyone, lb=linear.lower, ub=linear.upper, obj=linear.objective, vtype=kinds)
    model.ObjCon = linear.constant
    model.ModelSense = GRB.MAXIMIZE
    x: list[gurobipy.Var] = list(columns.values())
    for row in linear.rows:
        total = gurobipy.LinExpr(list(row.coefficients), [x[column] for column in row.columns])
        if row.low == row.high:
            model.addConstr(total == row.low)
            continue
        if row.low > -math.inf:
            model.addConstr(total >= row.low)
        if row.high < math.inf:
            model.addConstr(total <= row.high)
    for ordered in linear.sos2:
        model.addSOS(GRB.SOS_TYPE2, [x[column] for column in ordered])
    for column, value in zip(x, start or (), strict=start is not None):
        column.Start = value

    def improved(running: gurobipy.Model, where: int) -> None:
        if where == GRB.Callback.MIPSOL:
            report(running.cbGetSolution(x), running.cbGet(GRB.Callback.MIPSOL_OBJBND))

    model.optimize(improved)
    if model.Status in (GRB.INFEASIBLE, GRB.INF_OR_UNBD):
        return Solution(None, None, optimal=False, infeasible=True)
    found = tuple(model.getAttr("X", x)) if model.SolCount else None
    optimal = model.Status == GRB.OPTIMAL
    return Solution(found, model.ObjBound, optimal, value=model.ObjVal if model.SolCount else None)


ENGINE = Engine("gurobi", "Gurobi", "gurobipy", ordered_sets=True, optimise=optimise, missing=missing)
