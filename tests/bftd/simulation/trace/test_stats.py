"""The statistics of a trace: by hand, against a naive computation, and against what BFTrainer prints for Summit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from bftd.simulation.trace import Trace, TraceError, read
from bftd.simulation.trace.stats import PERCENTILES, fragments, stats
from tests.bftd.simulation.trace.making import SUMMIT, needs_summit, periods, trace_of
from tests.support.messages import pattern


def test_a_trace_small_enough_to_count_by_hand() -> None:
    """2 nodes are idle at first, one leaves and one joins at 900 s, one joins at 1800 s, all leave at 2700 s."""
    trace = trace_of({"a": [(0, 900)], "b": [(0, 2700)], "c": [(900, 2700)], "d": [(1800, 2700)], "e": []}, 3600.0)
    found = stats(trace)
    assert (found.events, found.inc_per_h, found.dec_per_h) == (3, 1, 1)
    assert (found.joined_per_h, found.left_per_h) == (2, 2)
    assert found.node_hours == pytest.approx((2 * 900 + 2 * 900 + 3 * 900) / 3600)
    assert found.eq_nodes == pytest.approx(1.75)
    assert found.ratio == pytest.approx(1.75 / 5)
    assert (found.idle_nodes_min, found.idle_nodes_max) == (0, 3)
    assert (found.fragments.count, found.fragments.cut) == (4, 2)
    assert found.fragments.mean_s == pytest.approx((900 + 2700 + 1800 + 900) / 4)
    assert found.fragments.percentiles_s["p50"] == pytest.approx(1350)
    assert {limit_s: (share, time) for limit_s, share, time in found.fragments.shorter}[1800] == (
        0.5,
        pytest.approx(1800 / 6300),
    )


def naive(trace: Trace, duration: int) -> dict[str, float]:
    """Everything second by eighth of a second, from the periods of each node."""
    units = 8
    lines: dict[str, list[bool]] = {name: [] for name in trace.nodes}
    idle: set[str] = set()
    changes = {round(change.time_s * units): change for change in trace.changes()}
    up = down = joined = left = events = 0
    for tick in range(duration * units + 1):
        if change := changes.get(tick):
            before = len(idle)
            idle = (idle | set(change.joined)) - set(change.left)
            if tick:
                events += 1
                up += len(idle) > before
                down += len(idle) < before
                joined += bool(change.joined)
                left += bool(change.left)
        if tick < duration * units:
            for name in trace.nodes:
                lines[name].append(name in idle)
    pieces = []
    for line in lines.values():
        text = "".join("#" if is_idle else " " for is_idle in line)
        pieces += [len(piece) / units for piece in text.split()]
    total = sum(sum(line) for line in lines.values()) / units
    return {
        "events": events, "up": up, "down": down, "joined": joined, "left": left, "node_s": total,
        "pieces": sorted(pieces), "most": max(map(sum, zip(*lines.values(), strict=True))),
        "least": min(map(sum, zip(*lines.values(), strict=True))),
    }  # fmt: skip


@hypothesis_settings(deadline=None)
@given(periods(duration=20))
def test_the_statistics_are_those_of_a_naive_computation(idle: dict[str, list[tuple[float, float]]]) -> None:
    trace = trace_of(idle, 20.0)
    found, expected = stats(trace), naive(trace, 20)
    hours = 20 / 3600
    assert found.events == expected["events"]
    for value, count in (
        (found.inc_per_h, "up"),
        (found.dec_per_h, "down"),
        (found.joined_per_h, "joined"),
        (found.left_per_h, "left"),
    ):
        assert value * hours == pytest.approx(expected[count])
    assert found.node_hours * 3600 == pytest.approx(expected["node_s"])
    assert found.ratio == pytest.approx(expected["node_s"] / 20 / len(trace.nodes))
    assert (found.idle_nodes_min, found.idle_nodes_max) == (expected["least"], expected["most"])
    lengths_s, _ = fragments(trace)
    assert sorted(length_s for length_s in lengths_s.tolist() if length_s) == pytest.approx(expected["pieces"])


def test_fragments_that_the_trace_cuts_are_counted() -> None:
    lengths_s, cut = fragments(trace_of({"a": [(0, 4), (5, 6)], "b": [(1, 99)], "c": [(2, 10)]}, 10.0))
    assert list(zip(lengths_s.tolist(), cut.tolist(), strict=True)) == [(4, True), (1, False), (9, True), (8, False)]


def test_the_statistics_are_plain_json() -> None:
    found = stats(trace_of({"a": [(0, 4)]}, 10.0)).to_json()
    assert json.loads(json.dumps(found))["fragments"]["percentiles_s"].keys() == {f"p{rank}" for rank in PERCENTILES}


def test_a_trace_in_which_nothing_is_idle_has_no_statistics() -> None:
    with pytest.raises(TraceError, match=pattern("whatif.stats.never_idle")):
        stats(trace_of({"a": []}, 10.0))


@needs_summit
def test_the_week_of_summit_is_like_the_months_that_the_paper_describes() -> None:
    """Table 1 is of two months, section 2.1 of two weeks, ours the first of them: alike, not equal."""
    found = stats(read(SUMMIT))
    assert found.inc_per_h == pytest.approx(41.7, rel=0.05)  # 40.5
    assert found.dec_per_h == pytest.approx(28.6, rel=0.05)  # 28.9
    assert found.joined_per_h == pytest.approx(42, rel=0.05)  # 43.8
    assert found.left_per_h == pytest.approx(31, rel=0.05)  # 32.5
    assert found.events_per_h == pytest.approx(68, rel=0.05)  # 70.4
    assert found.eq_nodes == pytest.approx(407, rel=0.05)  # 395.3
    assert found.ratio == pytest.approx(0.086, rel=0.05)  # 8.3 %
    below = {limit_s: (share, time_share) for limit_s, share, time_share in found.fragments.shorter}
    assert below[600] == (pytest.approx(0.58, abs=0.01), pytest.approx(0.10, abs=0.03))  # 58.4 % and 12.1 %
