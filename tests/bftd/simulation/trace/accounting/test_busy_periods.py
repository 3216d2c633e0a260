"""The sweep from used to idle periods, against second-by-second counting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.simulation.trace.accounting import busy_periods
from bftd.simulation.trace.checks import check

# (node, start, end) in seconds, some of them before and beyond the trace
SPANS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-5, 25), st.integers(0, 12)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=12,
)
LENGTH = 20


def spans_of(rows: list[tuple[int, int, int]]) -> busy_periods.Spans:
    columns = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return busy_periods.Spans(columns[:, 0].astype(np.int32), columns[:, 1], columns[:, 2])


def lines(idle: busy_periods.Idle) -> list[str]:
    """One letter a second and node, # where it is idle."""
    shown = [[" "] * LENGTH for _ in range(3)]
    for time_s, node, joins in zip(idle.times_s.tolist(), idle.node.tolist(), idle.idle.tolist(), strict=True):
        shown[node][int(time_s) :] = ("#" if joins else " ") * (LENGTH - int(time_s))
    return ["".join(line) for line in shown]


@hypothesis_settings(deadline=None)
@given(SPANS)
def test_a_node_is_idle_in_the_seconds_in_which_nothing_has_it(rows: list[tuple[int, int, int]]) -> None:
    found = busy_periods.idle(spans_of(rows), 3, LENGTH)
    expected = [
        "".join(" " if any(n == node and a <= t < b for n, a, b in rows) else "#" for t in range(LENGTH))
        for node in range(3)
    ]
    assert lines(found) == expected
    check(("a", "b", "c"), found.times_s, found.node, found.idle, LENGTH, "the sweep")


@hypothesis_settings(deadline=None)
@given(SPANS, st.integers(1, 6))
def test_short_idle_periods_are_dropped_unless_the_trace_cuts_them(
    rows: list[tuple[int, int, int]], least: int
) -> None:
    whole, kept = (
        busy_periods.idle(spans_of(rows), 3, LENGTH),
        busy_periods.idle(spans_of(rows), 3, LENGTH, float(least)),
    )
    expected, dropped = [], 0
    for line in lines(whole):
        text = list(line)
        for piece in {(s, e) for s, e in _pieces(line) if s > 0 and e < LENGTH and e - s < least}:
            text[piece[0] : piece[1]] = " " * (piece[1] - piece[0])
            dropped += 1
        expected.append("".join(text))
    assert lines(kept) == expected
    assert kept.dropped == dropped


def _pieces(line: str) -> list[tuple[int, int]]:
    edges = [i for i in range(LENGTH + 1) if (line[i - 1 : i] or " ") != (line[i : i + 1] or " ")]
    return list(zip(edges[0::2], edges[1::2], strict=True))


@hypothesis_settings(deadline=None)
@given(SPANS)
def test_a_period_overlaps_when_another_of_its_node_has_begun_and_not_ended(rows: list[tuple[int, int, int]]) -> None:
    spans = spans_of(rows).within(LENGTH)
    cut = sorted(zip(spans.node.tolist(), spans.starts_s.tolist(), spans.ends_s.tolist(), strict=True))
    expected = sum(any(n == node and e > start for n, _, e in cut[:i]) for i, (node, start, _) in enumerate(cut))
    assert busy_periods.overlaps(spans) == expected
