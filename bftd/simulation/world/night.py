"""The worlds that a night goes through: their sizes, regular jobs and kinds of faults, each drawn from its seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from bftd.simulation.world.world import WorldSettings

_FEWEST_APART_S, _MOST_APART_S = 60.0, 1800.0


def _small(random: Random, seed: int) -> WorldSettings:
    return WorldSettings(
        seed,
        hours=random.choice((0.2, 1.0, 4.0)),
        nodes=random.randint(1, 12),
        trainers=random.randint(1, 5),
        steps=random.choice((50, 300, 2000)),
    )


def _summit(random: Random, seed: int) -> WorldSettings:
    nodes = random.choice((32, 64, 128))
    return WorldSettings(
        seed, hours=random.choice((1.0, 6.0)), nodes=nodes, trainers=random.randint(3, 12), steps=500, workload="summit"
    )


def _large(random: Random, seed: int) -> WorldSettings:
    workload = random.choice(("steady", "summit"))
    return WorldSettings(seed, hours=0.1, nodes=1000, trainers=100, steps=50, step_s=60.0, workload=workload)


SHAPES: Mapping[str, tuple[float, Callable[[Random, int], WorldSettings]]] = {
    "small": (0.94, _small),
    "Summit's windows": (0.05, _summit),
    "1,000 nodes, 100 trainers": (0.01, _large),
}
"""The shapes of worlds by name: how often a world has each, and how its settings are drawn."""


def drawn_settings(seed: int, kinds: Sequence[str]) -> tuple[str, WorldSettings]:
    """Return the shape and the settings of a seed's world, with all, some or none of these kinds of faults."""
    random = Random(f"{seed} night")
    shape = random.choices(list(SHAPES), [share for share, _ in SHAPES.values()])[0]
    settings = SHAPES[shape][1](random, seed)
    part = random.choice((0.3, 0.7, 1.0))
    some = tuple(kind for kind in kinds if random.random() < part)
    apart_s = _FEWEST_APART_S * (_MOST_APART_S / _FEWEST_APART_S) ** random.random()
    return shape, replace(settings, faults=some, apart_s=apart_s)
