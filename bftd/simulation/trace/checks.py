"""Checks on the rows of every trace that is read or about to be written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.table import FIRST_LINE, seconds


def check(
    nodes: tuple[str, ...],
    times_s: NDArray[np.float64],
    node: NDArray[np.int32],
    idle: NDArray[np.bool_],
    duration_s: float,
    where: str,
) -> None:
    """Raise TraceError, with `where` and the line, for the first row that cannot be true.

    Times are finite, ascending and within 0 to `duration_s`. Each node joins first, then leaves and joins in turn, and
    has no two rows at the same time.
    """
    _check_times(times_s, duration_s, where)
    order = np.argsort(node, kind="stable")
    sorted_node, sorted_idle, sorted_times = node[order], idle[order], times_s[order]
    again = np.zeros(len(node), dtype=bool)
    again[1:] = sorted_node[1:] == sorted_node[:-1]
    before = np.zeros(len(node), dtype=bool)
    before[1:] = again[1:] & sorted_idle[:-1]
    at_once = np.zeros(len(node), dtype=bool)
    at_once[1:] = again[1:] & (sorted_times[1:] == sorted_times[:-1])
    wrong = (sorted_idle == before) | at_once
    if not wrong.any():
        return
    bad = np.flatnonzero(wrong)
    place = int(bad[np.argmin(order[bad])])
    row = int(order[place])
    if at_once[place]:
        what = "has two rows at one time"
    elif idle[row]:
        what = "joins although it is idle already"
    else:
        what = "leaves although it is not idle"
    raise TraceError(f"{where}, line {row + FIRST_LINE}: node {nodes[int(node[row])]} {what}")


def _check_times(times_s: NDArray[np.float64], duration_s: float, where: str) -> None:
    wrong = ~np.isfinite(times_s) | (times_s < 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TraceError(f"{where}, line {row + FIRST_LINE}: the time {times_s[row]:g} is not one of 0 s or later")
    falls = times_s[1:] < times_s[:-1]
    if falls.any():
        row = int(np.argmax(falls)) + 1
        now, then = seconds(float(times_s[row])), seconds(float(times_s[row - 1]))
        raise TraceError(f"{where}, line {row + FIRST_LINE}: time {now} after {then}: sort the rows by time_s")
    late = times_s > duration_s
    if late.any():
        row = int(np.argmax(late))
        now = seconds(float(times_s[row]))
        raise TraceError(
            f"{where}, line {row + FIRST_LINE}: time {now} lies beyond the duration of {duration_s:.15g} s"
        )
