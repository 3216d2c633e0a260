"""Pausing and resuming over the API: who may, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bftd.http.test_api import TRAINER, Served, as_user
from tests.support.messages import says, wording

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
        ({"why": "x", "user": "nobodyx"}, wording("http.control_handlers.no_user", name="nobodyx")),
        ({"why": "x", "nodes": ["n1", 7]}, wording("http.control_handlers.not_nodes", where="pause")),
        ({"why": "x", "nodes": ["n1\n"]}, wording("http.control_handlers.not_nodes", where="pause")),
        ({"why": "x", "nodes": ["n[", "n1"]}, wording("http.control_handlers.not_harvested", named="node n[")),
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
    assert (await served.ask("POST", "/v1/pause", {"why": "x", "user": "nobody"}))[0] == 200
    await served.ask("POST", "/v1/trainers", TRAINER | {"user": "nobody"})
    served.see("n1")
    assert not served.service.state.leases
    _, told = await served.ask("GET", f"/v1/trainers/{TRAINER['id']}/explain")
    assert told["decisions"][-1]["text"] == "train-a waits: " + wording(
        "core.sentences.paused", what="user nobody", by="root", why="x"
    )


async def test_a_driver_hears_how_many_nodes_its_trainer_may_have_and_there_are(served: Served) -> None:
    _, welcome = await served.ask("POST", "/v1/trainers", TRAINER | {"nodes_max": 64, "resizable": True})
    assert welcome["nodes_max"] == 64
    served.see("n1", "n2", "n3")
    leases = f"/v1/trainers/{TRAINER['id']}/leases?epoch=1&version=0"
    _, listed = await served.ask("GET", leases)
    assert (listed["nodes_min"], listed["nodes_max"]) == (1, 3)
    code, answer = await served.ask("POST", f"/v1/trainers/{TRAINER['id']}/change", {"nodes_min": 2, "nodes_max": 2})
    assert (code, answer["nodes_min"], answer["nodes_max"], answer["sizes"]) == (200, 2, 2, None)
    _, changed = await served.ask("GET", leases)
    assert (changed["nodes_min"], changed["nodes_max"]) == (2, 2)
    assert changed["version"] > listed["version"]


async def test_a_trainer_is_changed_by_its_user_alone_and_its_log_is_shown_to_him_alone(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER | {"log": "/home/ann/slurm 1.out"})
    served.see("n1")
    change = f"/v1/trainers/{TRAINER['id']}/change"
    as_user(monkeypatch, "bob")
    assert (await served.ask("POST", change, {"weight": 2}))[0] == 403
    assert [item["log"] for item in (await served.ask("GET", "/v1/trainers"))[1]["trainers"]] == [""]
    as_user(monkeypatch, "ann")
    assert (await served.ask("POST", change, {"weight": 2}))[1]["weight"] == 2
    [shown] = (await served.ask("GET", "/v1/trainers"))[1]["trainers"]
    assert shown["log"] == "/home/ann/slurm 1.out"


@pytest.mark.parametrize(
    "body",
    [{}, {"weight": 0}, {"weight": -1}, {"weight": "2"}, {"nodes_min": 1}, {"nodes_max": 4}, [],
     {"nodes_min": 3, "nodes_max": 2}, {"nodes_min": 0, "nodes_max": 2}, {"nodes_min": 2, "nodes_max": 2}],
)  # fmt: skip
async def test_a_change_that_says_too_little_or_nonsense_changes_nothing(body: Any, served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER | {"resizable": True})
    served.see("n1")
    before = served.service.state.trainers[TRAINER["id"]].request
    assert (await served.ask("POST", f"/v1/trainers/{TRAINER['id']}/change", body))[0] == 400
    assert served.service.state.trainers[TRAINER["id"]].request == before


async def test_nothing_is_changed_before_slurm_was_read_or_after_the_end(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    change = f"/v1/trainers/{TRAINER['id']}/change"
    assert (await served.ask("POST", change, {"weight": 2}))[0] == 503
    served.see("n1")
    await served.ask("POST", f"/v1/trainers/{TRAINER['id']}/finish", {"epoch": 1, "exit_code": 0, "reason": ""})
    assert (await served.ask("POST", change, {"weight": 2}))[0] == 409
    assert (await served.ask("POST", "/v1/trainers/77/change", {"weight": 2}))[0] == 404


async def test_of_listed_sizes_at_least_one_must_stay(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER | {"nodes_max": 8, "sizes": [1, 4, 8], "resizable": True})
    served.see("n1", "n2", "n3")
    change = f"/v1/trainers/{TRAINER['id']}/change"
    code, answer = await served.ask("POST", change, {"nodes_min": 2, "nodes_max": 3})
    assert code == 400
    assert says(answer["error"], "http.control_handlers.listed_sizes", only="1, 4, 8")
    assert (await served.ask("POST", change, {"nodes_min": 2, "nodes_max": 8}))[1]["sizes"] == [1, 4, 8]


async def test_the_last_lines_of_a_log_are_its_users_alone_and_bounded(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    report = f"/v1/trainers/{TRAINER['id']}/report"
    explain = f"/v1/trainers/{TRAINER['id']}/explain"

    async def tail(sent: Any) -> list[str]:
        assert (await served.ask("POST", report, {"epoch": 1, "events": [], "tail": sent}))[0] == 200
        return (await served.ask("GET", explain))[1]["trainer"]["tail"]

    assert await tail(["one", "two\x1b[2J"]) == ["one", "two [2J"]
    assert await tail(None) == ["one", "two [2J"]
    assert await tail("nonsense") == ["one", "two [2J"]
    many = await tail([3, *map(str, range(50)), "x" * 1000])
    assert (len(many), many[-2], len(many[-1])) == (20, "49", 200)
    as_user(monkeypatch, "bob")
    assert (await served.ask("GET", explain))[1]["trainer"]["tail"] == []


async def test_the_driver_of_an_older_version_is_not_resized(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    served.see("n1", "n2")
    change = f"/v1/trainers/{TRAINER['id']}/change"
    assert (await served.ask("POST", change, {"nodes_min": 1, "nodes_max": 1}))[0] == 409
    assert (await served.ask("POST", change, {"weight": 2}))[0] == 200


async def test_what_changes_nothing_makes_no_event(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER | {"resizable": True})
    served.see("n1", "n2")
    version = served.service.state.trainers[TRAINER["id"]].version
    same = {"nodes_min": 1, "nodes_max": 2, "weight": 1}
    assert (await served.ask("POST", f"/v1/trainers/{TRAINER['id']}/change", same))[0] == 200
    assert served.service.state.trainers[TRAINER["id"]].version == version


async def test_a_driver_that_cannot_begin_takes_no_node_from_others(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER | {"nodes_max": 4})
    served.see("n1", "n2", "n3", "n4")
    failed = TRAINER | {"id": "run-here-2", "nodes_max": 4, "exit_code": 2, "reason": "no such folder"}
    assert (await served.ask("POST", "/v1/trainers", failed))[0] == 200
    live = [lease.trainer for lease in served.service.state.leases.values() if lease.live]
    assert live == [TRAINER["id"]] * 4
    [ended] = [item for item in (await served.ask("GET", "/v1/trainers?all=1"))[1]["trainers"] if item["exit_code"]]
    assert (ended["id"], ended["state"], ended["exit_code"]) == ("run-here-2", "finished", 2)
