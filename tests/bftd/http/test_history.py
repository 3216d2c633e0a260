"""History over the API: what nodes and trainers did, as whoever asks may know it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bftd.core.sampling import NODE_STATES
from bftd.ledger.history import table
from bftd.ledger.history.table import PoolRecord, TrainerIdentity, TrainerRecord
from tests.bftd.http.test_api import TRAINER, Served, as_user
from tests.support.messages import excerpt, wording

pytestmark = pytest.mark.slow


def hour(served: Served) -> None:
    """An hour in which ann's and bob's trainers had two nodes each; of an hour ago, so that nothing else is in it."""
    now_s = int(time.time()) - 3600
    points = tuple(TrainerRecord(id_, 2.0, 2.0, 5.0, 10, 100.0, 300.0, 1.0) for id_ in ("run-here-1", "run-bob-1"))
    nodes = {"regular": 3.0, "leased": 4.0, "idle": 1.0}
    records = [PoolRecord(now_s - 60 * ago, 60, nodes, 300.0, 240.0, 240.0, points) for ago in reversed(range(60))]
    names = [TrainerIdentity("run-here-1", "her script.py", "ann", {}), TrainerIdentity("run-bob-1", "his", "bob", {})]
    served.service.ledger.write(lambda db: table.add(db, records, names))


async def test_history_is_means_of_steps_with_the_windows_of_now(served: Served) -> None:
    hour(served)
    served.see("n1", "n2")
    served.service.history.settle()
    code, told = await served.ask("GET", "/v1/history?step=600")
    assert code == 200
    assert list(told) == ["format", "since_s", "until_s", "step_s", "trainers", "windows", "points"]
    assert (told["format"], told["step_s"]) == (1, 600)
    whole = [point for point in told["points"] if point["covered_s"] == 600]
    assert len(whole) >= 5
    assert set(whole[0]["nodes"]) == set(NODE_STATES)
    assert whole[0]["trainers"]["run-bob-1"]["working"] == 2
    assert told["trainers"]["run-here-1"] == {"name": "her script.py", "user": "ann"}
    assert [window["window_s"] for window in told["windows"]] == [3600, 86_400, 604_800]
    _, status = await served.ask("GET", "/v1/status")
    assert status["windows"] == told["windows"]
    _, bare = await served.ask("GET", "/v1/history?step=600&trainers=0")
    assert bare["trainers"] == {}
    assert {point["running"] for point in bare["points"] if point["covered_s"] == 600} == {2}


async def test_regression_private_data_is_not_undone_by_history(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    hour(served)
    as_user(monkeypatch, "bob")
    _, open_told = await served.ask("GET", "/v1/history")
    assert open_told["trainers"]["run-here-1"]["user"] == "ann", "as in squeue"
    served.service.private = True
    _, told = await served.ask("GET", "/v1/history")
    assert told["trainers"] == {
        "run-bob-1": {"name": "his", "user": "bob"}, "(private)": {"name": "(private)", "user": ""},
    }  # fmt: skip
    text = str(told).replace("'planned'", "")
    assert not [word for word in ("'ann'", "run-here-1", "her script.py") if word in text]
    assert told["points"][0]["trainers"]["(private)"]["working"] == 2


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("since=x", excerpt("http.asked.not_in_range", name="since")),
        ("since=200&until=100", wording("http.history_handlers.since_after_until")),
        ("step=-1", excerpt("http.asked.not_in_range", name="step")),
        ("trainers=yes", excerpt("http.history_handlers.trainers_malformed")),
        ("since=0&step=600", excerpt("service.history_reading.too_many_points")),
    ],
)
async def test_a_question_that_is_none_is_refused_in_one_line(query: str, told: str, served: Served) -> None:
    code, answer = await served.ask("GET", f"/v1/history?{query}")
    assert code == 400
    assert told in answer["error"]


async def test_events_are_told_from_a_time_on(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    served.see("n1", "n2")

    async def events(query: str) -> list[dict[str, Any]]:
        return list((await served.ask("GET", f"/v1/events?{query}"))[1]["events"])

    whole = await events("")
    for place in (0, len(whole) // 2, len(whole) - 1):
        at_s = whole[place]["at_s"]
        assert await events(f"since={at_s}") == [event for event in whole if event["at_s"] >= at_s]
    assert await events(f"since={time.time() + 60}") == []
    last = whole[-1]["rowid"]
    assert [event["rowid"] for event in await events(f"since=1&after={last - 1}")] == [last]
