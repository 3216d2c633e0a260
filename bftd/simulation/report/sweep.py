"""Settings other than the ones asked for: t_fwd at the same pj_max, and pj_max at the same t_fwd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from bftd.simulation.report.model import TriedSettings, WeeklyGain

if TYPE_CHECKING:
    from bftd.simulation.drivers.trainers import SimTrainer
    from bftd.simulation.replay import Options
    from bftd.simulation.trace import Trace

T_FWDS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
PJ_MAXES = (2, 5, 10, 20, 35)
TRIED = len(T_FWDS_S) + len(PJ_MAXES)


def tried(
    trace: Trace, trainers: Sequence[SimTrainer], options: Options, jobs: int | None, progress: Callable[[float], None]
) -> tuple[tuple[TriedSettings, ...], WeeklyGain]:
    """Sweep both, and estimate the gain with the settings asked for."""
    from bftd.simulation.advise import sweep
    from bftd.simulation.advise.confidence import expected

    t_fwd_s, pj_max = options.t_fwd_s, options.pj_max
    first = len(T_FWDS_S) / TRIED
    ahead = sweep(
        trace, trainers, (*T_FWDS_S, t_fwd_s), (pj_max,), options=options, jobs=jobs,
        progress=lambda part: progress(first * part),
    )  # fmt: skip
    others = sweep(
        trace, trainers, (t_fwd_s,), [count for count in PJ_MAXES if count != pj_max], options=options, jobs=jobs,
        progress=lambda part: progress(first + (1 - first) * part),
    )  # fmt: skip
    asked = next(point for point in ahead if point.t_fwd_s == t_fwd_s)
    weekly = expected(asked.days, options.seed)
    points = tuple(
        TriedSettings(
            t_fwd_s=point.t_fwd_s,
            pj_max=point.pj_max,
            efficiency=point.efficiency,
            mean_runtime_s=point.mean_runtime_s if isfinite(point.mean_runtime_s) else None,
            node_hours_per_week=point.node_hours_per_week,
        )
        for point in (*ahead, *others)
    )
    return points, WeeklyGain(t_fwd_s, pj_max, weekly.node_hours_per_week, weekly.low, weekly.high, weekly.confidence)
