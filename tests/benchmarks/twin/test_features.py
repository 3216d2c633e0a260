"""The simulated slurmctld reproduces recordings of single features, and not where it leaves the feature out."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.twin import features
from benchmarks.twin.features import FEATURES, RECORDINGS, FeatureRecording, drawn, likeness
from benchmarks.twin.recorder import phases

FILES = sorted(RECORDINGS.glob("*.jsonl"))
COURSES = 3
# The shares of starts within a cycle, and of equal nodes, that the nearest of a few courses keeps.
HELD = {
    "dependencies-22.05.8-11": (0.96, 0.96),
    "dependencies-24.11.5-11": (0.73, 0.26),
    "epilog-22.05.8-12": (0.96, 0.96),
    "epilog-22.05.8-4": (0.39, 0.56),
    "fair-share-22.05.8-2": (0.96, 0.96),
    "limits-22.05.8-2": (0.96, 0.79),
    "outages-22.05.8-2": (0.96, 0.85),
    "over-time-limit-22.05.8-5": (0.96, 0.96),
    "partitions-22.05.8-12": (0.94, 0.73),
    "plain-24.11.5-2": (0.96, 0.96),
    "priority-22.05.8-7": (0.88, 0.94),
    "reservations-22.05.8-7": (0.96, 0.96),
    "topology-22.05.8-4": (0.96, 0.96),
    "topology-24.11.5-4": (0.96, 0.96),
}


def test_every_feature_has_a_recording_and_every_recording_a_figure() -> None:
    assert {FeatureRecording.load(file).feature for file in FILES} == FEATURES.keys()
    assert {file.stem for file in FILES} == HELD.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_jobs_start_when_and_where_slurm_started_them_with_the_feature_only(file: Path) -> None:
    recording = FeatureRecording.load(file)
    found = likeness(recording, COURSES)
    within_cycle, same_nodes = HELD[recording.name]
    assert found.with_it.nearest_within_cycle >= within_cycle
    assert found.with_it.nearest_same_nodes >= same_nodes
    if recording.feature != "plain":
        off = found.without_it
        assert off.nearest_within_cycle < within_cycle - 0.1 or off.nearest_same_nodes < same_nodes - 0.1


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    jobs = tuple(drawn(FEATURES["limits"], 3))
    written = FeatureRecording("limits", "22.05.8", 3, 1.8e9, 1.5, 2.5, 40.25, 12.0, jobs)
    assert FeatureRecording.load(written.write(tmp_path / "new")) == written


@pytest.mark.parametrize("text", ["", "{}", '{"feature": "plain"}\n[]', "no JSON"])
def test_another_file_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text(text)
    monkeypatch.setattr("sys.argv", ["features", str(file)])
    assert features.main() == 1
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("form", [json.loads, str.splitlines])
def test_the_program_compares_the_named_files(
    form: Callable[[str], list[object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_json = ["--json"] if form is json.loads else []
    monkeypatch.setattr("sys.argv", ["features", "--courses", "1", *as_json, str(FILES[0])])
    assert features.main() == 0
    assert len(form(capsys.readouterr().out)) == (1 if as_json else 3)


def test_the_controllers_log_tells_when_its_regular_acts_come_first() -> None:
    said = "\n".join(
        f"[2027-01-15T08:00:{second}] {what}"
        for second, what in (
            ("01.000", "sched/backfill: _attempt_backfill: beginning"),
            ("02.000", "debug:  sched: Running job scheduler for full queue."),
            ("06.250", "sched/backfill: _attempt_backfill: beginning"),
            ("07.000", "debug:  sched: Running job scheduler for default depth."),
            ("09.500", "debug2: Testing job time limits and checkpoints"),
            ("12.125", "debug:  sched: Running job scheduler for full queue."),
        )
    )
    begin_s = datetime.fromisoformat("2027-01-15T08:00:05").timestamp()
    assert phases(said, begin_s) == (1.25, 2.0, 7.125, 4.5)
