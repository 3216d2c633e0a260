"""Gavel's linear program: each job's share of time on each GPU type (Narayanan et al. 2020, section 4).

maximise    sum_jt gain_jt x_jt                  or with `fair` the least over jobs of sum_t gain_jt x_jt
subject to  sum_t x_jt <= 1 for each job,  sum_j gpus_j x_jt <= capacity_t for each type,  0 <= x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from milp.running import highs
from sizing.base.errors import SizingError

_NOTHING = 1e-6


def shares(
    gains: Mapping[tuple[str, str], float],
    gpus: Mapping[str, int],
    capacity: Mapping[str, int],
    *,
    fair: bool = False,
) -> dict[tuple[str, str], float]:
    """Return the positive shares, by job and type; `gains` has the pairs that can run."""
    pairs = [pair for pair in gains if gpus[pair[0]] <= capacity[pair[1]]]
    if not pairs:
        return {}
    of_job: dict[str, list[int]] = {}
    of_type: dict[str, list[int]] = {}
    for column, (job, gpu_type) in enumerate(pairs):
        of_job.setdefault(job, []).append(column)
        of_type.setdefault(gpu_type, []).append(column)
    rows = [(columns, [1.0] * len(columns), -np.inf, 1.0) for columns in of_job.values()]
    for gpu_type, columns in of_type.items():
        rows.append((columns, [float(gpus[pairs[at][0]]) for at in columns], -np.inf, float(capacity[gpu_type])))
    worth = [gains[pair] for pair in pairs]
    if fair:
        least = len(pairs)
        for columns in of_job.values():
            rows.append(([*columns, least], [*(worth[at] for at in columns), -1.0], 0.0, np.inf))
        # beyond the least gain, more is still better
        worth = [1e-3 * each / len(pairs) for each in worth] + [1.0]
    found = _solved(worth, rows)
    return {pair: min(1.0, found[at]) for at, pair in enumerate(pairs) if found[at] > _NOTHING}


_Row = tuple[Sequence[int], Sequence[float], float, float]


def _solved(worth: Sequence[float], rows: Sequence[_Row]) -> Sequence[float]:
    import highspy

    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(worth), len(rows)
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = np.array(worth, np.float64)
    program.col_lower_ = np.zeros(len(worth))
    program.col_upper_ = np.full(len(worth), np.inf)
    program.row_lower_ = np.array([row[2] for row in rows], np.float64)
    program.row_upper_ = np.array([row[3] for row in rows], np.float64)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int32)
    program.a_matrix_.index_ = np.concatenate([np.array(row[0], np.int32) for row in rows])
    program.a_matrix_.value_ = np.concatenate([np.array(row[1], np.float64) for row in rows])
    engine = highs.make()
    engine.passModel(program)
    engine.run()
    if engine.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise SizingError(f"HiGHS ends with {engine.getModelStatus()} on Gavel's program: simulate another policy")
    return [float(value) for value in engine.getSolution().col_value]
