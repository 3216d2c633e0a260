"""`bft history`: the table, its days, and events as lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from click.testing import CliRunner

from bftd import api_client
from bftd.base.errors import ApiError
from bftd.cli import times
from bftd.cli.daemon.history import _EVENTS
from bftd.cli.main import bft
from bftd.core.sampling import NODE_STATES
from tests.support.messages import excerpt, wording

NOW_S = datetime(2026, 11, 22, 14, 30, 15).timestamp()
WINDOWS = [
    {"window_s": 3600, "u": 0.834},
    {"window_s": 86_400, "u": 0.8},
    {"window_s": 604_800, "u": None},
]


def point(at: datetime, leased: int = 4, covered_s: int = 3600) -> dict[str, Any]:
    return {
        "at_s": at.timestamp(),
        "covered_s": covered_s,
        "nodes": {"regular": 10, "planned": 1, "leased": leased, "idle": 1, "away": 2},
        "running": 2.0,
        "trainers": {},
        "pool_node_seconds": (leased + 1.0) * covered_s,
        "used_node_seconds": float(leased * covered_s),
        "training_node_seconds": 0.5 * leased * covered_s,
    }


class Daemon:
    """Gives the answers that it has, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.points = [point(datetime(2026, 11, 22, 12)), point(datetime(2026, 11, 22, 13), leased=2, covered_s=1800)]
        self.events_: list[dict[str, Any]] = []
        self.older = False

    def history(self, *question: Any, trainers: bool) -> dict[str, Any]:
        if self.older:
            raise ApiError("GET /v1/history: not found", 404)
        self.asked.append((*question, trainers))
        over = {"since_s": question[0], "until_s": question[1], "step_s": question[2]}
        return {"format": 1, **over, "points": self.points, "windows": WINDOWS, "trainers": {}}

    def trainers(self, every: bool) -> dict[str, Any]:
        if self.older:
            raise ApiError("GET /v1/trainers: not found", 404)
        return {"trainers": [{"id": "17", "name": "train-a"}], "more": False}

    def events(self, after: int, limit: int, since_s: float) -> list[dict[str, Any]]:
        self.asked.append((after, limit, since_s))
        return [event for event in self.events_ if event["rowid"] > after][:2]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    made = Daemon()
    monkeypatch.setattr(api_client, "find", lambda path=None: made)
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    return made


def run(*words: str) -> str:
    return CliRunner().invoke(bft, ["history", *words], catch_exceptions=False).output


def test_it_shows_a_row_an_hour_of_the_last_day_and_the_sum(daemon: Daemon) -> None:
    assert run().splitlines() == [
        "TIME              REGULAR  PLANNED  LEASED  IDLE  AWAY  POOL-H  TRAINING-H  HELD-H  TRAINING   HELD  TRAINERS",
        "2026-11-22 12:00       10        1       4     1     2     5.0         2.0     4.0     40.0%  80.0%       2.0",
        "2026-11-22 13:00       10        1       2     1     2     1.5         0.5     1.0     33.3%  66.7%       2.0",
        "total                  10        1       3     1     2     6.5         2.5     5.0     38.5%  76.9%       2.0",
        wording(
            "cli.history.efficiency",
            known=wording(
                "cli.history.in_the_last",
                u=0.83,
                names=wording("cli.history.in_the_last", u="1 hour, 0.80", names="1 day"),
            ),
        ),
    ]
    assert daemon.asked == [(NOW_S - 86_400, NOW_S, 3600.0, False)]


def test_more_than_three_days_are_shown_by_day_as_days_are_here(daemon: Daemon) -> None:
    daemon.points = [point(datetime(2026, 11, day, hour)) for day in (20, 21) for hour in (0, 12, 23)]
    lines = run("--since", "2026-11-18").splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["2026-11-20", "2026-11-21", "total"]
    assert lines[1].split()[6] == "15.0"
    assert daemon.asked == [(datetime(2026, 11, 18).timestamp(), NOW_S, 3600.0, False)]


def test_the_step_is_as_asked_for_and_json_is_the_answer_of_the_daemon(daemon: Daemon) -> None:
    told = json.loads(run("--json", "--step", "10min", "--since", "now-2hours"))
    assert told["format"] == 1
    assert daemon.asked == [(NOW_S - 7200, NOW_S, 600.0, True)]


def test_where_there_is_nothing_it_says_so(daemon: Daemon) -> None:
    daemon.points = []
    assert run() == wording("cli.history.none_of_that_time") + "\n"


def test_events_are_lines_page_by_page_up_to_the_end_that_is_asked_for(daemon: Daemon) -> None:
    data: list[tuple[str, str | None, str | None, dict[str, Any]]] = [
        ("decision", "17", None, {"text": "train-a grows\x1b[2J"}),
        ("give_back", "17", "n1", {"duration_s": 0.1234567, "reason": ""}),
        ("pool", None, None, {"joined": ["n1"], "left": []}),
        ("pool", None, None, {"joined": [], "left": ["n1"]}),
    ]
    daemon.events_ = [
        {"rowid": row, "at_s": NOW_S - 100 + 10 * row, "kind": kind, "trainer": trainer, "node": node, "data": about}
        for row, (kind, trainer, node, about) in enumerate(data)
    ]
    lines = run("--events", "--since", "now-99seconds", "--until", "now-75seconds").splitlines()
    assert lines == [
        f"2026-11-22 14:28:45  {wording('cli.events.give_back', who='train-a', nodes='n1', took='0.12 s')}",
        "2026-11-22 14:28:55  n1 joined the pool",
    ]
    lines = run("--events").splitlines()
    assert lines[0].startswith("2026-11-22 14:28:45"), "rows are counted from 1"
    assert daemon.asked[-1] == (3, _EVENTS, NOW_S - 86_400)
    assert json.loads(run("--events", "--json")) == {"format": 1, "events": daemon.events_[1:]}
    daemon.older = True
    assert (
        run("--events")
        .splitlines()[0]
        .endswith(wording("cli.events.give_back", who="trainer 17", nodes="n1", took="0.12 s"))
    )


def test_a_daemon_that_keeps_no_history_is_told_in_one_line(daemon: Daemon) -> None:
    daemon.older = True
    result = CliRunner().invoke(bft, ["history"])
    assert str(result.exception) == wording("cli.history.older_daemon_keeps_none")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--since", "now+1hour"], excerpt("cli.history.since_after_until")),
        (["--step", "often"], wording("cli.times.not_a_span", value="often")),
        (["--events", "--step", "1hour"], wording("cli.history.no_step_of_events")),
    ],
)
def test_a_wrong_question_is_told_in_one_line(daemon: Daemon, words: list[str], told: str) -> None:
    result = CliRunner().invoke(bft, ["history", *words])
    assert told in f"{result.output}{result.exception}"
    assert daemon.asked == []


@pytest.mark.parametrize(("text", "meant"), [("600", 600), ("10min", 600), ("1hour", 3600), ("2days", 172_800)])
def test_time_spans_are_read_as_in_times(text: str, meant: float) -> None:
    assert times.duration(text) == meant


def test_the_states_of_the_table_are_those_of_the_samples() -> None:
    from bftd.base import view

    assert view.NODE_STATES == NODE_STATES


def test_it_shows_the_starts_that_pilots_touched_where_the_daemon_tells_of_them(daemon: Daemon) -> None:
    daemon.points[0] |= {"regular_starts": 12, "regular_delay_seconds": 7.0}
    head, first, second, total, *_ = run().splitlines()
    assert head.split()[-2:] == ["TOUCHED", "DELAY-S"]
    assert [line.split()[-2:] for line in (first, second, total)] == [["12", "7"], ["0", "0"], ["12", "7"]]
