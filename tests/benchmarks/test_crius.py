"""The comparison with Crius's baselines in small: every scene runs, and the table has a row for each policy."""

from __future__ import annotations

import sys

import pytest

from benchmarks import crius


def test_every_scene_has_jobs_that_a_seed_makes_again() -> None:
    for scene, asked in crius.SCENES.items():
        jobs = crius.jobs_of(scene, 1, 6)
        crius.jobs_of.cache_clear()
        assert jobs == crius.jobs_of(scene, 1, 6)
        assert len(jobs) == 6
        assert any(job.deadline_s for job in jobs) == asked.deadlines


def test_the_table_has_a_row_for_each_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crius", "--seeds", "2", "--jobs", "5", "--only", "testbed,deadlines"])
    crius.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| policy")]
    names = [*crius.SCENES["testbed"].policies, *crius.SCENES["deadlines"].policies]
    assert [row.split()[1] for row in rows] == names
    assert all(("(simplified)" in row) != row.startswith("| crius") for row in rows)
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) == 1


def test_a_scene_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["crius", "--only", "heavvy"])
    with pytest.raises(SystemExit, match="no such scene"):
        crius.main()
