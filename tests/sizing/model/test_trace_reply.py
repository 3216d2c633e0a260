"""A traced process may say anything: only what is a trace is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import SizingError, Untraceable, UsageError
from sizing.base.parallel import Parallel
from sizing.model import reply
from sizing.model.trace import CATEGORIES
from tests.support.messages import pattern

GOOD: dict[str, Any] = {
    "peak_bytes": 15,
    "by_category": dict(zip(CATEGORIES, (1, 2, 3, 4, 5), strict=True)),
    "parameters": 9,
    "operators": [["mm", 2, 100, 40, "fp16"], ["add", 1, 0, 8, ""]],
    "collectives": {"all_reduce": 36},
    "collective_calls": {"all_reduce": 2},
    "upper_bounds": 3,
    "torch": "2.13.0",
}


def read(said: object) -> Any:
    return reply.read(json.dumps(said).encode(), 8, Parallel(dp=2), "cuda", 1.5)


def test_a_trace_is_read() -> None:
    found = read(GOOD)
    assert (found.peak_bytes, found.flops, found.batch, found.trace_s) == (15, 100, 8, 1.5)
    assert [each.precision for each in found.operators] == ["fp16", ""]
    assert found.collectives == {"all_reduce": 36}
    assert found.collective_calls == {"all_reduce": 2}
    assert found.upper_bounds == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"peak_bytes": 16},
        {"peak_bytes": -15},
        {"peak_bytes": 15.0},
        {"peak_bytes": True},
        {"peak_bytes": 2**80},
        {"parameters": "9"},
        {"by_category": {"parameters": 15}},
        {"operators": [["mm", 2, 100]]},
        {"operators": [["mm", 2, -100, 40, ""]]},
        {"operators": [["mm", 2, 100, 40, 7]]},
        {"operators": {"mm": 3}},
        {"collectives": [1]},
        {"torch": "2" * 1000},
    ],
)
def test_what_is_no_trace_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Untraceable, match=pattern("sizing.reply.not_a_trace")):
        read({**GOOD, **wrong})


def test_a_reason_is_one_line_of_what_can_be_printed() -> None:
    with pytest.raises(Untraceable, match=r"^one two \[31mthree$"):
        read({"refused": "one\ntwo\x1b[31mthree", "usage": False})
    with pytest.raises(UsageError, match="no function"):
        read({"refused": "no function", "usage": True})


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_nothing_that_is_said_is_more_than_a_refusal(said: object) -> None:
    data = said if isinstance(said, bytes) else json.dumps(said).encode()
    with pytest.raises(SizingError):
        reply.read(data, 8, Parallel(), "cpu", 1.0)
