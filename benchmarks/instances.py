"""Allocation problems to measure solvers on: three families of trainers, random current maps, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from bftd.simulation.drivers.networks import TABLE_2, TABLE_2_NODES
from milp import Curve, NodeSpec, Problem, TrainerSpec, solve

Family = Literal["paper", "hpo", "random"]
Start = Literal["random", "settled", "empty"]
FAMILIES: tuple[Family, ...] = get_args(Family)
STARTS: tuple[Start, ...] = get_args(Start)

# Seconds: the look-ahead at which the paper's utilisation saturates (its Figure 9), and its example of a scale-up cost
# (section 2.3); it says of scaling down only that it is cheaper.
T_FWD_S = 120.0
UP_COST_S, DOWN_COST_S = 20.0, 5.0

# The part of the pool that leaves between two solves, as jobs of so many neighbouring nodes each.
_PART_LEAVING = 0.05
_JOB_NODES = (1, 2, 4, 8, 16)
# The part of the trainers that is left with too few nodes to train on.
_PART_CUT = 0.025


def build(
    family: Family, trainers: int, nodes: int, seed: int, *, start: Start = "random", classes: int = 1
) -> Problem:
    """The problem that these arguments name, the same in every process.

    Families: `paper` mixes the networks of Table 2, `hpo` has identical ShuffleNet trials (the paper's section 5.1),
    `random` has dented random curves and varied limits, sizes, costs and weights. Starts, for the current map:
    `random` is some map that meets all constraints, from which jobs then took nodes, so that trainers may be below
    their nodes_min; `settled` is an optimal map after such a loss and as many new nodes, what a daemon meets at every
    event; `empty` is nobody on any node. With several `classes` every trainer has a random speed on each.
    """
    rng = random.Random(f"{family} {trainers} {nodes} {classes} {seed}")
    names = tuple(f"class{index}" for index in range(classes)) if classes > 1 else ("",)
    leaving = 0 if start == "empty" else max(1, round(nodes * _PART_LEAVING))
    pool = tuple(NodeSpec(f"n{index}", names[index % classes]) for index in range(nodes + leaving))
    specs = [_MAKERS[family](f"t{index}", rng) for index in range(trainers)]
    if classes > 1:
        specs = [_with_speeds(spec, names, rng) for spec in specs]
    if start == "empty":
        return Problem(pool, tuple(specs), T_FWD_S)
    if start == "random":
        return _preempt(Problem(pool, _random_map(pool, specs, rng), T_FWD_S), leaving, rng)
    before = Problem(pool[:nodes], _random_map(pool[:nodes], specs, rng), T_FWD_S)
    assignment = solve(before).assignment
    settled = tuple(replace(trainer, current=assignment[trainer.name]) for trainer in before.trainers)
    return _preempt(Problem(pool, settled, T_FWD_S), leaving, rng)


def redraw(problem: Problem, seed: int) -> Problem:
    """The same pool and trainers with another random current map that meets all constraints."""
    rng = random.Random(seed)
    return replace(problem, trainers=_random_map(problem.nodes, problem.trainers, rng))


# -- trainers ---


def _network(name: str, network: str, nodes_min: int) -> TrainerSpec:
    curve = Curve((0, *TABLE_2_NODES), (0.0, *TABLE_2[network]))
    return TrainerSpec(name, nodes_min, TABLE_2_NODES[-1], UP_COST_S, DOWN_COST_S, curve)


def _paper(name: str, rng: random.Random) -> TrainerSpec:
    return _network(name, rng.choice(tuple(TABLE_2)), rng.choice((1, 2, 4)))


def _hpo(name: str, rng: random.Random) -> TrainerSpec:
    return _network(name, "ShuffleNet", 2)


def _random(name: str, rng: random.Random) -> TrainerSpec:
    nodes_max = round(2 ** rng.uniform(3, 7))
    nodes_min = rng.randint(1, 6)
    points = sorted(rng.sample(range(1, nodes_max + 1), rng.randint(2, 7)))
    rate, bend = rng.uniform(1, 10), rng.uniform(0.7, 1.0)
    values = (round(rate * count**bend * rng.uniform(0.85, 1.15), 3) for count in points)
    powers = tuple(2**power for power in range(8) if nodes_min <= 2**power <= nodes_max)
    up_cost_s = rng.uniform(5, 60)
    return TrainerSpec(
        name=name,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        up_cost_s=up_cost_s,
        down_cost_s=up_cost_s * rng.uniform(0.1, 0.8),
        curve=Curve((0, *points), (0.0, *values)),
        sizes=powers if rng.random() < 0.2 else None,
        weight=rng.choice((1.0, 1.0, 1.0, 2.0)),
    )


_MAKERS: dict[Family, Callable[[str, random.Random], TrainerSpec]] = {
    "paper": _paper,
    "hpo": _hpo,
    "random": _random,
}


def _with_speeds(trainer: TrainerSpec, classes: Sequence[str], rng: random.Random) -> TrainerSpec:
    curves = {}
    for name in classes:
        speed = rng.uniform(0.5, 3.0)
        curves[name] = Curve(trainer.curve.nodes, tuple(speed * value for value in trainer.curve.values))
    return replace(trainer, class_curves=curves)


# -- current maps ---


def _random_map(
    pool: Sequence[NodeSpec], trainers: Sequence[TrainerSpec], rng: random.Random
) -> tuple[TrainerSpec, ...]:
    """Give neighbouring nodes of one class to trainers in random order, until there are none; some trainers wait."""
    free: dict[str, list[str]] = {}
    for node in pool:
        free.setdefault(node.node_class, []).append(node.name)
    placed: dict[str, tuple[str, ...]] = {}
    for trainer in rng.sample(trainers, len(trainers)):
        names = free[rng.choice(tuple(free))]
        allowed = [count for count in range(min(trainer.nodes_max, len(names)) + 1) if trainer.allows(count)]
        count = rng.choice(allowed)
        placed[trainer.name], names[:count] = tuple(names[:count]), []
    return tuple(replace(trainer, current=placed[trainer.name]) for trainer in trainers)


def _preempt(problem: Problem, leaving: int, rng: random.Random) -> Problem:
    """Take `leaving` nodes away, as jobs on neighbouring nodes do, and leave some trainers below nodes_min."""
    gone: set[str] = set()
    cut = max(1, round(len(problem.trainers) * _PART_CUT))
    for trainer in rng.sample(problem.trainers, len(problem.trainers)):
        if cut and len(trainer.current) >= trainer.nodes_min > 1:
            lost = trainer.current[rng.randrange(1, trainer.nodes_min) :]
            if len(gone) + len(lost) <= leaving:
                gone.update(lost)
                cut -= 1
    while len(gone) < leaving:
        size = min(rng.choice(_JOB_NODES), leaving - len(gone))
        first = rng.randrange(len(problem.nodes))
        gone.update(node.name for node in problem.nodes[first : first + size])
    trainers = tuple(
        replace(trainer, current=tuple(node for node in trainer.current if node not in gone))
        for trainer in problem.trainers
    )
    return replace(problem, nodes=tuple(node for node in problem.nodes if node.name not in gone), trainers=trainers)
