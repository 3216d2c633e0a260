"""A Horovod script's distributed checkpoints, in real Horovod alone with itself: what is written, told and read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic.store.completeness import Completeness, RankReport
from tests.support.messages import says, wording
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.horovod]

SCRIPT = Path(__file__).parent / "distributed.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("distributed") / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="module")
def parts(home: Path) -> dict[str, Any]:
    """What the script shows, by part."""
    said = subprocess.run([sys.executable, str(SCRIPT), str(home)], capture_output=True, text=True, timeout=5 * STILL_S)
    assert said.returncode == 0, said.stdout + said.stderr
    rows = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    return {row["part"]: row for row in rows}


def test_a_commit_is_written_as_a_version_of_one_rank_that_the_driver_finds_complete(
    parts: dict[str, Any], home: Path
) -> None:
    for message in parts["asked"]["shards"]:
        over = Completeness().heard("a worker", RankReport.parse(message, str(home)))
        assert over is not None
        assert over.complete is not None
        assert {shard.file for shard in over.complete.shards} == {".metadata", "__0_0.distcp"}
    assert [message["step"] for message in parts["asked"]["shards"]] == [1, 2]


def test_who_asks_for_the_checkpoint_is_answered_when_it_counts_and_not_before(parts: dict[str, Any]) -> None:
    assert parts["asked"]["ops"] == ["shards", "shipped"]
    assert parts["asked"]["saving"][0] == 0, "a driver that hears nothing asks the next worker"
    assert parts["asked"]["saving"][-1] > 0
    assert parts["waited"]["early"] == ["shards"]
    assert parts["waited"]["before"] == "shards", "another version was taken for this one"
    assert parts["waited"]["unpublished"] == ["shards", "nothing_saved"]


def test_a_pause_is_told_when_its_version_counts(parts: dict[str, Any]) -> None:
    assert parts["paused"]["ops"] == ["step", "shards", "paused"]


def test_a_folder_that_cannot_be_written_is_said_in_a_line_and_the_next_time_it_is_tried_again(
    parts: dict[str, Any],
) -> None:
    assert parts["unwritten"]["ops"] == ["unwritten", "nothing_saved"]
    [line] = parts["unwritten"]["lines"]
    assert says(line, "elastic.saving.not_saved", step=3)
    assert line.endswith("/file/shards: Not a directory")
    assert parts["unwritten"]["again"] == ["shards", "shipped"]


def test_the_commit_is_resumed_to_the_bit_whatever_was_trained_while_it_was_written(parts: dict[str, Any]) -> None:
    assert parts["resumed"]["same"]
    assert parts["resumed"]["generators_kept"], "random numbers are no part of a Horovod checkpoint"


def test_of_a_damaged_version_the_driver_is_told_and_the_one_before_is_taken(parts: dict[str, Any]) -> None:
    altered = parts["altered"]
    assert altered["same"]
    assert altered["told"] == [{"op": "corrupt", "name": altered["name"], "text": "__0_0.distcp was altered"}]
    assert "cannot be read" in parts["lost"]["error"]


def test_checkpoints_of_horovod_and_of_torchrun_scripts_are_refused_by_each_other_in_a_line(
    parts: dict[str, Any],
) -> None:
    written = wording("elastic.loading.other_library", saved="{}")
    assert parts["kinds"]["ours"] == written.format("Horovod")
    assert parts["kinds"]["theirs"] == written.format("torchrun")


def test_a_script_that_ends_well_has_its_last_commit_written(parts: dict[str, Any]) -> None:
    ended = parts["ended"]
    assert (ended["shards"]["step"], ended["shards"]["samples"]) == (ended["state"], 6)
