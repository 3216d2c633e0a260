"""Faults in the simulated world: trainers end well through all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bftd.simulation.world import world
from bftd.simulation.world.faults.kinds import KINDS
from bftd.simulation.world.world import WorldSettings

pytestmark = pytest.mark.slow

SETTINGS = WorldSettings(seed=3, hours=0.2, nodes=3, trainers=2, steps=80, faults=tuple(KINDS))


def test_every_trainer_ends_well_through_all_kinds_of_faults() -> None:
    result = world.run(SETTINGS)
    assert not result.violation
    assert len(set(result.struck)) > len(KINDS) / 2


def test_regression_the_peers_of_a_worker_that_was_killed_before_it_was_connected_were_blamed() -> None:
    faults = ("worker", "agent")
    settings = WorldSettings(seed=7, hours=0.1, nodes=3, trainers=1, steps=30, faults=faults, apart_s=30.0)
    assert not world.run(settings).violation


def test_regression_the_last_step_of_a_rank_0_that_ended_early_counted_though_nobody_had_saved_it() -> None:
    settings = WorldSettings(seed=6, hours=0.1, nodes=3, trainers=2, steps=40, faults=("script",), apart_s=20.0)
    assert not world.run(settings).violation


def test_the_same_faults_give_the_same_bytes_in_another_process_with_other_hashes() -> None:
    settings = replace(SETTINGS, nodes=16, apart_s=100.0, workload="summit")
    program = f"from bftd.simulation.world.world import *; print(run({settings!r}).digest)"
    environ = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert world.run(settings).digest == done.stdout.strip()
