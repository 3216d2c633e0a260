"""`bft usage` and the times that it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from click.testing import CliRunner

from bftd import api_client
from bftd.cli import times
from bftd.cli.main import bft
from tests.support.messages import excerpt, wording

NOW_S = datetime(2026, 11, 22, 14, 30, 15).timestamp()
TOLD = {
    "since_s": NOW_S - 3600,
    "until_s": NOW_S,
    "first_s": NOW_S - 1800,
    "usage": [
        {
            "user": "ann",
            "account": "phys",
            "used_node_seconds": 7200.0,
            "training_node_seconds": 3600.0,
            "leaving_node_seconds": 36.0,
        },
        {
            "user": "bob",
            "account": "",
            "used_node_seconds": 1800.0,
            "training_node_seconds": 0.0,
            "leaving_node_seconds": 0.0,
        },
    ],
}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-01", datetime(2026, 11, 1)),
        ("2026-11-01T08:30", datetime(2026, 11, 1, 8, 30)),
        ("2026-11-01T08:30:05", datetime(2026, 11, 1, 8, 30, 5)),
        ("now", datetime(2026, 11, 22, 14, 30, 15)),
        ("now-7days", datetime(2026, 11, 15, 14, 30, 15)),
        ("now-1day", datetime(2026, 11, 21, 14, 30, 15)),
        ("NOW-2hours", datetime(2026, 11, 22, 12, 30, 15)),
        ("now+15", datetime(2026, 11, 22, 14, 30, 30)),
        ("now-5min", datetime(2026, 11, 22, 14, 25, 15)),
        ("now-2weeks", datetime(2026, 11, 8, 14, 30, 15)),
        ("today", datetime(2026, 11, 22)),
        ("midnight", datetime(2026, 11, 22)),
        ("noon", datetime(2026, 11, 22, 12)),
        ("teatime", datetime(2026, 11, 22, 16)),
        ("08:15", datetime(2026, 11, 22, 8, 15)),
    ],
)
def test_times_are_read_as_sacct_reads_them(text: str, meant: datetime) -> None:
    assert times.moment(text, NOW_S) == meant.timestamp()


def test_a_number_is_unix_seconds() -> None:
    assert times.moment("1795315300", NOW_S) == 1795315300.0


@pytest.mark.parametrize("text", ["", "yesterday-ish", "now-7fortnights", "now-", "2026-13-01", "25:00", "1:99", "-5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        times.moment(text, NOW_S)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a daemon is asked that always gives the same answer."""
    questions: list[Any] = []

    class Daemon:
        def usage(self, *question: Any) -> dict[str, Any]:
            questions.append(question)
            return TOLD

    monkeypatch.setattr(api_client, "find", lambda path=None: Daemon())
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    return questions


def run(*words: str) -> str:
    return CliRunner().invoke(bft, ["usage", *words], catch_exceptions=False).output


def test_it_shows_a_row_a_user_in_hours_and_their_sum(asked: list[Any]) -> None:
    lines = run("--since", "now-1hour").splitlines()
    assert asked == [(NOW_S - 3600, NOW_S, ["user"])]
    assert lines == [
        "2026-11-22 13:30 to 2026-11-22 14:30",
        "USER   TRAINING-H  HELD-H  LEAVING-H",
        "ann           1.0     2.0        0.0",
        "bob           0.0     0.5        0.0",
        "total         1.0     2.5        0.0",
        wording("cli.usage.known_since", first_s="2026-11-22 14:00"),
    ]


def test_it_is_by_account_or_by_both_where_that_is_asked_for(asked: list[Any]) -> None:
    assert "ACCOUNT" in run("--account").splitlines()[1]
    assert run("--user", "--account").splitlines()[3].split()[:2] == ["bob", "-"]
    today_s = datetime(2026, 11, 22).timestamp()
    assert asked == [(today_s, NOW_S, ["account"]), (today_s, NOW_S, ["user", "account"])]


def test_json_is_the_answer_of_the_daemon(asked: list[Any]) -> None:
    assert json.loads(run("--json")) == {"format": 1, **TOLD}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--since", "soon"], wording("cli.times.not_a_time", value="soon", FORMS=wording("cli.times.forms"))),
        (["--since", "now+1hour"], excerpt("cli.history.since_after_until")),
        (["--since", "now-999999999weeks"], excerpt("cli.times.not_a_time", value="now-999999999weeks")),
        (["--until", "999999999999"], excerpt("cli.times.not_a_time", value="999999999999")),
    ],
)
def test_a_wrong_question_is_told_in_one_line(asked: list[Any], words: list[str], told: str) -> None:
    result = CliRunner().invoke(bft, ["usage", *words])
    assert told in f"{result.output}{result.exception}"
    assert asked == []
