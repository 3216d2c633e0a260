"""The copy of Slurm's planner is held against what a real slurmctld did, on recorded clusters without pilots.

The recordings are of benchmarks.backfill.recorder, the counts of benchmarks.backfill.replay. The copy was mended by
differences in the recordings of `SEEN`; what it says of the others is told apart, and is the figure that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.backfill.recording import load
from benchmarks.backfill.replay import EVERY_SECOND, RECORDINGS, SEEN, Counts, replay

pytestmark = pytest.mark.slow

NAMES = sorted(file.stem for file in RECORDINGS.glob("*.xz"))


@cache
def counts(name: str) -> Counts:
    return replay(load(RECORDINGS / f"{name}.xz")).counts


def total(wanted: Callable[[str], bool]) -> Counts:
    found = Counts()
    for name in NAMES:
        if wanted(name):
            found.add(counts(name))
    return found


def is_slow_enough(name: str) -> bool:
    return not name.startswith(EVERY_SECOND)


def is_held_out(name: str) -> bool:
    return is_slow_enough(name) and name.rpartition("-")[2] not in SEEN


@pytest.mark.parametrize(("which", "least"), [(is_slow_enough, 150), (is_held_out, 90)])
def test_nearly_all_starts_of_slurms_backfill_are_predicted(which: Callable[[str], bool], least: int) -> None:
    found = total(which)
    assert found.starts >= least
    assert found.predicted >= 0.93 * found.starts
    assert found.ahead >= 0.86 * found.starts


@pytest.mark.parametrize("which", [is_slow_enough, is_held_out])
def test_most_earmarks_that_would_be_made_lead_to_a_start(which: Callable[[str], bool]) -> None:
    found = total(which)
    assert found.useful >= 0.82 * found.earmarks
    assert found.came >= 0.92 * found.said


@pytest.mark.parametrize("recipe", ["default-22", "bf30-22", "default-24"])
def test_plans_for_later_are_those_of_slurm(recipe: str) -> None:
    found = total(lambda name: name.startswith(recipe))
    assert found.plans >= 400
    assert found.same >= 0.92 * found.plans


def test_what_slurm_starts_every_second_is_planned_as_slurm_plans_it() -> None:
    found = total(lambda name: name.startswith(EVERY_SECOND))
    assert found.plans >= 5_000
    assert found.same >= 0.96 * found.plans
