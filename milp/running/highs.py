"""HiGHS as an engine: curves need a binary per segment, since HiGHS has no special ordered sets."""

from __future__ import annotations

import importlib.util
import math
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from milp.errors import MilpError
from milp.solvers.programs.linear import Engine, Linear, Report, Solution

if TYPE_CHECKING:
    import highspy


def missing() -> str | None:
    """Return what has to be installed first, or None."""
    return None if importlib.util.find_spec("highspy") else "pip install highspy"


_making = threading.Lock()


def make() -> highspy.Highs:
    """Return a HiGHS that prints nothing; every HiGHS is to be made here.

    1.16.0 prints a banner to descriptor 1 when a process makes its first HiGHS, before an option could forbid it. That
    would corrupt a command's output.
    """
    import highspy

    # All threads share descriptor 1, so it is redirected only for this moment, once per process, and not while HiGHS
    # solves, when `output_flag` keeps it quiet. The daemon makes no HiGHS itself: programs are solved by `child`, where
    # only answers get through, whatever an engine prints.
    with _making:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # this is 1 itself if 1 was closed, and stays so
        output = os.dup(1)
        try:
            os.dup2(nowhere, 1)
            engine: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
        finally:
            os.dup2(output, 1)
            os.close(output)
            if nowhere != 1:
                os.close(nowhere)
    # One thread: the machine may be a login or controller node, and equal runs should give equal answers.
    for name, value in {"output_flag": False, "threads": 1}.items():
        engine.setOptionValue(name, value)
    return engine


def optimise(
    linear: Linear, start: Sequence[float] | None, report: Report, *, gap: float, time_limit_s: float
) -> Solution:
    """Maximise; `report` is called with every better point and the bound so far, and with better bounds (None)."""
    import highspy

    engine = make()
    options = {"mip_rel_gap": gap, "mip_abs_gap": 0.0}
    # Integers must be exact to more than the rounding of a column times a big-M.
    options |= {"mip_feasibility_tolerance": 1e-9, "primal_feasibility_tolerance": 1e-9}
    if time_limit_s < math.inf:
        options["time_limit"] = time_limit_s
    for name, value in options.items():
        engine.setOptionValue(name, value)
    if engine.passModel(_program(linear)) == highspy.HighsStatus.kError:
        raise MilpError("HiGHS refuses the program: solve with another solver")
    if start is not None:
        point = highspy.HighsSolution()
        point.col_value = list(start)
        engine.setSolution(point)
    _subscribe(engine, report)
    engine.run()
    return _solution(engine)


def _program(linear: Linear) -> highspy.HighsLp:
    import highspy

    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(linear.objective), len(linear.rows)
    program.sense_ = highspy.ObjSense.kMaximize
    program.offset_ = linear.constant
    program.col_cost_ = np.array(linear.objective, np.float64)
    program.col_lower_ = np.array(linear.lower, np.float64)
    program.col_upper_ = np.array(linear.upper, np.float64)
    program.row_lower_ = np.array([row.low for row in linear.rows], np.float64)
    program.row_upper_ = np.array([row.high for row in linear.rows], np.float64)
    kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
    program.integrality_ = [kinds[whole] for whole in linear.integer]
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.cumsum([0, *(len(row.columns) for row in linear.rows)], dtype=np.int32)
    program.a_matrix_.index_ = np.array([c for row in linear.rows for c in row.columns], np.int32)
    program.a_matrix_.value_ = np.array([v for row in linear.rows for v in row.coefficients], np.float64)
    return program


def _subscribe(engine: highspy.Highs, report: Report) -> None:
    def improved(event: highspy.HighsCallbackEvent) -> None:
        report([float(value) for value in event.data_out.mip_solution], float(event.data_out.mip_dual_bound))

    def logged(event: highspy.HighsCallbackEvent) -> None:
        report(None, float(event.data_out.mip_dual_bound))

    engine.cbMipImprovingSolution.subscribe(improved)
    engine.cbMipLogging.subscribe(logged)


def _solution(engine: highspy.Highs) -> Solution:
    import highspy

    status = engine.getModelStatus()
    info = engine.getInfo()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Solution(None, None, optimal=False, infeasible=True)
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = tuple(engine.getSolution().col_value) if found else None
    optimal = status == highspy.HighsModelStatus.kOptimal
    has_integers = info.mip_node_count >= 0
    bound = info.mip_dual_bound if has_integers else info.objective_function_value if optimal else None
    return Solution(x, bound, optimal, value=info.objective_function_value)


ENGINE = Engine("highs", "HiGHS", "highspy", ordered_sets=False, optimise=optimise, missing=missing)
