"""Faults in the simulated world: trainers end well through all of them."""

from __future__ import annotations

import json

from click.testing import CliRunner

from bftd.simulation.world import world
from bftd.simulation.world.faults import KINDS
from bftd.simulation.world.world import WorldSettings
from tools import year

SETTINGS = WorldSettings(seed=3, hours=0.2, nodes=3, trainers=2, steps=80, faults=tuple(KINDS))


def test_every_trainer_ends_well_through_all_kinds_of_faults() -> None:
    result = world.run(SETTINGS)
    assert not result.violation
    assert len(set(result.struck)) > len(KINDS) / 2
    assert world.run(SETTINGS).digest == result.digest


def test_the_tool_tells_seed_commit_events_and_faults() -> None:
    options = ["--seed", "3", "--days", "0.002", "--nodes", "2", "--trainers", "1", "--steps", "20", "--json"]
    shown = json.loads(CliRunner().invoke(year.main, [*options, "--faults", "daemon"]).output)
    assert shown["seed"] == 3
    assert shown["events"] > 0
    assert set(shown["faults"]) == {"daemon"}
    assert shown["violation"] == ""
