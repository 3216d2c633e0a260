"""Each system trains on a real cluster beside regular jobs, and what a preemption takes is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.impact.comparison import slurm_release
from benchmarks.impact.recipe import TUNED
from benchmarks.impact.run import Setting, perform
from benchmarks.impact.stream import RegularJob, Reservation, Stream
from benchmarks.rivals.systems import SYSTEMS, System
from benchmarks.rivals.training import Costs, trained

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

NODES = 4
# The second job can start only where something has been given back; the third tells that all goes on.
STREAM = Stream(
    (RegularJob(0, 0.0, 2, 1.0, 1), RegularJob(1, 1.0, NODES, 2.0, 1), RegularJob(2, 8.0, 1, 1.0, 1)),
    Reservation(3600.0, ("n4",)),
)
COSTS = Costs(step_s=0.1, start_s=0.2, regroup_s=0.2, checkpoint_s=0.05)
TRAINING = [system for system in SYSTEMS if system.make is not None]


@pytest.mark.parametrize("system", TRAINING, ids=lambda system: system.name)
def test_each_system_trains_on_idle_nodes_and_gives_them_back(system: System, tmp_path: Path) -> None:
    assert system.make is not None
    trainer = system.make(COSTS)
    setting = Setting(system.recipe(TUNED), "B", 0, 1, NODES, system.name, 1, 6.0)
    run = perform(setting, STREAM, slurm_release(), tmp_path, print, harvester=trainer)
    assert all(row.start_s is not None for row in run.jobs)
    found = trained(trainer.groups, run.length_s)
    assert found.kept > 0
    held_node_s = sum(pilot.ended_s - pilot.began_s for pilot in run.pilots)
    assert found.computed * COSTS.step_s <= held_node_s + len(run.pilots)  # Slurm's times are whole seconds
    # Every node was harvested, so the second job had to get nodes on which processes trained.
    assert {pilot.node for pilot in run.pilots} == {f"n{number}" for number in range(1, 5)}
    if not trainer.by_bftd:
        assert run.jobs[1].preempt_s is not None
        assert set(run.jobs[1].freed) | set(run.jobs[0].freed) >= {"n1"}
        assert found.lost > 0
    assert all(fault.endswith(" s late") for fault in filter(None, run.note.split("; ")))  # as on a busy machine
