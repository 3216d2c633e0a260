"""Which runs are missing, and when they go on side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.impact import comparison, record
from benchmarks.impact.comparison import Comparison, Planned
from benchmarks.impact.recipe import MAIN, RECIPES
from tests.benchmarks.test_impact_figures import job, run

pytestmark = pytest.mark.slow


def of(folder: Path, parallel: int = 1, pairs: int = 1) -> Comparison:
    return Comparison(folder, pairs, (1, 2), 60, False, "sleeping", stretch=3, parallel=parallel)


def names(runs: list[Planned]) -> list[str]:
    return [one.path.stem.replace("-22.05.8", "").replace("-16x60", "").replace("-x3", "") for one in runs]


@pytest.fixture(autouse=True)
def _some_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "slurm_release", lambda: "22.05.8")


def test_a_recipe_without_earmarks_shares_its_runs_without_bftd_with_the_one_that_has_them(
    tmp_path: Path,
) -> None:
    found = comparison.planned([RECIPES["slow"], RECIPES["slow-no-earmarks"]], of(tmp_path))
    assert names(found) == [
        "slow-none-s1-p00A",
        "slow-sleeping-s1-p00B",
        "slow-none-s2-p00A",
        "slow-sleeping-s2-p00B",
        "slow-no-earmarks-sleeping-s1-p00B",
        "slow-no-earmarks-sleeping-s2-p00B",
    ]


def test_runs_that_are_there_are_not_planned_again_but_those_of_older_recipes_stop_it(tmp_path: Path) -> None:
    first = comparison.planned([RECIPES["default"]], of(tmp_path))[0].path
    record.save(run("A", 0, job(0, 0.0, 1.0, 5.0)), first)
    assert names(comparison.planned([RECIPES["default"]], of(tmp_path))) == [
        "default-sleeping-s1-p00B",
        "default-none-s2-p00A",
        "default-sleeping-s2-p00B",
    ]
    record.save(replace(run("A", 0, job(0, 0.0, 1.0, 5.0)), format=1), first)
    with pytest.raises(ValueError, match="older version"):
        comparison.planned([RECIPES["default"]], of(tmp_path))


@given(parallel=st.integers(1, 12), pairs=st.integers(1, 3))
def test_never_more_runs_at_a_time_than_asked_for_and_their_starts_lie_apart(parallel: int, pairs: int) -> None:
    runs = comparison.planned(MAIN, of(Path("nowhere"), parallel, pairs))
    assert len(runs) == 4 * 2 * 2 * pairs
    for one in runs:
        assert sum(other.begin_s <= one.begin_s < other.end_s for other in runs) <= parallel
    if parallel > 1:
        begins = sorted(one.begin_s for one in runs)
        assert min(after - before for before, after in pairwise(begins)) > comparison.apart_s() - 1e-6


def test_a_table_of_three_seeds_and_four_recipes_takes_less_than_two_hours_in_fours(tmp_path: Path) -> None:
    asked = replace(of(tmp_path, parallel=4), seeds=(1, 2, 3))
    assert 3600 < max(one.end_s for one in comparison.planned(MAIN, asked)) < 7200


def test_a_run_waits_for_the_machine_to_calm_down_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison.os, "getloadavg", lambda: (500.0, 1.0, 1.0))
    apart_s = comparison.apart_s()
    assert comparison._may_begin(0.0, beside=False)
    assert not comparison._may_begin(apart_s + 1.0, beside=True)
    assert comparison._may_begin(comparison._PATIENCE_S, beside=True)
    monkeypatch.setattr(comparison.os, "getloadavg", lambda: (0.1, 1.0, 1.0))
    assert not comparison._may_begin(apart_s - 1.0, beside=True)
    assert comparison._may_begin(apart_s + 1.0, beside=True)


def test_only_runs_without_bftd_are_recorded(tmp_path: Path) -> None:
    runs = comparison.planned([RECIPES["slow"]], replace(of(tmp_path), record=True))
    assert names(runs) == ["slow-none-s1-p00A", "slow-none-s2-p00A"]
