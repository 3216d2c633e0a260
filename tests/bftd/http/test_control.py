"""Pausing and resuming over the API: who may, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bftd.http.test_api import TRAINER, Served, as_user
from tests.support.messages import wording

pytestmark = pytest.mark.slow


async def test_only_administrators_pause_and_resume(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    as_user(monkeypatch, "bob")
    code, answer = await served.ask("POST", "/v1/pause", {"why": "mine"})
    assert (code, answer["error"]) == (
        403,
        wording("http.asked.administrators_only", may="pause and resume", user="bob"),
    )
    assert (await served.ask("POST", "/v1/resume", {}))[0] == 403
    assert not served.service.state.pauses


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, wording("protocol.fields.missing", where="pause", name="why")),
        ({"why": " \n"}, wording("http.control_handlers.why_empty")),
        ({"why": 3}, wording("protocol.fields.wrong", where="pause", name="why", wanted="a text", shown=3)),
        (
            {"why": "x", "release": "yes"},
            wording("protocol.fields.wrong", where="pause", name="release", wanted="true or false", shown="'yes'"),
        ),
        (
            {"why": "x", "user": "a", "account": "b"},
            wording("http.control_handlers.exclude_each_other", where="pause"),
        ),
        (
            {"why": "x", "nodes": "n1"},
            wording("protocol.fields.wrong", where="pause", name="nodes", wanted="a list", shown="'n1'"),
        ),
        ({"why": "x", "nodes": []}, wording("http.control_handlers.not_nodes", where="pause")),
        ({"why": "x", "nodes": ["n1", 7]}, wording("http.control_handlers.not_nodes", where="pause")),
        (
            {"why": "x", "user": "a\x1b[2J"},
            wording(
                "protocol.fields.wrong",
                where="pause",
                name="user",
                wanted=wording("protocol.fields.letters_wanted"),
                shown=repr("a\x1b[2J"),
            ),
        ),
    ],
)
async def test_a_pause_that_says_too_little_or_nonsense_changes_nothing(
    body: dict[str, Any], told: str, served: Served
) -> None:
    served.see("n1")
    assert await served.ask("POST", "/v1/pause", body) == (400, {"error": told})
    assert not served.service.state.pauses


async def test_a_reason_is_one_printable_line_and_names_who_gave_it(served: Served) -> None:
    served.see("n1")
    code, answer = await served.ask("POST", "/v1/pause", {"why": "new\ndisks \x1b[2J", "nodes": ["n1", "n1"]})
    assert code == 200
    assert [(item["names"], item["why"], item["by"]) for item in answer["pauses"]] == [
        (["n1"], "new disks [2J", "root")
    ]


async def test_before_the_first_snapshot_a_node_is_paused_unseen(served: Served) -> None:
    assert (await served.ask("POST", "/v1/pause", {"why": "x", "nodes": ["n1"]}))[0] == 200
    await served.ask("POST", "/v1/trainers", TRAINER)
    served.see("n1", "n2")
    assert {lease.node for lease in served.service.state.leases.values()} == {"n2"}


async def test_a_bound_and_hours_are_in_the_status(served: Served) -> None:
    served.see("n1", "n2", "n3", "n4")
    await served.ask("POST", "/v1/tune", {"max_share": 0.5})
    await served.ask("POST", "/v1/trainers", TRAINER | {"nodes_max": 4})
    _, seen = await served.ask("GET", "/v1/status")
    assert seen["bound"] == {
        "most": 2,
        "key": "max_share = 0.5",
        "used": 2,
        "text": wording("core.sentences.bounded", most="2 nodes", by="max_share = 0.5"),
    }
    assert (seen["hours"], seen["pauses"], seen["alarms"], seen["silent"]) == (None, [], [], [])


async def test_a_user_without_trainers_is_paused_before_he_brings_any(served: Served) -> None:
    served.see("n1")
    assert (await served.ask("POST", "/v1/pause", {"why": "x", "user": TRAINER["user"]}))[0] == 200
    await served.ask("POST", "/v1/trainers", TRAINER)
    served.see("n1")
    assert not served.service.state.leases
    _, told = await served.ask("GET", f"/v1/trainers/{TRAINER['id']}/explain")
    assert told["decisions"][-1]["text"] == "train-a waits: " + wording(
        "core.sentences.paused", what="user ann", by="root", why="x"
    )
