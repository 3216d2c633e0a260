"""python -m tools.year: a world of a seed, worlds of many seeds, and a history once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftd.simulation.world import world
from bftd.simulation.world.faults.kinds import KINDS
from bftd.simulation.world.night import SHAPES, drawn_settings
from bftd.simulation.world.world import WorldSettings
from elastic.driver.progress.reports import TrainerProgress
from tools import year

pytestmark = pytest.mark.slow

SMALL = ["--days", "0.002", "--nodes", "2", "--trainers", "1", "--steps", "20"]
FIXED = 2
"""Seeds of worlds that every run goes through."""


def told(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(year.main, [*words, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def seed_of_a_small_world(first: int) -> WorldSettings:
    while True:
        shape, settings = drawn_settings(first, tuple(KINDS))
        if shape == "small" and settings.hours <= 0.2 and settings.steps == 50 and settings.trainers <= 3:
            return settings
        first += 1000


@pytest.mark.parametrize("first", range(FIXED))
def test_every_rule_holds_in_the_worlds_of_some_seeds(first: int) -> None:
    settings = seed_of_a_small_world(first)
    assert not world.run(settings).violation, settings


def test_it_tells_seed_commit_events_and_faults() -> None:
    shown = told("--seed", "3", *SMALL, "--faults", "daemon,agent")
    assert shown["seed"] == 3
    assert shown["events"] > 0
    assert set(shown["faults"]) == {"daemon", "agent"}
    assert shown["violation"] == ""
    assert shown["shortest"] is None


def test_a_failure_gives_a_history_that_fails_again_with_the_logs_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = TrainerProgress.saved
    monkeypatch.setattr(TrainerProgress, "saved", lambda self, step, samples: saved(self, 2 * step, 2 * samples))
    shown = told("--seed", "3", *SMALL, "--faults", "agent", code=1)
    assert shown["rule"] == "S10"
    assert shown["shortest"]["history"] == []
    (tmp_path / "failure.json").write_text(json.dumps(shown))
    for given in (str(tmp_path / "failure.json"), json.dumps(shown["shortest"])):
        again = CliRunner().invoke(year.main, ["--replay", given], env={"COLUMNS": "100"})
        assert again.exit_code == 1
        assert " | bftd " in again.output
        assert "S10: " in again.output
    whole = told("--seed", "3", *SMALL, "--faults", "agent", "--no-shrink", code=1)
    assert whole["shortest"]["faults"] == ["agent"]


@pytest.mark.parametrize("words", [[], ["--replay", "{}"], ["--replay", "/none"], ["--seed", "1", "--faults", "rain"]])
def test_what_it_does_not_know_is_refused(words: list[str]) -> None:
    assert CliRunner().invoke(year.main, words).exit_code == 2


def test_a_seed_gives_the_same_world_again_and_others_all_shapes_and_some_kinds() -> None:
    worlds = [drawn_settings(seed, tuple(KINDS)) for seed in range(400)]
    assert worlds[:9] == [drawn_settings(seed, tuple(KINDS)) for seed in range(9)]
    assert {shape for shape, _ in worlds} == set(SHAPES)
    assert len({settings.faults for _, settings in worlds}) > 20


@pytest.mark.slow
def test_worlds_of_many_seeds_are_counted() -> None:
    found = told("--minutes", "0.05", "--seed", "1", "--faults", "agent")
    assert found["seed"] == 1
    assert [row[0] for row in found["worlds"]] == list(range(1, 1 + len(found["worlds"])))
    assert found["events"] == sum(row[found["columns"].index("events")] for row in found["worlds"])
    assert found["faults"].keys() == {"agent"}
    assert found["violations"] == {}
    assert f"{found['events']:,}" in year.table(found) or len({row[1] for row in found["worlds"]}) > 1
