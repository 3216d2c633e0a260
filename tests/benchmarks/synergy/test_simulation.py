"""The comparison of Synergy's packers in small: scenes have their jobs, tables a row for each run."""

from __future__ import annotations

import sys

import pytest

from benchmarks.synergy import simulation
from sizing.cpu.sensitivity.matrix import Matrix
from studies.synergy.job_orders import ORDERS
from studies.synergy.packing.packers import PACKERS

pytestmark = pytest.mark.slow

with_matrices = pytest.mark.skipif(not simulation.MATRICES.exists(), reason="no public matrices (shared/data/sizing)")


def test_every_scene_is_held_against_proportional_shares_under_the_same_order() -> None:
    for asked in simulation.SCENES.values():
        for order, packer in asked.runs:
            assert order in ORDERS
            assert packer.split()[0] in PACKERS
            assert (order, simulation.BASE) in asked.runs
    assert simulation.FIRST_SEED > 2


def test_a_profile_tells_the_tried_points_and_lines_between_them() -> None:
    rates = ((1.0, 2.0), (2.0, 4.0), (3.0, 6.0), (3.2, 6.4), (4.0, 8.0), (4.0, 8.0), (4.0, 8.0), (4.0, 8.0))
    true = Matrix(1, tuple(map(float, range(1, 9))), (1.0, 2.0), rates)
    told = simulation.profiled(true)
    assert told.cpus == true.cpus
    assert told.rates[-1] == true.rates[-1]
    assert told.rates[3] == (3.2, 6.4) or told.rates[3] == (3.5, 7.0), "tried, or between 3 and 5"
    assert all(a <= b for a, b in zip(told.rates, told.rates[1:], strict=False))
    assert all(row[1] == 2 * row[0] for row in told.rates)
    off = simulation.profiled(true, 0.05, 3)
    assert off != told
    assert off == simulation.profiled(true, 0.05, 3)
    assert off.rates[-1][1] == pytest.approx(8.0, rel=0.05)


@with_matrices
def test_the_table_has_a_row_for_each_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["simulation", "--seeds", "2", "--jobs", "12", "--processes", "1", "--only", "overload"]
    monkeypatch.setattr(sys, "argv", given)
    simulation.main()
    lines = capsys.readouterr().out.splitlines()
    runs = [scene.runs for name, scene in simulation.SCENES.items() if name.startswith("overload")]
    rows = [line for line in lines if line.startswith("| ")][2:]
    assert len(rows) == sum(packer != simulation.BASE for each in runs for _, packer in each)
    assert {line.count("|") for line in lines if line.startswith("|")} == {15}


@with_matrices
def test_priced_can_be_told_by_profiles_that_are_off() -> None:
    for packer in simulation.ERRORS:
        _, found, _ = simulation.run(simulation.Task("profiled", "fifo", packer, 100, 8))
        assert found.mean_jct_s > 0
        assert found.slowest > 0.9
