"""The comparison with Crius's baselines in small: every scene runs, and the table has a row for each policy."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from benchmarks.crius import simulation
from studies.crius import comparison
from studies.crius.schedulers import maker
from studies.simulation.clusters import crius_testbed
from studies.simulation.models import table2
from studies.simulation.speeds import FormulaSpeeds

pytestmark = pytest.mark.slow


def test_the_table_has_a_row_for_each_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crius", "--seeds", "2", "--jobs", "5", "--only", "testbed,deadlines"])
    simulation.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][2:]
    names = [*simulation.SCENES["testbed"].policies, *simulation.SCENES["deadlines"].policies]
    assert [row[1].split()[0] for row in rows] == names
    assert all(("(simplified" in row[1]) != row[1].startswith("crius") for row in rows)
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) == 1


def test_regression_tables_were_made_of_the_jobs_that_the_patience_was_chosen_on() -> None:
    assert simulation.FIRST_SEED > 2
    for scene, asked in simulation.SCENES.items():
        assert asked.trace != simulation.CHOSEN_ON, scene
    for scene in ("heavy", "testbed"):
        assert "crius-patient" in simulation.SCENES[scene].policies
    speeds = FormulaSpeeds(table2(), crius_testbed())
    assert maker("crius-patient")(speeds, speeds).name == "Crius-patient"
    assert maker("gandiva-by-gain")(speeds, speeds).name == "gandiva-by-gain"


def test_regression_completion_times_were_compared_where_other_jobs_had_been_dropped() -> None:
    _, all_ended, _ = simulation.run(simulation.Task("deadlines", "elasticflow", 100, 5))
    some = replace(all_ended, finished=all_ended.jobs - 1, mean_jct_s=all_ended.mean_jct_s / 2)
    assert all_ended.finished == all_ended.jobs
    assert comparison.ratio("mean_jct_s", [all_ended], [all_ended]) is not None
    told = simulation.to_json({"deadlines": {"crius-ddl": [some], "elasticflow": [all_ended]}})
    lines = simulation.windows(told).splitlines()
    (first,) = (line for line in lines if "| crius-ddl |" in line)
    (other,) = (line for line in lines if "| elasticflow (simplified, without time slots) |" in line)
    assert "| 4 of 5 |" in first
    assert "| 5 of 5 |" in other
    assert "%" not in other.split("|")[-3]
    told = comparison.to_json({"crius-ddl": [some], "elasticflow": [all_ended]})["crius-ddl_over"]["elasticflow"]
    assert told["mean_jct_s"] is None
    assert told["window_raw"] is not None
