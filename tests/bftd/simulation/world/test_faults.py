"""Faults in the simulated world: trainers end well through all of them."""

from __future__ import annotations

from bftd.simulation.world import world
from bftd.simulation.world.faults import KINDS
from bftd.simulation.world.world import WorldSettings

SETTINGS = WorldSettings(seed=3, hours=0.2, nodes=3, trainers=2, steps=80, faults=tuple(KINDS))


def test_every_trainer_ends_well_through_all_kinds_of_faults() -> None:
    result = world.run(SETTINGS)
    assert not result.violation
    assert len(set(result.struck)) > len(KINDS) / 2
    assert world.run(SETTINGS).digest == result.digest
