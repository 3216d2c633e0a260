"""The faults themselves: each kind comes, and what is drawn is what the parsers get."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import contents, documents, texts, values

FOUND = settings(phases=[Phase.generate], max_examples=3000)
SAMPLE = "NodeName=n1 State=IDLE\nNodeName=n2 State=DOWN\n"


def comes(strategy: st.SearchStrategy[Any], wanted: Callable[[Any], bool]) -> bool:
    """Whether such a one is drawn."""
    return wanted(find(strategy, wanted, settings=FOUND))


def test_lines_are_lost_doubled_and_cut_and_words_become_others() -> None:
    strategy = texts([SAMPLE])
    assert comes(strategy, lambda text: text == "NodeName=n1 State=IDLE\n")
    assert comes(strategy, lambda text: text.count("n2") == 2)
    assert comes(strategy, lambda text: text.endswith("DO"))
    assert comes(strategy, lambda text: "State=\n" in text)
    assert comes(strategy, lambda text: "9" * 400 in text)


def test_bytes_are_flipped_lost_and_overwritten() -> None:
    strategy = contents([bytes(range(64))])
    assert comes(strategy, lambda data: len(data) < 64)
    assert comes(strategy, lambda data: len(data) == 64 and data != bytes(range(64)))
    assert comes(strategy, lambda data: data == b"")


@given(values([{"a": [1, {"b": 2.0}], "c": "d"}]))
def test_values_can_be_written_as_json(value: object) -> None:
    json.dumps(value)


def test_documents_are_deep_or_have_odd_values() -> None:
    strategy = documents([{"a": [1, {"b": 2.0}], "c": "d"}])
    assert comes(strategy, lambda text: "NaN" in text or len(text) > 90_000)
