"""Usage and the way back from `bft tune` over the API: who may see and do what."""

from __future__ import annotations

import pytest

from bftd.core.model.domain import Charged, State, UsageShare
from tests.bftd.http.test_api import Served, as_user
from tests.support.messages import excerpt, fragment

pytestmark = pytest.mark.slow

SHARES = (
    UsageShare("ann", "phys", 10.0, 8.0, 1.0),
    UsageShare("bob", "chem", 5.0, 5.0, 0.0),
    UsageShare("ann", "chem", 1.0, 0.0, 0.0),
)
TOTALS = ("held_node_seconds", "training_node_seconds", "leaving_node_seconds", "used_node_seconds")


def charge(served: Served) -> None:
    served.service.ledger.save(State(), State(time_s=served.service.now()), [Charged(SHARES)])


async def test_administrators_see_the_usage_of_all(served: Served) -> None:
    charge(served)
    code, told = await served.ask("GET", "/v1/usage?since=0")
    assert code == 200
    assert told["usage"] == [
        {"user": "ann", **dict(zip(TOTALS, (11.0, 8.0, 1.0, 11.0), strict=True))},
        {"user": "bob", **dict(zip(TOTALS, (5.0, 5.0, 0.0, 5.0), strict=True))},
    ]
    assert (told["since_s"], told["until_s"] <= served.service.now()) == (0.0, True)
    _, told = await served.ask("GET", "/v1/usage?since=0&by=account")
    assert [(row["account"], row["held_node_seconds"]) for row in told["usage"]] == [("phys", 10.0), ("chem", 6.0)]
    _, told = await served.ask("GET", "/v1/usage?since=0&by=user,account")
    assert len(told["usage"]) == 3


async def test_an_ordinary_user_sees_his_own_usage_alone_whatever_he_asks(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    as_user(monkeypatch, "bob")
    charge(served)
    for by in ("user", "account", "user,account"):
        _, told = await served.ask("GET", f"/v1/usage?since=0&by={by}&user=ann")
        assert [row["held_node_seconds"] for row in told["usage"]] == [5.0]
        assert "ann" not in str(told)
        assert "phys" not in str(told)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("by=node", excerpt("http.usage_handlers.by_malformed", BY=fragment("user or account"))),
        ("since=x", excerpt("http.asked.not_in_range", name="since")),
        ("until=-1", "until must be"),
    ],
)
async def test_a_question_that_is_none_is_refused_in_one_line(query: str, told: str, served: Served) -> None:
    code, answer = await served.ask("GET", f"/v1/usage?{query}")
    assert code == 400
    assert told in answer["error"]


async def test_tuned_keys_are_put_back_one_by_one_and_all_together(served: Served) -> None:
    before = (await served.ask("GET", "/v1/status"))[1]["settings"]
    await served.ask("POST", "/v1/tune", {"t_fwd_s": 30, "pj_max": 2})
    code, answer = await served.ask("POST", "/v1/tune", {"reset": ["pj_max"]})
    assert (code, answer) == (200, {"settings": before | {"t_fwd_s": 30.0}})
    assert (await served.ask("GET", "/v1/status"))[1]["tuned"] == {
        "t_fwd_s": {"value": 30.0, "file": before["t_fwd_s"]}
    }
    assert (await served.ask("POST", "/v1/tune", {"reset": []}))[1] == {"settings": before}
    for wrong in (
        {"reset": "pj_max"},
        {"reset": ["solve_time_limit_s"]},
        {"reset": [], "pj_max": 3},
        {"reset": [7]},
    ):
        code, answer = await served.ask("POST", "/v1/tune", wrong)
        assert code == 400
        assert answer["error"].startswith("tune: ")


async def test_only_administrators_put_keys_back(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    as_user(monkeypatch, "bob")
    assert (await served.ask("POST", "/v1/tune", {"reset": []}))[0] == 403


async def test_a_driver_is_asked_to_come_again_while_the_ledger_cannot_be_written(monkeypatch, served: Served) -> None:
    from bftd.base.errors import LedgerError

    def full(*_: object) -> None:
        raise LedgerError("the ledger is on a full disk")

    monkeypatch.setattr(served.service.ledger, "save", full)
    trainer = {"id": "run-a-1", "backend": "horovod", "nodes_min": 1, "nodes_max": 2, "user": "ann"}
    code, answer = await served.ask("POST", "/v1/trainers", trainer)
    assert (code, answer) == (503, {"error": "the ledger is on a full disk"})
    assert (await served.ask("GET", "/v1/status"))[1]["trainers"] == []
