"""One unit of work for all networks: the node-second, which a dedicated node does in a second at the best size.

Samples of different networks cannot be added up, and the paper's U compares with dedicated nodes under the *same*
pj_max, which flatters a small one. In node-seconds, the work recovered is a fraction of the idle time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bftd.base.errors import UsageError
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay import Options
from bftd.simulation.replay.options import Objective
from milp import Points


def in_node_seconds(trainers: Sequence[SimTrainer], options: Options) -> tuple[tuple[SimTrainer, ...], Options]:
    """Return the trainers with work and speed in node-seconds, and options that plan them as before.

    All trainers are submitted at the start. Raise `UsageError` for a trainer that earns nothing on any number of nodes.
    """
    counted = tuple(_counted(trainer, options.objective) for trainer in trainers)
    return counted, replace(options, objective="efficiency" if options.objective == "efficiency" else "curve")


def best_rate(trainer: SimTrainer) -> float:
    """Return the samples/s per node at the size at which the trainer gets the most out of a node."""
    best = max(rate / nodes for nodes, rate in enumerate(trainer.rates) if nodes > 0)
    if best <= 0:
        raise UsageError(f"trainer {trainer.name} earns nothing on any number of nodes: check its curve")
    return best


def _counted(trainer: SimTrainer, objective: Objective) -> SimTrainer:
    unit = best_rate(trainer)
    curve: Points = tuple((nodes, rate / unit) for nodes, rate in trainer.curve)
    return replace(
        trainer,
        submit_s=0.0,
        work_samples=trainer.work_samples / unit,
        curve=curve,
        objective=trainer.curve if objective == "throughput" else trainer.objective,
    )
