"""The pictures of the live screen: right in width and shape, whatever the numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.base.view import NODE_STATES
from bftd.client import NodeGroup, Status, Trainer
from bftd.ui.live import charts, node_groups, panels
from bftd.ui.live.glyphs import ASCII, UNICODE, Glyphs, suited
from tests.support.messages import wording

RATES = st.floats(min_value=0.0, max_value=1e12)
POINTS = st.lists(st.tuples(st.integers(0, 5000), RATES | st.just(math.nan)), max_size=8)


@given(st.dictionaries(st.sampled_from(NODE_STATES), st.integers(0, 10_000)), st.integers(0, 300))
def test_a_bar_is_as_wide_as_it_may_be_and_shows_each_state_that_has_a_node(counts: dict[str, int], width: int) -> None:
    found = dict(charts.parts(counts, width))
    there = {state for state, count in counts.items() if count}
    if not there or width < len(there):
        assert found == {}
        return
    assert sum(found.values()) == width
    assert found.keys() == there
    assert all(found.values())


def test_a_bar_divides_as_the_nodes_do() -> None:
    assert charts.parts({"regular": 75, "leased": 20, "idle": 5}, 40) == [("regular", 30), ("leased", 8), ("idle", 2)]
    assert charts.parts({"regular": 5000, "idle": 1}, 10) == [("regular", 9), ("idle", 1)]


@given(POINTS, POINTS, st.integers(0, 600), st.tuples(st.integers(0, 120), st.integers(0, 30)), st.integers(0, 600))
def test_a_curve_fits_its_size(
    estimate: list[tuple[int, float]], measured: list[tuple[int, float]], now: int, size: tuple[int, int], high: int
) -> None:
    for glyphs in (UNICODE, ASCII):
        lines = charts.curve(estimate, measured, now, size, glyphs, high)
        assert lines == [] or len(lines) == size[1]
        assert all(len(line) <= size[0] for line in lines)
        assert not glyphs.plain or all(line.isascii() for line in lines)


def test_a_curve_marks_what_was_measured_and_where_it_is_now() -> None:
    lines = charts.curve([(1, 100.0), (8, 500.0)], [(2, 180.0), (4, 320.0)], 4, (40, 10), UNICODE)
    picture = "\n".join(lines)
    assert picture.count(UNICODE.current) == 1
    assert picture.count(UNICODE.measured) == 1
    assert lines[0].startswith("500│")
    assert lines[0].rstrip().endswith(UNICODE.estimate)
    assert lines[-1].split() == ["1", "4", "8"]
    at = next(line.index(UNICODE.current) for line in lines if UNICODE.current in line)
    assert lines[-1][at] == "4"


@given(st.lists(st.tuples(st.floats(0, 7200), st.floats(0, 5000)), max_size=50), st.integers(0, 120))
def test_sizes_over_time_fit_their_width(sizes: list[tuple[float, float]], width: int) -> None:
    assert len(charts.spark(sizes, 3600.0, 7200.0, width, ASCII)) == width


def test_sizes_over_time_leave_a_gap_where_nobody_looked() -> None:
    line = charts.spark([(0.0, 1.0), (60.0, 4.0), (3000.0, 2.0)], 0.0, 3600.0, 60, UNICODE)
    assert line[:2] == f"{UNICODE.levels[2]}{UNICODE.levels[-1]}"
    assert line[10:49].strip() == ""
    assert line[50] in UNICODE.levels
    assert line[53:].strip() == ""


@pytest.mark.parametrize(
    ("encoding", "term", "glyphs"),
    [("utf-8", "xterm-256color", UNICODE), ("UTF8", "screen", UNICODE), ("utf-8", "linux", ASCII),
     ("ascii", "xterm", ASCII), ("iso-8859-1", "xterm", ASCII), (None, "xterm", ASCII), ("no such", "xterm", ASCII)],
)  # fmt: skip
def test_a_terminal_gets_the_characters_that_it_has(encoding: str | None, term: str, glyphs: Glyphs) -> None:
    assert suited(encoding, term) is glyphs


def test_states_of_nodes_are_told_apart_without_colour() -> None:
    for glyphs in (UNICODE, ASCII):
        assert len(set(glyphs.states.values())) == len(NODE_STATES)


@pytest.mark.parametrize(
    ("group", "state"),
    [(NodeGroup("n1", in_pool=True), "idle"), (NodeGroup("n1", trainer="7", lease_state="working"), "leased"),
     (NodeGroup("n1", why="runs a job"), "regular"),
     (NodeGroup("n1", why=wording("pool.judgement.planned", by="job 7", window_s=3)), "planned"),
     (NodeGroup("n1", why="is draining: disk"), "away"), (NodeGroup("n1", kind="regular", in_pool=True), "regular"),
     (NodeGroup("n1", kind="a kind of tomorrow"), "away")],
)  # fmt: skip
def test_a_daemon_of_before_does_not_say_what_nodes_are(group: NodeGroup, state: str) -> None:
    assert node_groups.state_of(group) == state
    assert node_groups.counts(Status(groups=(group, group)))[state] == 2


@given(st.builds(Trainer, name=st.text(), user=st.text(), samples_per_s=RATES, expected_end_s=st.none() | RATES))
def test_every_part_can_be_made_of_every_trainer(trainer: Trainer) -> None:
    status = Status(trainers=(trainer,), snapshot_age_s=None)
    for text in (
        panels.headline(status),
        panels.facts(trainer, [(0.0, 3.0)], 100.0, 40, ASCII),
        panels.curve(trainer, None, (40, 8), ASCII),
        panels.decisions((), 5),
    ):
        assert all(letter.isprintable() or letter == "\n" for letter in text.plain)


@pytest.mark.parametrize("times", [1, 3])
def test_regression_at_80_columns_the_last_states_of_a_large_machine_were_cut_off(times: int) -> None:
    counts = {"regular": 3909, "planned": 166, "leased": 698, "idle": 102, "away": 125}
    groups = tuple(NodeGroup(count=times * count, kind=kind) for kind, count in counts.items())
    for glyphs in (UNICODE, ASCII):
        line = panels.legend(Status(groups=groups), 78, glyphs)
        assert line.cell_len <= 78
        assert line.plain.endswith(f"{times * 125} away")
