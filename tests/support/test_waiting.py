"""A wait ends by what is waited for or by standstill, and by no clock besides."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.support import waiting


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, to which each poll adds ten minutes."""
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 600.0

    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", sleep)
    return now


def test_what_moves_is_waited_for_however_long_it_takes(clock: list[float]) -> None:
    steps = count()
    answers = iter([None] * 50 + ["there"])
    assert waiting.until("an answer", lambda: next(answers), lambda: next(steps)) == "there"
    assert clock == [50 * 600.0]


@pytest.mark.usefixtures("clock")
def test_what_stands_still_fails_with_its_name_where_it_stands_and_what_else_is_known() -> None:
    steps = iter([1, 2, 3] + [3] * 10)
    with pytest.raises(AssertionError) as failed:
        waiting.until("step 4", lambda: False, lambda: next(steps), lambda: "its log")
    assert all(part in str(failed.value) for part in ("step 4", "3", "its log"))
    assert list(steps), "it was given up before they were over"


def test_only_logs_and_what_scripts_write_tell_that_something_moves(tmp_path: Path) -> None:
    sizes = waiting.written(tmp_path, tmp_path / "nowhere")
    (tmp_path / "log").mkdir()
    for name in ("log/slurmctld.log", "out", "seen.0", "steps.jsonl", "ledger.sqlite", "state"):
        (tmp_path / name).write_text("1")
    assert {Path(path).name for path in sizes()} == {"slurmctld.log", "out", "seen.0", "steps.jsonl"}
    before = sizes()
    (tmp_path / "ledger.sqlite").write_text("12")
    assert sizes() == before
    (tmp_path / "out").write_text("12")
    assert sizes() != before


@pytest.mark.usefixtures("clock")
def test_a_log_that_is_not_there_yet_tells_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(AssertionError, match="a line: nothing has moved for 120 s, it stands at None"):
        waiting.until("a line", lambda: False, log.read_text, log.read_text)
