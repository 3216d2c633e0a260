"""Stored results are read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bftd.base.errors import UsageError
from bftd.simulation.report.stored import read
from tests.bftd.simulation.report.making import SITE, advice, result
from tests.support.messages import fragment, pattern

pytestmark = pytest.mark.slow


def _file(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "r.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_replay_is_read_with_what_it_was_made_of(tmp_path: Path) -> None:
    stored = read(_file(tmp_path, result()))
    assert stored.name == SITE
    assert stored.key == ("ab" * 32, 16, None, "cd" * 32)
    assert stored.replayed is not None
    assert stored.replayed.efficiency == 0.8


def test_an_advice_gives_points_and_what_to_expect(tmp_path: Path) -> None:
    stored = read(_file(tmp_path, advice()))
    assert [(point.pj_max, point.t_fwd_s, point.efficiency) for point in stored.points] == [
        (5, 120.0, 0.6),
        (10, 10.0, 0.55),
        (10, 120.0, 0.7),
    ]
    assert stored.expected is not None
    assert (stored.expected.pj_max, stored.expected.low, stored.expected.high) == (5, 450.0, 560.0)


def test_an_advice_of_a_short_trace_has_no_bounds(tmp_path: Path) -> None:
    data = advice()
    data["expected"] |= {"low": None, "high": None, "confidence": None}
    stored = read(_file(tmp_path, data))
    assert stored.expected is not None
    assert stored.expected.low is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("run"), pattern("whatif.stored.anew", fault=fragment("r.json: run"))),
        (lambda data: data.update(efficiency=None), pattern("protocol.fields.missing", name="efficiency")),
        (
            lambda data: data.update(efficiency=float("nan")),
            pattern("protocol.fields.wrong", name="efficiency", shown=fragment("nan")),
        ),
        (lambda data: data.update(node_hours=0), pattern("whatif.stored.nothing_idle")),
        (
            lambda data: data.update(preemptions="12"),
            pattern("protocol.fields.wrong", name="preemptions", shown=fragment("12")),
        ),
        (lambda data: data.update(series=[1]), pattern("protocol.fields.not_an_object", where="each of series")),
        (lambda data: data["series"][0].pop("start_s"), pattern("protocol.fields.missing", name="start_s")),
        (
            lambda data: data["run"]["arguments"].update(policy="magic"),
            pattern("protocol.fields.wrong", name="policy", shown="'magic'"),
        ),
        (
            lambda data: data["run"]["arguments"].update(mends=3),
            pattern("protocol.fields.not_an_object", where=fragment("mends")),
        ),
        (
            lambda data: data["run"]["inputs"]["trace"].update(nodes=0),
            "nodes must be 1 or more, not 0",
        ),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: Any, message: str) -> None:
    data = result()
    change(data)
    path = _file(tmp_path, data)
    with pytest.raises(UsageError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[1]", "holds no result"), ('{"nodes": 3}', "holds no result"), ("[" * 10**5, "too deeply")],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(_file(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        read(tmp_path / "none.json")
