"""A_s: the work that the same trainers would do on as many dedicated nodes, section 4.1.2 of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, floor

import milp
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay.options import Options
from milp import Points
from milp.curves import Curve
from milp.problem import NodeSpec, Problem, TrainerSpec

# A trainer in a plan without costs: its sizes, and the curve it is planned by.
_Kind = tuple[int, int, Points]


def outcome(trainers: Sequence[SimTrainer], nodes: float, duration_s: float, options: Options) -> float:
    """Return the samples of the best allocations of `nodes` dedicated nodes over `duration_s`.

    At most pj_max trainers run, first come first served from a list that never ends. Resizes cost nothing, and nodes
    are allocated anew whenever a trainer is done. Between whole numbers of nodes the outcome is linear.
    """
    low = _whole(trainers, floor(nodes), duration_s, options)
    if nodes == floor(nodes):
        return low
    high = _whole(trainers, ceil(nodes), duration_s, options)
    return low + (high - low) * (nodes - floor(nodes))


def _whole(trainers: Sequence[SimTrainer], nodes: int, duration_s: float, options: Options) -> float:
    coming = itertools.cycle(sorted(trainers, key=lambda trainer: trainer.submit_s))
    running = [next(coming) for _ in range(options.pj_max)]
    left = [trainer.work_samples for trainer in running]
    now_s = total = 0.0
    while now_s < duration_s:
        counts = _best(tuple(_kind(trainer, options) for trainer in running), nodes)
        rates = [trainer.rates[count] for trainer, count in zip(running, counts, strict=True)]
        lasts_s = min((work / rate for work, rate in zip(left, rates, strict=True) if rate > 0), default=duration_s)
        lasts_s = min(lasts_s, duration_s - now_s)
        total += lasts_s * sum(rates)
        now_s += lasts_s
        left = [work - rate * lasts_s for work, rate in zip(left, rates, strict=True)]
        # In order of arrival; a millionth of the work is rounding.
        stay = [place for place, trainer in enumerate(running) if left[place] > 1e-6 * trainer.work_samples]
        running, left = [running[place] for place in stay], [left[place] for place in stay]
        while len(running) < options.pj_max:
            running.append(next(coming))
            left.append(running[-1].work_samples)
    return total


def _kind(trainer: SimTrainer, options: Options) -> _Kind:
    points = trainer.objective if options.objective == "curve" else trainer.curve
    if options.objective == "efficiency":
        one_node = trainer.rates[1] or 1.0
        points = tuple((count, rate / one_node) for count, rate in points)
    return trainer.nodes_min, trainer.nodes_max, points


@lru_cache(maxsize=4096)
def _best(kinds: tuple[_Kind, ...], nodes: int) -> tuple[int, ...]:
    """Return the node counts of the best allocation."""
    specs = tuple(
        TrainerSpec(
            name=str(place),
            nodes_min=nodes_min,
            nodes_max=nodes_max,
            up_cost_s=0.0,
            down_cost_s=0.0,
            curve=Curve(tuple(count for count, _ in points), tuple(worth for _, worth in points)),
        )
        for place, (nodes_min, nodes_max, points) in enumerate(kinds)
    )
    pool = tuple(NodeSpec(str(place)) for place in range(nodes))
    plan = milp.solve(Problem(pool, specs, 1.0), "exact")
    return tuple(plan.counts[spec.name] for spec in specs)
