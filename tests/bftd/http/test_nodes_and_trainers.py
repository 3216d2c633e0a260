"""What is answered of one node, and of the trainers that there are and were."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from bftd.http.auth.privacy import NAMELESS
from bftd.protocol.changes import ASKED
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import job, node
from tests.bftd.http.test_api import TRAINER, Served, as_user
from tests.support.messages import pattern, says, wording

pytestmark = pytest.mark.slow


async def worked(served: Served, id_: str = "run-here-1") -> None:
    """A trainer that worked on n1 and n2, left n1 to job 4711, and trains on."""
    await served.ask("POST", "/v1/trainers", TRAINER | {"id": id_})
    served.see("n1", "n2")
    leases = [lease for lease in served.service.state.leases.values() if lease.trainer == id_]
    at = {"at_s": time.time()}
    events: list[dict[str, Any]] = []
    for number, lease in enumerate(leases):
        events += [{"op": "lease", "id": lease.id, "state": "placed", "job_id": str(71 + number)} | at]
        events += [{"op": "lease", "id": lease.id, "state": "working", "job_id": None, "reason": None} | at]
    events += [{"op": "progress", "step": 7, "samples": 70, "samples_per_s": 9.5, "nodes": 2, "loss": 0.25} | at]
    await served.ask("POST", f"/v1/trainers/{id_}/report", {"epoch": 1, "events": events})
    pilots = tuple(
        job(str(71 + number), "RUNNING", partition=("elastic",), nodes=(lease.node,), user="ann")
        for number, lease in enumerate(leases)
    )
    taken = job("4711", "RUNNING", nodes=("n1",), user="bob")
    nodes = {"n1": node("n1", "ALLOCATED"), "n2": node("n2", "ALLOCATED")}
    served.service.observe(Snapshot(time.time(), nodes, pilots, ()))
    left = tuple(pilot for pilot in pilots if pilot.nodes == ("n2",))
    served.service.observe(Snapshot(time.time(), nodes, (*left, taken), ()))
    (lease,) = [item for item in leases if item.node == "n1"]
    ended = {"op": "lease", "id": lease.id, "state": "ended", "job_id": "71", "reason": "left"} | at
    await served.ask("POST", f"/v1/trainers/{id_}/report", {"epoch": 1, "events": [ended]})


async def test_a_node_tells_what_it_is_who_had_it_and_what_was_decided_about_it(served: Served) -> None:
    await worked(served)
    code, told = await served.ask("GET", "/v1/nodes/n1/explain")
    assert code == 200
    assert (told["node"]["name"], told["node"]["in_pool"], told["node"]["trainer"]) == ("n1", False, None)
    assert "runs a job" in told["node"]["why"]
    (lease,) = told["leases"]
    assert (lease["trainer"], lease["name"], lease["user"]) == ("run-here-1", "train-a", "ann")
    assert lease["granted_s"] <= lease["revoked_s"] <= lease["ended_s"]
    texts = [decision["text"] for decision in told["decisions"]]
    assert any(
        re.match("train\\-a " + pattern("core.sentences.starts", count="2 nodes", nodes="n[1-2]"), text)
        for text in texts
    )
    assert any("n1 runs a job" in text for text in texts)
    _, told = await served.ask("GET", "/v1/nodes/n2/explain")
    assert (told["node"]["trainer"], told["leases"][0]["ended_s"]) == ("run-here-1", None)
    assert not any("n1 runs a job" in decision["text"] for decision in told["decisions"]), "it is not about n2"
    _, told = await served.ask("GET", "/v1/nodes/n1/explain?limit=1")
    assert len(told["decisions"]) == 1
    code, told = await served.ask("GET", "/v1/nodes/n9/explain")
    assert code == 404
    assert says(told["error"], "http.asking_handlers.no_such_node", name="n9")


async def test_pauses_and_quarantine_bear_on_a_node(served: Served) -> None:
    await worked(served)
    await served.ask("POST", "/v1/pause", {"why": "new disks", "nodes": ["n2"]})
    _, told = await served.ask("GET", "/v1/nodes/n2/explain")
    assert told["node"]["paused"] == [wording("core.sentences.paused", what="node n2", by="root", why="new disks")]
    assert told["node"]["quarantined_until_s"] is None


async def test_a_trainer_and_a_node_of_one_name_are_told_apart(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER | {"id": "run-here-1"})
    served.see("run-here-1", "n1")
    assert (await served.ask("GET", "/v1/trainers/run-here-1/explain"))[1]["is_node"] is True
    assert (await served.ask("GET", "/v1/nodes/run-here-1/explain"))[1]["node"]["name"] == "run-here-1"


async def test_trainers_tell_why_they_have_their_nodes_and_when_they_ended(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    await worked(served)
    _, told = await served.ask("GET", "/v1/trainers")
    (trainer,) = told["trainers"]
    assert says(trainer["reason"], "core.sentences.gives_back", nodes="n1", left="1 node left")
    assert (trainer["on"], trainer["finished_s"], told["more"]) == ("n2", None, False)
    assert trainer["arrived_s"] <= time.time()
    with monkeypatch.context() as patch:
        as_user(patch, "bob")
        served.service.private = True
        (hidden,) = (await served.ask("GET", "/v1/trainers"))[1]["trainers"]
        assert (hidden["name"], hidden["user"], hidden["on"], hidden["reason"]) == (NAMELESS, "", "", "")
        served.service.private = False
    note = {"op": "note", "at_s": time.time(), "text": "hello"}
    await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": [note]})
    assert (await served.ask("GET", "/v1/trainers"))[1] == told, "a note of the driver is no reason"
    finish = {"epoch": 1, "exit_code": 3, "reason": "out of data"}
    await served.ask("POST", "/v1/trainers/run-here-1/finish", finish)
    service = served.service
    service.core = replace(service.core, trainers={}, leases={})
    _, told = await served.ask("GET", "/v1/trainers")
    assert told["trainers"] == []
    _, told = await served.ask("GET", "/v1/trainers?all=1")
    (ended,) = told["trainers"]
    assert (ended["id"], ended["name"], ended["user"], ended["state"]) == (
        "run-here-1",
        "train-a",
        "ann",
        "finished",
    )
    assert (ended["exit_code"], ended["reason"], ended["step"], ended["loss"]) == (3, "out of data", 7, 0.25)
    as_user(monkeypatch, "bob")
    _, told = await served.ask("GET", "/v1/trainers?all=1")
    assert told["trainers"] == [ended | {"loss": None}]
    service.private = True
    assert (await served.ask("GET", "/v1/trainers?all=1"))[1]["trainers"] == []


async def test_of_very_many_that_ended_the_last_are_told(served: Served) -> None:
    for number in range(4):
        id_ = f"run-here-{number}"
        await served.ask("POST", "/v1/trainers", TRAINER | {"id": id_})
        await served.ask("POST", f"/v1/trainers/{id_}/finish", {"epoch": 1, "exit_code": 0, "reason": ""})
    service = served.service
    service.core = replace(service.core, trainers={})
    _, told = await served.ask("GET", "/v1/trainers?all=1&limit=2")
    assert [trainer["id"] for trainer in told["trainers"]] == ["run-here-2", "run-here-3"]
    assert told["more"] is True
    assert (await served.ask("GET", "/v1/trainers?all=1&limit=4"))[1]["more"] is False


async def test_trainers_that_ended_under_an_older_bftd_have_what_it_wrote_down(served: Served) -> None:
    for number in range(3):
        id_ = f"run-here-{number}"
        await served.ask("POST", "/v1/trainers", TRAINER | {"id": id_})
        await served.ask("POST", f"/v1/trainers/{id_}/finish", {"epoch": 1, "exit_code": number, "reason": ""})
    service = served.service
    with closing(sqlite3.connect(service.ledger.path)) as ledger:
        ledger.execute("""UPDATE events SET data = '{"exit_code": 1, "reason": "x"}' WHERE kind = 'finished'""")
        ledger.commit()
    service.core = replace(service.core, trainers={})
    _, told = await served.ask("GET", "/v1/trainers?all=1")
    assert [(item["id"], item["name"], item["user"], item["step"]) for item in told["trainers"]] == [
        (f"run-here-{number}", "train-a", "ann", None) for number in range(3)
    ]


async def test_regression_a_node_that_no_job_got_is_not_said_to_have_gone_to_one(served: Served) -> None:
    """Slurm may ask more pilots to leave than its job needs in the end; the pilots do not learn why."""
    await served.ask("POST", "/v1/trainers", TRAINER | {"id": "run-here-1"})
    served.see("n1", "n2")
    leases = list(served.service.state.leases.values())
    for state in ("placed", "leaving", "ended"):
        events = [
            {"op": "lease", "id": lease.id, "state": state, "job_id": f"7{lease.node}", "at_s": time.time()}
            for lease in leases
        ]
        await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": events})

    async def why(name: str) -> str:
        _, told = await served.ask("GET", f"/v1/nodes/{name}/explain")
        return str(told["leases"][-1]["why_revoked"])

    assert await why("n2") == ASKED, "the last snapshot is older than the end of the pilot"
    taken = job("4711", "RUNNING", nodes=("n1",), user="bob")
    nodes = {"n1": node("n1", "ALLOCATED"), "n2": node("n2")}
    served.service.observe(Snapshot(time.time(), nodes, (taken,), ()))
    assert await why("n1") == f"{ASKED}; now the node {served.service.state.pool.nodes['n1'].why}"
    assert await why("n2") == f"{ASKED}; " + wording("http.asking_handlers.no_regular_job")
