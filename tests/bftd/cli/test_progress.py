"""What a command that takes a while says where there is no terminal."""

from __future__ import annotations

import time

import pytest

from bftd.cli import progress


@pytest.mark.parametrize(
    ("after_s", "lines", "said"), [(0.0, True, ["bft: tracing: 25 %"]), (60.0, True, []), (0.0, False, [])]
)
def test_a_line_comes_where_it_is_asked_for_and_only_after_a_while(
    after_s: float, lines: bool, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PRINTED_AFTER_S", after_s)
    with progress.progress_bar("tracing", lines=lines) as tell:
        tell(0.25)
        tell(0.5)
    assert capsys.readouterr().err.splitlines() == said


def test_a_piece_of_work_has_its_own_bar_from_its_beginning_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PRINTED_AFTER_S", 0.0)
    with progress.progress_bars() as tell:
        for name, part in (("tracing", 0.0), ("tracing", 0.5), ("tracing", 1.0), ("reading", 0.25), ("reading", 1.0)):
            tell(name, part)
        tell("tracing", 0.75)  # anew, and never ended
    assert capsys.readouterr().err.splitlines() == [
        "bft: tracing: 0 s so far",
        "bft: reading: 25 %",
        "bft: tracing: 75 %",
    ]


def test_work_that_does_not_say_how_far_it_is_shows_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PRINTED_AFTER_S", 0.0)

    def work() -> int:
        time.sleep(0.3)
        return 7

    assert progress.meanwhile("tracing", work) == 7
    assert capsys.readouterr().err.splitlines() == ["bft: tracing: 0 s so far"]
    with pytest.raises(ZeroDivisionError):
        progress.meanwhile("tracing", lambda: 1 // 0)
