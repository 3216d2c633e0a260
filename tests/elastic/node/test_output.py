"""What workers print, as lines for the trainer's log, in simulated time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.timing import BAR_S, OUT_BURST_BYTES, OUT_BYTES_S
from elastic.node.output import LineSplitter, OutputAllowance

pytestmark = pytest.mark.slow


def fed(*pieces: bytes, at_s: float = 0.0) -> list[str]:
    """All lines of some output that comes at one moment and ends."""
    lines = LineSplitter()
    return [line for piece in pieces for line in lines.feed(piece, at_s)] + lines.end()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((b"a\nb\n",), ["a", "b"]),
        ((b"a", b"b\n", b"c"), ["ab", "c"]),
        ((b"\n\na\n",), ["", "", "a"]),
        ((b"a\r\nb\r\n",), ["a", "b"]),
        ((b"a\r", b"\nb\r\n\r\n"), ["a", "b", ""]),
        (("é".encode()[:1], "é".encode()[1:] + b"\n"), ["é"]),
        ((b"\xff\xfe\n",), ["\ufffd\ufffd"]),
        ((b"\xc3",), ["\ufffd"]),
        ((), []),
    ],
)
def test_output_is_cut_at_its_line_ends_however_it_comes(pieces: tuple[bytes, ...], expected: list[str]) -> None:
    assert fed(*pieces) == expected


def bar(lines: LineSplitter, updates: int, every_s: float, at_s: float = 100.0) -> list[tuple[float, str]]:
    """What is shown of a progress bar as tqdm draws it, looked at as the agent does."""
    shown = []
    for update in range(updates + 1):
        now_s = at_s + update * every_s
        if lines.due_s is not None and lines.due_s < now_s:
            looked_s = max(lines.due_s, now_s - every_s)
            shown += [(looked_s, line) for line in lines.flush(looked_s)]
        shown += [(now_s, line) for line in lines.feed(f"\r{update}%|#".encode(), now_s)]
    return shown


def test_progress_bars_are_not_held_until_they_are_64_KiB_and_then_dropped() -> None:
    lines = LineSplitter()
    shown = bar(lines, updates=100, every_s=0.1)
    assert 9 <= len(shown) <= 12
    assert all(later - sooner >= BAR_S - 1e-6 for (sooner, _), (later, _) in pairwise(shown))
    assert lines.feed(b"\r100%|##\n", 111.0)[-1] == "100%|##"
    assert lines.due_s is None


def test_the_last_state_of_a_bar_that_stands_still_is_shown_once_though_no_line_ends() -> None:
    lines = LineSplitter()
    assert len(bar(lines, updates=5, every_s=0.01)) == 1
    assert lines.due_s == pytest.approx(100.0 + BAR_S, abs=0.1)
    assert lines.flush(lines.due_s) == ["5%|#"]
    assert lines.due_s is None
    assert lines.feed(b"\n", 102.0) == []
    assert lines.end() == []


@pytest.mark.parametrize("tail", [b"", b"\r", b"\r          \r", b"\n", b"\r          \r\n"])
def test_the_last_state_of_a_bar_is_shown_however_it_ends(tail: bytes) -> None:
    lines = LineSplitter()
    shown = [line for _, line in bar(lines, updates=5, every_s=0.01)]
    assert (shown + lines.feed(tail, 100.06) + lines.end())[-1] == "5%|#"


def test_regression_of_a_bar_below_another_one_every_state_was_a_line() -> None:
    lines, shown = LineSplitter(), []
    for update in range(100):
        if update % 50 == 0:
            shown += lines.feed(f"\repoch {update // 50}".encode(), 0.1 * update)
        # As tqdm draws the second of two bars; what is cut in two comes in two pieces.
        drawn = f"\n\rbatch {update}\x1b[A".encode()
        shown += lines.feed(drawn[:-2], 0.1 * update) + lines.feed(drawn[-2:], 0.1 * update)
    shown += lines.feed(b"\n\r        \r\x1b[A\repoch 2\nloss 3\n", 10.0) + lines.end()
    assert 8 <= len(shown) <= 16
    assert shown[-2:] == ["epoch 2", "loss 3"]
    assert {"epoch 0", "epoch 1"} <= set(shown)
    assert not any("\x1b" in line for line in shown)


def test_a_line_after_a_bar_is_a_line() -> None:
    assert fed(b"\r1%\r2%\nepoch 1\nepoch 2\n")[-3:] == ["2%", "epoch 1", "epoch 2"]


def test_a_line_longer_than_64_KiB_comes_in_pieces_instead_of_being_dropped() -> None:
    pieces = fed(b"x" * 300_000 + b"\nafter\n")
    assert "".join(pieces) == "x" * 300_000 + "after"
    assert max(map(len, pieces)) <= 64 * 1024
    assert pieces[-1] == "after"
    # the same where no line ever ends, while it comes
    assert LineSplitter().feed(b"x" * 300_000, 0.0)


@given(st.lists(st.binary(max_size=40), max_size=20), st.floats(0, 3))
def test_of_output_without_carriage_returns_nothing_is_lost_or_made_up(pieces: list[bytes], every_s: float) -> None:
    pieces = [piece.replace(b"\r", b"") for piece in pieces]
    lines = LineSplitter()
    said = [line for number, piece in enumerate(pieces) for line in lines.feed(piece, number * every_s)]
    text = b"".join(pieces).decode(errors="replace")
    assert "\n".join(said + lines.end()) == text.removesuffix("\n")


@given(st.lists(st.text("ab \r\n", max_size=12), max_size=20))
def test_a_line_that_a_line_feed_ends_is_never_thinned_out(pieces: list[str]) -> None:
    lines = LineSplitter()
    said = [line for piece in pieces for line in lines.feed(piece.encode(), 0.0)] + lines.end()
    for line in "".join(pieces).split("\n")[:-1]:
        last = line.rpartition("\r")[2]
        if last.strip():
            assert last in said


def test_a_script_that_prints_without_end_is_held_to_what_the_driver_can_take() -> None:
    allowance, now_s, lines = OutputAllowance(), 0.0, 0
    while now_s < 60:
        now_s += allowance.take("y", now_s)
        now_s += 1e-6
        lines += 1
    assert lines * 512 <= OUT_BURST_BYTES + 61 * OUT_BYTES_S
    assert lines > 10_000


def test_a_moment_of_much_output_waits_for_nothing() -> None:
    allowance = OutputAllowance()
    assert all(allowance.take("x" * 80, 5.0) == 0 for _ in range(5000))
    assert all(allowance.take("x" * 80, 20.0) == 0 for _ in range(5000))
