"""Histories as JSON, and their logs side by side."""

from __future__ import annotations

import json

import pytest

from bftd.simulation.world.faults import history
from bftd.simulation.world.faults.kinds import Fault
from bftd.simulation.world.world import WorldSettings

LOG = [
    "000000.000000 world: bftd starts",
    "000003.500000 bftd: INFO trainer 1 starts",
    "003723.250000 driver 1: first line\nand the second",
    "003723.250000 driver 2: says: much",
    "003724.000000 fault: n1 is cut off",
]


@pytest.mark.parametrize(
    "settings",
    [
        WorldSettings(7),
        WorldSettings(7, hours=0.5, faults=("daemon",), apart_s=60.0, workload="summit"),
        WorldSettings(7, nodes=2, history=(Fault(1.5, "agent", 9),), jobs=(1, 4)),
    ],
)
def test_settings_come_back_from_their_json(settings: WorldSettings) -> None:
    text = json.dumps(history.to_json(settings))
    assert history.of_json(text) == settings
    assert history.of_json(json.dumps({"events": 3, "shortest": json.loads(text)})) == settings


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"seed": "1"}',
        '{"seed": 1, "colour": 2}',
        '{"seed": 1, "history": [[1, "unheard of", 2]]}',
        '{"seed": 1, "history": [3]}',
        '{"seed": 1, "workload": "none"}',
    ],
)
def test_what_is_no_history_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        history.of_json(text)


@pytest.mark.parametrize("width", [20, 60, 80, 120, 300])
def test_each_program_has_a_column_as_long_as_they_fit(width: int) -> None:
    rows = list(history.side_by_side(LOG, width))
    assert all(len(row) <= max(width, 39) for row in rows)
    text = " ".join(" ".join(row.replace("|", " ").split()) for row in rows)
    for words in ("bftd starts", "second", "much", "cut off", "1:02:03.250"):
        assert words in text


def test_a_line_stands_in_the_column_of_its_program() -> None:
    rows = [row.split(" | ") for row in history.side_by_side(LOG, 200)]
    heads = [cell.strip() for cell in rows[0]]
    assert heads[2:] == ["bftd", "driver 1", "driver 2"]
    (said,) = [row for row in rows if "says: much" in row[-1]]
    assert [cell.strip() for cell in said[:-1]] == ["1:02:03.250", "", "", ""]


def test_programs_that_fit_no_more_share_the_last_column_and_are_named_there() -> None:
    rows = [row.split(" | ") for row in history.side_by_side(LOG, 70)]
    assert any("driver 2: says:" in row[-1] for row in rows)
    assert any("driver 1: first" in row[-1] for row in rows)
