"""Advice for a site: a sweep, a recommendation with its reason, and the gain to expect."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bftd import __version__
from bftd.base.errors import UsageError
from bftd.simulation.advise.choice import Prefer, at_edge, pareto, recommend
from bftd.simulation.advise.confidence import GainEstimate, expected
from bftd.simulation.advise.sweep import WEEK_H, SweepPoint, sweep
from bftd.simulation.advise.workers import Progress
from bftd.simulation.drivers.networks import representative
from bftd.simulation.drivers.trainers import SimTrainer, digest
from bftd.simulation.replay import Options
from bftd.simulation.trace.stats import stats

if TYPE_CHECKING:
    from bftd.simulation.trace import Trace

T_FWDS_S = (10.0, 30.0, 60.0, 120.0, 300.0)
# Only values that leave each trainer a node on average are tried.
PJ_MAXES = (1, 2, 5, 10, 20, 35, 60)


@dataclass(frozen=True)
class Advice:
    """The recommended setting, the reason, the gain to expect, and all settings that were tried.

    `eq_nodes` is the mean number of idle nodes, `idle_node_hours_per_week` the same over a week. `notes` are caveats.
    `run` is all that is needed to repeat the run.
    """

    recommended: SweepPoint
    reason: str
    prefer: Prefer
    grid: tuple[SweepPoint, ...]
    pareto: tuple[SweepPoint, ...]
    expected: GainEstimate
    eq_nodes: float
    idle_node_hours_per_week: float
    notes: tuple[str, ...] = ()
    run: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the advice as JSON data; the same advice gives the same text."""
        return {
            "recommended": {"t_fwd_s": self.recommended.t_fwd_s, "pj_max": self.recommended.pj_max},
            "reason": self.reason,
            "prefer": self.prefer,
            "expected": self.expected.to_json(),
            "eq_nodes": self.eq_nodes,
            "idle_node_hours_per_week": self.idle_node_hours_per_week,
            "notes": list(self.notes),
            "pareto": [point.to_json() for point in self.pareto],
            "grid": [point.to_json() for point in self.grid],
            "run": self.run,
        }


def advise(
    trace: Trace,
    trainers: Sequence[SimTrainer] | None = None,
    t_fwds_s: Sequence[float] = T_FWDS_S,
    pj_maxes: Sequence[int] | None = None,
    *,
    options: Options | None = None,
    prefer: Prefer = "balanced",
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Advice:
    """Recommend t_fwd and pj_max for a trace, see `sweep` and `recommend`.

    Without `trainers` those of the paper's Table 2 are used, without `pj_maxes` the `PJ_MAXES` up to the mean number of
    idle nodes. `options.seed` is that of the bootstrap. Raise `UsageError` if the sweep is impossible.
    """
    options = options or Options()
    if options.hours is not None:
        trace = trace.first(options.hours)
    eq_nodes = stats(trace).eq_nodes
    if eq_nodes <= 0:
        raise UsageError("no node of the trace is idle for any time: there is nothing to harvest")
    if pj_maxes is None:
        pj_maxes = [pj_max for pj_max in PJ_MAXES if pj_max <= max(1.0, eq_nodes)]
    used = representative() if trainers is None else tuple(trainers)
    grid = sweep(trace, used, t_fwds_s, pj_maxes, options=options, jobs=jobs, progress=progress)
    chosen, reason = recommend(grid, prefer)
    return Advice(
        recommended=chosen,
        reason=reason,
        prefer=prefer,
        grid=grid,
        pareto=pareto(grid),
        expected=expected(chosen.days, options.seed),
        eq_nodes=eq_nodes,
        idle_node_hours_per_week=eq_nodes * WEEK_H,
        notes=tuple(_notes(chosen, grid, built_in=trainers is None)),
        run=_run(trace, used, t_fwds_s, pj_maxes, options, prefer, built_in=trainers is None),
    )


def _notes(chosen: SweepPoint, grid: Sequence[SweepPoint], *, built_in: bool) -> list[str]:
    notes = []
    if built_in:
        notes.append(
            "no trainers were given: the seven networks of the paper's Table 2 stand for them, with the speed of "
            "Summit's nodes; with nodes of another speed run times scale with it (--trainers)"
        )
    never = [kind for kind, found in chosen.kinds.items() if not found.completed]
    if never:
        notes.append(f"none of {', '.join(never)} was completed within the trace")
    if chosen.completed < chosen.unfinished:
        notes.append(
            f"only {chosen.completed} trainers were completed and {chosen.unfinished} were not: the mean run time is "
            "worked out from how far they came"
        )
    return [*notes, *at_edge(chosen, grid)]


def _run(
    trace: Trace,
    trainers: Sequence[SimTrainer],
    t_fwds_s: Sequence[float],
    pj_maxes: Sequence[int],
    options: Options,
    prefer: Prefer,
    *,
    built_in: bool,
) -> dict[str, Any]:
    """Return versions, arguments and inputs: all that is needed to repeat the run."""
    fixed = asdict(replace(options, endless=True))
    for swept in ("t_fwd_s", "pj_max"):
        del fixed[swept]
    grid = {"t_fwds_s": sorted(set(t_fwds_s)), "pj_maxes": sorted(set(pj_maxes)), "prefer": prefer}
    return {
        "versions": {"bftd": __version__, "python": platform.python_version(), "numpy": np.__version__},
        "arguments": grid | fixed,
        "inputs": {
            "trace": {"source": trace.source, "sha256": trace.digest(), "nodes": len(trace.nodes)},
            "trainers": {"sha256": digest(trainers), "count": len(trainers), "built_in": built_in},
        },
    }
