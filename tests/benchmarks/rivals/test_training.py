"""The steps that a preemption takes and those that it leaves, from the processes' logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.rivals import process
from benchmarks.rivals.training import Costs, End, Group, Spell, Trained, groups, spells, trained
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def spell(*steps_s: float, saved: int = 0, end: End = "alive", group: str = "a", size: int = 1) -> Spell:
    return Spell(group, size, steps_s, saved, end)


def test_saves_are_young_and_dalys_interval_apart() -> None:
    assert Costs(step_s=0.5, checkpoint_s=0.5, life_s=100.0).save_every == 20  # sqrt(2 x 0.5 x 100) = 10 s
    assert Costs(step_s=60.0, checkpoint_s=0.1, life_s=1.0).save_every == 1


def test_the_log_of_a_process_tells_its_steps_its_saves_and_how_each_spell_ended() -> None:
    log = ["100.0 spell 7@1 2", "101.0 step", "102.0 step", "102.1 save", "103.0 step", "103.5 stop",
           "104.0 spell 7@2 3", "105.0 step"]  # fmt: skip
    asked = Spell("7@1", 2, (1.0, 2.0, 3.0), 2, "asked")
    assert spells(log, alive=False, begin_s=100.0) == [asked, Spell("7@2", 3, (5.0,), 0, "lost")]
    assert spells(log, alive=True, begin_s=100.0) == [asked, Spell("7@2", 3, (5.0,), 0, "alive")]
    assert spells([], alive=True, begin_s=100.0) == []


def test_a_node_that_is_lost_takes_its_group_back_to_the_last_save() -> None:
    stays, goes = spell(1.0, 2.0, 3.0, saved=2, end="asked", size=2), spell(1.5, 2.5, saved=2, end="lost", size=2)
    assert groups([stays, goes]) == [Group(2, (1.5, 2.5), 2)]
    behind = spell(1.5, 2.5, saved=1, end="lost", size=2)
    assert groups([stays, behind]) == [Group(2, (1.5, 2.5), 1)]


def test_a_group_that_is_asked_to_stop_loses_nothing() -> None:
    asked = [spell(1.0, 2.0, saved=0, end="asked", size=2), spell(1.0, 2.0, 3.0, saved=0, end="asked", size=2)]
    assert groups(asked) == [Group(2, (1.0, 2.0), 2)]


def test_a_group_that_lost_a_node_before_it_began_has_trained_nothing() -> None:
    assert groups([spell(1.0, 2.0, size=2)]) == [Group(2, (), 0)]


def test_samples_count_within_the_stream_and_the_lost_ones_apart() -> None:
    group = Group(3, (-1.0, 1.0, 2.0, 3.0, 11.0), 3)
    assert trained([group], until_s=10.0) == Trained(computed=9, lost=3)
    assert trained([group], until_s=2.0) == Trained(computed=6, lost=0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 9), st.sampled_from(["alive", "lost"]))
    )
)
def test_what_is_kept_and_what_is_lost_are_all_that_was_computed(rows: list[tuple[str, int, int, End]]) -> None:
    every = [Spell(name, 1, tuple(map(float, range(steps))), min(saved, steps), end)
             for name, steps, saved, end in rows]  # fmt: skip
    found = trained(groups(every), until_s=100.0)
    assert 0 <= found.lost <= found.computed <= sum(len(one.steps_s) for one in every)
    assert found.kept + found.lost == found.computed
    if all(one.end == "alive" for one in every):
        assert found.lost == 0


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, folder / "python3", "rigid"], env={**os.environ, "SLURM_JOB_ID": "8"})


def checkpoints(folder: Path) -> dict[str, int]:
    return {path.name: int(path.read_text() or 0) for path in (folder / "checkpoints").iterdir()}


def test_a_training_goes_on_from_its_checkpoint_and_no_two_processes_take_the_same(tmp_path: Path) -> None:
    costs = Costs(step_s=0.01, start_s=0.0, checkpoint_s=0.0, life_s=1.0)
    shutil.copy(process.__file__, tmp_path / "python3")
    for name in ("checkpoints", "spells"):
        (tmp_path / name).mkdir()
    (tmp_path / "training.json").write_text(json.dumps({**costs.told(), "save_every": 3, "trainings": 2}))
    both = [start(tmp_path), start(tmp_path)]
    try:
        until(
            "two trainings have saved",
            lambda: len(saved := checkpoints(tmp_path)) == 2 and min(saved.values()) >= 3,
            lambda: checkpoints(tmp_path),
        )
    finally:
        for one in both:
            one.send_signal(signal.SIGTERM)
            one.wait()
    before = checkpoints(tmp_path)
    again = start(tmp_path)
    try:
        until("it has saved again", lambda: checkpoints(tmp_path)["0"] > before["0"], lambda: checkpoints(tmp_path))
    finally:
        again.kill()
        again.wait()
    kept = 0
    for path in (tmp_path / "spells").iterdir():
        (group,) = groups(spells(path.read_text().splitlines(), alive=False, begin_s=0.0))
        kept += trained([group], time.time()).kept
    # A process may be killed between the save and the line that tells of it.
    assert 0 <= sum(checkpoints(tmp_path).values()) - kept <= 9
