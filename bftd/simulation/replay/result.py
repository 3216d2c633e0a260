"""The result of a replay, and all that is needed to repeat it."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bftd import __version__
from bftd.simulation.drivers.trainers import SimTrainer, digest
from bftd.simulation.replay import static
from bftd.simulation.replay.account import Account
from bftd.simulation.replay.options import Options

if TYPE_CHECKING:
    from bftd.simulation.trace import Trace

# The paper gives U for every six hours (its Figure 10).
WINDOW_S = 6 * 3600.0


@dataclass(frozen=True)
class Result:
    """The figures of one replay.

    `efficiency` is U = A_e / A_s: `outcome_samples` over `static_outcome_samples`, the outcome of `eq_nodes` dedicated
    nodes (equations (17)-(18)). `preemptions` counts a trainer once however many nodes leave it at once. Run times are
    from admission to completion, by kind of trainer. `t_fwd_preempted_share` is the share of preemptions within t_fwd
    of the decision before them. `solve_ms` holds quantiles of the solve time of a plan, in milliseconds. `series` holds
    U and the idle, training and held node-hours of every window of six hours; `used_node_hours` is the older name of
    `held_node_hours`. `run` is all that is needed to repeat the replay.
    """

    efficiency: float
    outcome_samples: float
    static_outcome_samples: float
    eq_nodes: float
    node_hours: float
    training_node_hours: float
    held_node_hours: float
    used_node_hours: float
    events: int
    rescale_cost_samples: float
    preempt_cost_samples: float
    preemptions: int
    trainers_completed: int
    mean_runtime_s: Mapping[str, float]
    t_fwd_preempted_share: float
    wall_s: float
    solve_ms: Mapping[str, float]
    series: Sequence[Mapping[str, float]] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    account: Account = field(default_factory=Account, repr=False, compare=False)

    def to_json(self, *, series: bool = False) -> dict[str, Any]:
        """Return all figures as JSON data, with the `series` only on request."""
        left_out = {"account"} if series else {"account", "series"}
        names = [name for name in self.__dataclass_fields__ if name not in left_out]
        return {name: _plain(getattr(self, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def made_of(
    account: Account,
    trace: Trace,
    trainers: Sequence[SimTrainer],
    options: Options,
    solve_s: Sequence[float],
    started_s: float,
) -> Result:
    """Return the result of a replay from its books."""
    end_s = trace.duration_s
    whole = np.array([0.0, end_s])
    outcome = float(account.outcome(whole)[0])
    pool_node_s = float(account.pool_node_s(whole)[0])
    eq_nodes = pool_node_s / end_s
    best = static.outcome(trainers, eq_nodes, end_s, options)
    held_node_hours = float(account.held_node_s(whole)[0]) / 3600
    runtimes = account.runtimes_s
    return Result(
        efficiency=outcome / best if best > 0 else 0.0,
        outcome_samples=outcome,
        static_outcome_samples=best,
        eq_nodes=eq_nodes,
        node_hours=pool_node_s / 3600,
        training_node_hours=float(account.training_node_s(whole)[0]) / 3600,
        held_node_hours=held_node_hours,
        used_node_hours=held_node_hours,
        events=len(account.decided_s),
        rescale_cost_samples=account.total("rescale"),
        preempt_cost_samples=account.total("preempt"),
        preemptions=account.preemptions,
        trainers_completed=sum(map(len, runtimes.values())),
        mean_runtime_s={kind: float(np.mean(runtimes[kind])) for kind in sorted(runtimes)},
        t_fwd_preempted_share=account.preempted_within(options.t_fwd_s),
        wall_s=time.perf_counter() - started_s,
        solve_ms=_quantiles_ms(solve_s),
        series=_series(account, trainers, end_s, options),
        run=_run(trace, trainers, options),
        account=account,
    )


def _quantiles_ms(solve_s: Sequence[float]) -> dict[str, float]:
    p50, p99, most = np.quantile(solve_s, (0.5, 0.99, 1.0)) * 1000 if solve_s else (0.0, 0.0, 0.0)
    return {"p50": float(p50), "p99": float(p99), "max": float(most)}


def _series(
    account: Account, trainers: Sequence[SimTrainer], end_s: float, options: Options
) -> tuple[dict[str, float], ...]:
    edges_s = np.append(np.arange(0.0, end_s, WINDOW_S), end_s)
    earned, pool = account.outcome(edges_s), account.pool_node_s(edges_s)
    training, held = account.training_node_s(edges_s), account.held_node_s(edges_s)
    rows = []
    for place, (start_s, length_s) in enumerate(zip(edges_s[:-1].tolist(), np.diff(edges_s).tolist(), strict=True)):
        best = static.outcome(trainers, float(pool[place]) / length_s, length_s, options)
        rows.append(
            {
                "start_s": start_s,
                "efficiency": float(earned[place]) / best if best > 0 else 0.0,
                "outcome_samples": float(earned[place]),
                "node_hours": float(pool[place]) / 3600,
                "training_node_hours": float(training[place]) / 3600,
                "held_node_hours": float(held[place]) / 3600,
                "used_node_hours": float(held[place]) / 3600,
            }
        )
    return tuple(rows)


def _run(trace: Trace, trainers: Sequence[SimTrainer], options: Options) -> dict[str, Any]:
    return {
        "versions": {"bftd": __version__, "python": platform.python_version(), "numpy": np.__version__},
        "arguments": options.to_json(),
        "inputs": {
            "trace": {"source": trace.source, "sha256": trace.digest(), "nodes": len(trace.nodes)},
            "trainers": {"sha256": digest(trainers), "count": len(trainers)},
        },
    }
