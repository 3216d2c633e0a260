"""What one user learns of another's trainers where Slurm keeps users' jobs from each other."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from bftd.core.model.domain import State
from bftd.http.auth.caller import Caller
from bftd.http.auth.privacy import NAMELESS, Privacy
from bftd.service.status import overview
from slurm_plugin.clients.client import CommandResult
from slurm_plugin.clients.visibility import Visibility
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import Core, job, node, registration
from tests.bftd.http.test_api import TRAINER, Served, as_user
from tests.support.messages import wording

pytestmark = pytest.mark.slow

SECRETS = ("ann", "run-here-1", "her script.py", "4711")


async def scene(served: Served) -> None:
    """Ann trains on n1, n2; bob has a trainer and no nodes; a job of ann's waits, and another has n3."""
    name = "her script.py"
    await served.ask("POST", "/v1/trainers", TRAINER | {"name": name})
    await served.ask("POST", "/v1/trainers", TRAINER | {"id": "run-bob-1", "user": "bob", "name": "his"})
    waits = job("4711", "PENDING", sched_nodes=("n3",), start_s=time.time() + 5.0)
    nodes = {name: node(name) for name in ("n1", "n2", "n3")}
    for _ in range(2):
        served.service.observe(Snapshot(time.time(), nodes, (waits,), ()))
    assert served.service.state.leases
    progress = {"op": "progress", "at_s": 1, "step": 1, "samples": 1, "loss": 0.5}
    await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": [progress]})
    served.service.private = True


async def test_regression_private_data_was_undone_by_the_api(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    await scene(served)
    paths = ["/v1/status", "/v1/status?nodes=folded", "/v1/events?after=0", "/v1/trainers/run-bob-1/explain"]
    paths += ["/v1/trainers", "/v1/trainers?all=1", "/v1/nodes/n1/explain", "/v1/nodes/n3/explain"]
    _, whole = await served.ask("GET", "/v1/status")
    assert all(re.search(rf"\b{secret}\b", json.dumps(whole)) for secret in SECRETS), "administrators see all"
    as_user(monkeypatch, "bob")
    for path in paths:
        code, seen = await served.ask("GET", path)
        assert code == 200
        for secret in SECRETS:
            assert not re.search(rf"\b{secret}\b", json.dumps(seen)), path
    code, refused = await served.ask("GET", "/v1/trainers/run-here-1/explain")
    nobody = await served.ask("GET", "/v1/trainers/run-none-1/explain")
    assert (code, nobody[0]) == (404, 404)
    assert refused["error"].replace("run-here-1", "") == nobody[1]["error"].replace("run-none-1", "")
    _, seen = await served.ask("GET", "/v1/status")
    assert [item["name"] for item in seen["trainers"]] == [NAMELESS, "his"]
    assert {item["trainer"] for item in seen["nodes"]} <= {NAMELESS, None}
    assert {item["lease"] for item in seen["nodes"]} == {None}
    assert [set(item) for item in seen["trainers"]] == [set(item) for item in whole["trainers"]]
    assert set(seen) == set(whole), "the form is the same"
    as_user(monkeypatch, "ann")
    _, seen = await served.ask("GET", "/v1/status")
    assert [item["name"] for item in seen["trainers"]] == ["her script.py", NAMELESS]
    assert {item["trainer"] for item in seen["nodes"]} == {"run-here-1", None}
    _, told = await served.ask("GET", "/v1/trainers/run-here-1/explain")
    assert told["trainer"]["loss"] == 0.5
    assert told["decisions"]


async def test_the_owner_of_a_trainer_that_is_forgotten_still_has_it_explained(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    await scene(served)
    served.service.core = replace(served.service.core, trainers={}, leases={})
    for user, wanted in (("ann", 200), ("bob", 404)):
        as_user(monkeypatch, user)
        assert (await served.ask("GET", "/v1/trainers/run-here-1/explain"))[0] == wanted


TAKES = "4712471247"
"""A job's id that no number of seconds has among its digits."""


async def test_regression_a_driver_was_told_whose_job_takes_its_node(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    await scene(served)
    nodes = {name: node(name) for name in ("n1", "n2", "n3")}
    (where,) = (item.node for item in served.service.state.leases.values())
    takes = job(TAKES, "RUNNING", user="eve", nodes=(where,))
    served.service.observe(Snapshot(time.time(), nodes, (takes,), ()))
    as_user(monkeypatch, "ann")
    epoch = served.service.state.trainers["run-here-1"].epoch
    for private, reason in (
        (False, f"{where} " + wording("pool.judgement.has_job", job_id=TAKES)),
        (True, f"{where} has a job on it"),
    ):
        served.service.private = private
        _, told = await served.ask("GET", f"/v1/trainers/run-here-1/leases?epoch={epoch}&version=0&wait_s=0")
        assert [item["reason"] for item in told["leases"] if item["state"] == "revoked"] == [reason]
    _, again = await served.ask("POST", "/v1/trainers", TRAINER | {"name": "her script.py"})
    assert TAKES not in json.dumps(again)
    _, seen = await served.ask("GET", "/v1/status")
    assert TAKES not in json.dumps(seen), "nor does her own node say so"


async def test_refusals_name_nobody(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    await scene(served)
    as_user(monkeypatch, "bob")
    for method, path, body in (
        ("GET", "/v1/trainers/run-here-1/leases?epoch=1&version=0&wait_s=0", None),
        ("POST", "/v1/trainers", TRAINER | {"user": "bob"}),
        ("POST", "/v1/trainers", TRAINER | {"id": "4711", "user": "bob"}),
    ):
        code, answer = await served.ask(method, path, body)
        assert code == 403
        assert not re.search(r"\bann\b", answer["error"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "n1 " + wording("pool.judgement.needed", by="job 4711_[3-5]", window_s=20),
            "n1 " + wording("pool.judgement.needed", by="a job", window_s=20),
        ),
        ("job 55 and 3 more wait without a plan: nothing grows", "a job and 3 more wait without a plan: nothing grows"),
        (
            wording("core.sentences.foreign_pilots", identity="u@h", jobs="jobs 12, 13 and 4 more of cy, dee"),
            wording("core.sentences.foreign_pilots", identity="u@h", jobs="jobs of others"),
        ),
        (
            wording("core.sentences.foreign_pilots", identity="u@h", jobs="job 12 of cy"),
            wording("core.sentences.foreign_pilots", identity="u@h", jobs="jobs of others"),
        ),
        (
            "mine "
            + wording(
                "core.sentences.shrinks",
                before=3,
                after="1 node",
                nodes="n2",
                why=wording("core.sentences.gains_more", names="hers and x y", value=""),
            ),
            "mine "
            + wording(
                "core.sentences.shrinks",
                before=3,
                after="1 node",
                nodes="n2",
                why=wording("core.sentences.gains_more", names="others", value=""),
            ),
        ),
        ("mine shrinks: x y makes more of them", "mine shrinks: others make more of them"),
        (
            "mine shrinks: " + wording("core.sentences.newcomers", names="x y"),
            "mine shrinks: " + wording("core.sentences.newcomers", names="others"),
        ),
        (
            "mine waits: " + wording("core.sentences.holds", held=3, id="4711", name="hers", user="ann", since="16:02"),
            "mine waits: 3 with a trainer since 16:02",
        ),
        (
            "mine waits: " + wording("core.sentences.holds", held=3, id="4712", name="mine", user="bob", since="16:02"),
            "mine waits: 3 with a trainer (mine, bob) since 16:02",
        ),
        (
            "mine waits: " + wording("core.sentences.holds", held=3, id="9", name="old", user="eve", since="16:02"),
            "mine waits: 3 with a trainer since 16:02",
        ),
        ("mine waits: hers (ann) is before it", f"mine waits: {NAMELESS} ({NAMELESS}) is before it"),
        ("mine waits: her other one is before it", f"mine waits: {NAMELESS} is before it"),
    ],
)
def test_sentences_name_no_jobs_and_no_others(text: str, shown: str) -> None:
    core = Core()
    core.arrive(registration("1", name="hers", user="ann"))
    core.arrive(registration("3", name="her other one", user="ann"))
    core.arrive(registration("2", name="mine", user="bob"))
    bob = Caller("bob", False, 7)
    assert Privacy(bob, core.state, True).text(text) == shown
    assert Privacy(bob, core.state, False).text(text) == text
    assert Privacy(replace(bob, admin=True), core.state, True).text(text) == text


def test_orphan_jobs_caps_and_shadow_guests_of_others_are_left_out() -> None:
    shown: dict[str, Any] = overview(State(), 0.0, "1", "live", [], [])
    for user in ("ann", "bob"):
        shown["orphan_jobs"].append({"user": user})
        shown["caps"].append({"kind": "user", "name": user})
        shown.setdefault("shadow", {"waiting": []})["waiting"].append({"user": user})
    shown["caps"].append({"kind": "account", "name": "physics"})
    seen = Privacy(Caller("bob", False, 7), State(), True).overview(shown)
    assert seen["orphan_jobs"] == seen["strays"] == seen["shadow"]["waiting"] == [{"user": "bob"}]
    assert seen["caps"] == [{"kind": "user", "name": "bob"}]


class Configured:
    """A client whose configuration says this of PrivateData; None is one that cannot be read."""

    def __init__(self, said: str | None) -> None:
        self.said = said

    def run(self, *_: str, **__: Any) -> CommandResult:
        if self.said is None:
            return CommandResult(1, "", "Unable to contact slurm controller")
        ends = ("SLURM_CONF = /x", "SLURM_VERSION = 22.05.8", "UnkillableStepTimeout = 60 sec", "")
        lines = (wording("slurm_plugin.settings.first_line") + " now", f"PrivateData = {self.said}", *ends)
        return CommandResult(0, "\n".join(lines) + "\n", "")


@pytest.mark.parametrize(
    ("said", "private"),
    [("none", False), ("accounts,users", False), ("jobs", True), ("usage,nodes", True), ("all", True), (None, True)],
)
def test_jobs_are_private_where_slurm_says_so_and_until_it_was_read(said: str | None, private: bool) -> None:
    looks = Visibility(Configured(said))  # type: ignore[arg-type]
    assert looks.keeps_jobs_private
    with contextlib.suppress(SnapshotError):
        looks.check()
    assert looks.keeps_jobs_private is private


def test_who_has_no_name_owns_no_trainer_whose_user_is_not_known() -> None:
    core = Core()
    core.arrive(registration("1", name="hers", user=""))
    nobody = Privacy(Caller("", False), core.state, True)
    assert not nobody.sees("")
    assert not nobody.sees_trainer("1")
    assert nobody.text("hers grows") == f"{NAMELESS} grows"
