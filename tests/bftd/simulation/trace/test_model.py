"""Traces in memory: changes, and parts of a trace."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.simulation.trace import Change, TraceError, read, write
from tests.bftd.simulation.trace.making import SUMMIT, needs_summit, periods, trace_of
from tests.support.messages import excerpt, fragment, pattern, wording

PERIODS = {"n1": [(0.0, 4.0), (6.0, 99.0)], "n2": [(4.0, 6.0)], "n3": [], "n4": [(0.0, 99.0)]}


def test_all_that_happens_at_one_time_is_one_change() -> None:
    assert list(trace_of(PERIODS, 10.0).changes()) == [
        Change(0.0, ("n1", "n4"), ()),
        Change(4.0, ("n2",), ("n1",)),
        Change(6.0, ("n1",), ("n2",)),
    ]


def test_a_trace_in_which_nothing_is_idle_has_no_change() -> None:
    assert list(trace_of({"n1": []}, 10.0).changes()) == []


@hypothesis_settings(deadline=None)
@given(periods(), st.data())
def test_selected_nodes_change_as_they_do_in_the_whole(
    idle: dict[str, list[tuple[float, float]]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(idle)), min_size=1, unique=True))
    trace = trace_of(idle, 60.0)
    part = trace.select(chosen)
    assert part.nodes == tuple(name for name in trace.nodes if name in chosen)
    expected = [
        Change(
            change.time_s,
            tuple(name for name in change.joined if name in chosen),
            tuple(name for name in change.left if name in chosen),
        )
        for change in trace.changes()
    ]
    assert list(part.changes()) == [change for change in expected if change.joined or change.left]
    assert part.duration_s == trace.duration_s


@hypothesis_settings(deadline=None)
@given(periods(), st.integers(1, 80))
def test_the_first_hours_hold_the_changes_before_their_end(
    idle: dict[str, list[tuple[float, float]]], seconds: int
) -> None:
    trace = trace_of(idle, 60.0)
    part = trace.first(seconds / 3600)
    assert part.duration_s == pytest.approx(min(60, seconds))
    if seconds < 60:
        assert list(part.changes()) == [change for change in trace.changes() if change.time_s < part.duration_s]
    else:
        assert part is trace


def test_nodes_are_selected_by_name_node_set_or_range_of_numbers() -> None:
    numbered = trace_of({str(number): [(0.0, 5.0)] for number in range(20)}, 10.0)
    assert numbered.select("0-3,7").nodes == ("0", "1", "2", "3", "7")
    assert numbered.select(["7", "3"]).nodes == ("3", "7")
    named = trace_of(PERIODS, 10.0)
    assert named.select("n[1-2,4]").nodes == ("n1", "n2", "n4")
    assert named.select("n3").nodes == ("n3",)


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        (
            "n[1-9]",
            wording("whatif.model.unknown_nodes", unknown="n5, n6, n7 and 2 more", nodes="n1, n2, n3 and 1 more"),
        ),
        ("0-3", excerpt("whatif.model.unknown_nodes", unknown=fragment("0, 1, 2 and 1 more"))),
        ("n[1-", excerpt("slurm_plugin.nodeset.not_a_node_set")),
        ("3-1", wording("whatif.names.not_a_range", part="3-1")),
        ("0-99999999999", excerpt("whatif.names.not_a_range")),
        ("", excerpt("whatif.model.no_node_selected")),
        ([], excerpt("whatif.model.no_node_selected")),
    ],
)
def test_nodes_that_are_not_there_cannot_be_selected(nodes: str | list[str], complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace_of(PERIODS, 10.0).select(nodes)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan"), float("inf")])
def test_hours_that_are_none_are_refused(hours: float) -> None:
    with pytest.raises(TraceError, match=pattern("whatif.model.hours_not_above_zero")):
        trace_of(PERIODS, 10.0).first(hours)


def test_parts_of_a_trace_keep_the_digest_of_its_file(tmp_path: Path) -> None:
    write(trace_of(PERIODS, 7200.0), tmp_path / "t.csv.gz")
    trace = read(tmp_path / "t.csv.gz")
    assert trace.digest() == hashlib.sha256((tmp_path / "t.csv.gz").read_bytes()).hexdigest()
    assert trace.select("n1").first(1).digest() == trace.digest()


@needs_summit
def test_the_subset_of_the_paper_can_be_cut_from_the_week_of_summit() -> None:
    part = read(SUMMIT).select("0-1023").first(24)
    assert (len(part.nodes), part.duration_s) == (1024, 86400)
    assert sum(len(change.joined) + len(change.left) for change in part.changes()) == len(part.times_s) > 0
