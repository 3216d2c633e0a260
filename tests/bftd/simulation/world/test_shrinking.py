"""The shortest history that still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.service.service import Service
from bftd.simulation.world import world
from bftd.simulation.world.faults import shrinking
from bftd.simulation.world.faults.kinds import KINDS, Fault, drawn
from bftd.simulation.world.faults.shrinking import smallest
from bftd.simulation.world.world import WorldSettings
from elastic.driver.progress.reports import TrainerProgress

pytestmark = pytest.mark.slow

SETTINGS = WorldSettings(
    seed=1,
    hours=4.0,
    nodes=9,
    trainers=5,
    steps=100,
    history=tuple(Fault(float(at_s), "daemon", at_s) for at_s in range(20)),
    jobs=tuple(range(1, 12)),
)


def never() -> bool:
    return False


@given(st.sets(st.integers(1, 40)), st.integers(0, 40))
def test_only_what_is_needed_to_fail_is_left(needed: set[int], more: int) -> None:
    def failing(settings: WorldSettings) -> WorldSettings | None:
        return settings if needed.issubset(settings.jobs or ()) else None

    least = smallest(replace(SETTINGS, jobs=tuple(range(1, 41 + more))), failing, never)
    assert least.jobs == tuple(sorted(needed))


def test_a_history_loses_all_that_it_can_lose() -> None:
    def failing(settings: WorldSettings) -> WorldSettings | None:
        times_s = {fault.at_s for fault in settings.history or ()}
        fails = {3.0, 17.0} <= times_s and 4 in (settings.jobs or ()) and settings.nodes >= 3 and settings.trainers >= 1
        return replace(settings, chance=7) if fails else None

    least = smallest(SETTINGS, failing, never)
    assert [fault.at_s for fault in least.history or ()] == [3.0, 17.0]
    assert (least.jobs, least.nodes, least.trainers, least.steps) == ((4,), 3, 1, 1)
    assert least.hours <= 0.05
    assert least.chance == 7


def test_nothing_more_is_tried_once_there_is_enough() -> None:
    tried: list[WorldSettings] = []

    def failing(settings: WorldSettings) -> WorldSettings | None:
        tried.append(settings)
        return settings

    least = smallest(SETTINGS, failing, lambda: len(tried) >= 3)
    assert len(tried) == 3
    assert least == tried[-1]


@pytest.fixture
def counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have drivers count double what they save."""
    saved = TrainerProgress.saved
    monkeypatch.setattr(TrainerProgress, "saved", lambda self, step, samples: saved(self, 2 * step, 2 * samples))


def test_a_world_that_fails_fails_still_when_it_is_shrunk(counts_twice: None) -> None:
    settings = WorldSettings(seed=2, hours=0.1, nodes=3, trainers=2, steps=60, faults=("agent", "slow"), apart_s=60.0)
    result = world.run(settings)
    assert result.rule == "S10"
    least = shrinking.shrunk(settings, result, never)
    assert (least.history, least.jobs, least.trainers) == ((), (), 1)
    assert world.run(least).rule == "S10"


def test_settings_of_which_nothing_can_be_left_out_are_told_by_their_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WorldSettings(seed=2, hours=0.1, nodes=3, trainers=2, steps=60, faults=("agent",), apart_s=60.0)
    monkeypatch.setattr(shrinking, "run", lambda *_: world.WorldResult())
    assert shrinking.shrunk(settings, world.WorldResult(violation="S10: no"), never) == settings


@pytest.mark.parametrize(
    ("violation", "rule"),
    [
        ("S10: trainer 9000001 counts 3 steps", "S10"),
        ("trainers 9000001, 9000002 have not ended 7200 s after", "trainers N have not ended N s after"),
        ("crash in service.apply: KeyError: 3", "crash in service.apply"),
    ],
)
def test_a_rule_is_called_alike_whichever_trainer_broke_it(violation: str, rule: str) -> None:
    assert world.WorldResult(violation=violation).rule == rule


def test_a_kind_of_faults_strikes_alike_whatever_others_there_are() -> None:
    alone = drawn(("agent",), 300.0, 86_400.0, "1")
    assert alone == tuple(fault for fault in drawn(tuple(KINDS), 300.0, 86_400.0, "1") if fault.kind == "agent")
    assert 200 < len(alone) < 400
    assert alone != drawn(("agent",), 300.0, 86_400.0, "2")


def test_a_world_given_its_own_faults_and_jobs_is_the_same_world() -> None:
    settings = WorldSettings(seed=3, hours=0.1, nodes=3, trainers=2, steps=60, faults=("agent", "cut"), apart_s=60.0)
    numbers = tuple(job.number for job in settings.all_jobs())
    given_all = replace(settings, faults=(), history=settings.all_faults(), jobs=numbers)
    assert world.run(settings).digest == world.run(given_all).digest


def test_code_that_raises_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Service, "observe_later", fail)
    result = world.run(WorldSettings(seed=5, hours=0.1, nodes=3, trainers=2, steps=60))
    assert result.rule == "crash in test_shrinking.fail"
    assert "Traceback" in result.log[-1]


def test_a_world_ends_when_there_is_enough() -> None:
    asked: list[Callable[[], bool]] = []
    result = world.run(WorldSettings(seed=5), lambda: bool(asked) or asked.append(never) is not None)
    assert result.stopped
    assert not result.violation
