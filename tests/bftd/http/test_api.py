"""The wire API, on a real unix socket and on TCP."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bftd.base.errors import ConfigError
from bftd.config.keys import ApiConfig, Config, PoolConfig
from bftd.core.inputs.clock_shift import restored
from bftd.http import api
from bftd.http.auth.caller import Caller, Callers
from bftd.ledger.file import Ledger
from bftd.service.service import Service
from slurm_plugin.read.types import Job, Snapshot
from tests.bftd.builders import job, node
from tests.support.messages import pattern, wording
from tests.support.ports import free_port
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

TRAINER = {
    "id": "run-here-1",
    "name": "train-a",
    "backend": "torchrun",
    "nodes_min": 1,
    "nodes_max": 2,
    "partition": "elastic",
    "user": "ann",
    "held": [],
}
Ask = Callable[..., Awaitable[tuple[int, Any]]]


class Served:
    """A service that listens, with what a test needs to ask it."""

    def __init__(self, service: Service, session: aiohttp.ClientSession, base: str) -> None:
        self.service = service
        self._session = session
        self._base = base

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """One request: status and decoded answer."""
        if body is not None and "data" not in options:
            options["json"] = body
        async with self._session.request(method, self._base + path, **options) as answer:
            return answer.status, await answer.json()

    def see(self, *names: str, jobs: tuple[Any, ...] = ()) -> None:
        """Two polls of idle nodes."""
        for _ in range(2):
            self.service.observe(Snapshot(time.time(), {name: node(name) for name in names}, jobs, ()))


@asynccontextmanager
async def serving(tmp_path: Path, tcp: str = "", token: str = "") -> AsyncIterator[Served]:
    config = Config()
    ledger = Ledger(tmp_path / "ledger")
    service = Service(config, ledger, lambda job_ids: None)
    addresses = ApiConfig(str(tmp_path / "socket"), tcp)
    if token:
        addresses = replace(addresses, auth="token", token_file=str(secret_file(tmp_path / "token", token + "\n")))
    runner = await api.listen(service, addresses)
    try:
        connector = aiohttp.TCPConnector() if tcp else aiohttp.UnixConnector(str(tmp_path / "socket"))
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Served(service, session, f"http://{tcp or 'daemon'}")
    finally:
        service.stop()
        await runner.cleanup()
        ledger.close()


def secret_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def driver_job(id_: str, user: str) -> Job:
    """A job that runs a driver, as Slurm shows it."""
    return job(id_, "RUNNING", partition=("bft-driver",), user=user)


def as_user(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    """Let every caller be an ordinary user: the tests themselves run as one who may do all."""
    monkeypatch.setattr(Callers, "known", lambda self, uid: Caller(user, False, uid))


async def test_a_driver_registers_waits_for_its_leases_works_and_finishes(served: Served) -> None:
    code, first = await served.ask("POST", "/v1/trainers", TRAINER)
    assert (code, first["epoch"], first["leases"], first["poll_s"]) == (200, 1, [], 1.0)
    wait = asyncio.create_task(
        served.ask("GET", f"/v1/trainers/run-here-1/leases?epoch=1&version={first['version']}&wait_s=20")
    )
    await asyncio.sleep(0)
    served.see("n1")
    code, told = await wait
    assert code == 200
    assert told["version"] > first["version"]
    (lease,) = told["leases"]
    assert set(lease) == {"id", "node", "state", "vacate", "limit_s", "gres", "gpus", "reason"}
    assert (lease["node"], lease["state"], lease["vacate"], lease["limit_s"]) == ("n1", "granted", False, 3600.0)
    now = time.time()
    events = [
        {"op": "lease", "at_s": now, "id": lease["id"], "state": "placed", "job_id": "71"},
        {"op": "lease", "at_s": now, "id": lease["id"], "state": "working", "job_id": None, "reason": None},
        {"op": "progress", "at_s": now, "step": 7, "samples": 70, "samples_per_s": 9.5, "nodes": 1,
         "world_size": 1, "loss": 0.25, "steps_lost": 0, "window_s": 2.0},
        {"op": "note", "at_s": now, "text": "hello"},
    ]  # fmt: skip
    assert (await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": events}))[0] == 200
    _, seen = await served.ask("GET", "/v1/status")
    (shown,) = seen["trainers"]
    assert (shown["state"], shown["requested"], shown["working"], shown["step"]) == ("running", 1, 1, 7)
    assert seen["nodes"][0]["trainer"] == "run-here-1"
    assert seen["nodes"][0]["lease_state"] == "working"
    finish = {"epoch": 1, "exit_code": 3, "reason": "out of data", "summary": {"first_loss": 1.5}}
    assert await served.ask("POST", "/v1/trainers/run-here-1/finish", finish) == (200, {})
    assert await served.ask("POST", "/v1/trainers/run-here-1/finish", finish) == (200, {})
    _, told = await served.ask("GET", "/v1/trainers/run-here-1/explain?limit=1")
    assert told["decisions"][0]["text"] == "train-a " + wording(
        "core.sentences.finished_because", exit_code=3, why="out of data"
    )
    ended = {"kind": "finished", "who": "train-a", "exit_code": 3, "why": "out of data", "step": 7}
    assert told["decisions"][0]["decision"] == ended
    assert set(seen["decisions"][-1]) == {"at_s", "trainer", "text"}
    assert told["trainer"]["exit_code"] == 3
    _, tail = await served.ask("GET", "/v1/events?after=0&limit=10000")
    assert {"registered", "granted", "decision", "progress", "finished", "pool"} <= {
        event["kind"] for event in tail["events"]
    }


async def test_what_a_resize_cost_is_in_the_ledger_and_explained_part_by_part(served: Served) -> None:
    served.see()
    await served.ask("POST", "/v1/trainers", TRAINER)
    parts = {"stall_s": 12.5, "save_s": 3.0, "rendezvous_s": 2.0, "load_s": 7.0, "state_bytes": 14_000_000_000}
    events = [{"op": "resize", "at_s": time.time(), "from_nodes": 2, "to_nodes": 4, "kind": "up", **parts}]
    assert (await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": events}))[0] == 200
    _, told = await served.ask("GET", "/v1/trainers/run-here-1/explain")
    costs = told["trainer"]["resize_costs"]
    assert (costs["up_s"], costs["state_bytes"]) == (12.5, 14e9)
    assert parts.items() <= costs["last"].items()
    assert costs["text"] == (
        wording(
            "core.sentences.costs_expected",
            up_s=12.5,
            down_s="1.0 s; "
            + wording(
                "core.sentences.last_cost",
                before=2,
                after="4 nodes",
                stall_s=12.5,
                parts="3.0 saving, 2.0 rendezvous, 7.0 loading, 0.5 to the first",
            ),
        )
        + "tep; "
        + wording("core.sentences.state_size", state_bytes="13.0 GiB")
    )
    _, tail = await served.ask("GET", "/v1/events?after=0&limit=10000")
    [kept] = [event["data"] for event in tail["events"] if event["kind"] == "resize"]
    assert parts.items() <= kept.items()
    before = served.service.state.trainers["run-here-1"].knowledge
    assert served.service.ledger.load(time.time()).trainers["run-here-1"].knowledge == before


async def test_what_is_estimated_of_a_trainers_speed_is_explained_survives_a_restart_and_is_bounded(
    served: Served,
) -> None:
    served.see()
    await served.ask("POST", "/v1/trainers", TRAINER)
    estimate = {"class": "a100x4", "nodes": [1, 2], "samples_per_s": [120.0, 230.0], "origin": "assumed"}

    async def tell(**changed: Any) -> tuple[int, Any]:
        event = {"op": "curve", "at_s": time.time(), "estimates": [estimate | {"basis": "a data sheet"} | changed]}
        return await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": [event]})

    assert (await tell())[0] == 200
    progress = {
        "op": "progress",
        "at_s": time.time(),
        "step": 9,
        "samples": 90.0,
        "samples_per_s": 410.0,
        "nodes": 2,
    }
    await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": [progress]})
    for lie in ({"samples_per_s": [1e300, 1e300]}, {"samples_per_s": [2.0, 1.0]}, {"nodes": [1] * 20_000}):
        code, said = await tell(**lie)
        assert code == 400
        assert "\n" not in said["error"]
    _, told = await served.ask("GET", "/v1/trainers/run-here-1/explain")
    shown = told["trainer"]["curve"]
    assert shown["text"] == (
        wording(
            "core.sentences.curve_measured_too",
            basis="assumed, from a data sheet",
            points="1: 120, 2: 230",
            measured="2: 410",
        )
    )
    assert shown["estimates"] == [estimate | {"basis": "a data sheet"}]
    assert [(each["nodes"], each["samples_per_s"]) for each in shown["measured"]] == [([2], [410.0])]
    before = served.service.state.trainers["run-here-1"].knowledge
    assert served.service.ledger.load(time.time()).trainers["run-here-1"].knowledge == before


async def test_a_long_poll_answers_at_once_when_the_version_is_another_and_at_the_end_of_its_wait(
    served: Served,
) -> None:
    _, first = await served.ask("POST", "/v1/trainers", TRAINER)
    version = first["version"]
    for other in (version - 1, version + 5):  # the latter after a daemon lost its last moments
        path = f"/v1/trainers/run-here-1/leases?epoch=1&version={other}&wait_s=30"
        assert (await asyncio.wait_for(served.ask("GET", path), STILL_S))[1]["version"] == version
    path = f"/v1/trainers/run-here-1/leases?epoch=1&version={version}&wait_s=0.05"
    assert (await asyncio.wait_for(served.ask("GET", path), STILL_S))[1]["version"] == version


async def test_S4_a_second_driver_fences_the_first_even_in_its_long_poll(served: Served) -> None:
    _, first = await served.ask("POST", "/v1/trainers", TRAINER)
    path = f"/v1/trainers/run-here-1/leases?epoch=1&version={first['version']}&wait_s=30"
    wait = asyncio.create_task(served.ask("GET", path))
    await asyncio.sleep(0)
    _, second = await served.ask("POST", "/v1/trainers", TRAINER)
    assert second["epoch"] == 2
    assert (await asyncio.wait_for(wait, STILL_S))[0] == 409
    for method, path, body in (
        ("GET", "/v1/trainers/run-here-1/leases?epoch=1&version=0&wait_s=0", None),
        ("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": []}),
        ("POST", "/v1/trainers/run-here-1/finish", {"epoch": 1, "exit_code": 0, "reason": "", "summary": {}}),
    ):
        code, answer = await served.ask(method, path, body)
        assert code == 409
        assert "newer driver" in answer["error"]


async def test_regression_a_registration_that_came_late_fenced_the_driver_that_had_sent_it(served: Served) -> None:
    sent = [TRAINER | {"driver": "a1", "attempt": number} for number in (1, 2)]
    _, welcome = await served.ask("POST", "/v1/trainers", sent[1])
    path = f"/v1/trainers/run-here-1/leases?epoch={welcome['epoch']}&version=0&wait_s=0"
    for body in (sent[0], sent[1]):
        status, late = await served.ask("POST", "/v1/trainers", body)
        assert (status, late["epoch"]) == (200, welcome["epoch"])
        assert (await served.ask("GET", path))[0] == 200
    _, other = await served.ask("POST", "/v1/trainers", TRAINER | {"driver": "b2", "attempt": 1})
    assert other["epoch"] > welcome["epoch"]
    assert (await served.ask("POST", "/v1/trainers", sent[1] | {"attempt": 9}))[0] == 409
    _, older = await served.ask("POST", "/v1/trainers", TRAINER)
    assert older["epoch"] > other["epoch"], "a driver of before sends no word"


async def test_regression_a_registration_of_a_killed_driver_that_came_late_fenced_the_one_after_it(
    served: Served,
) -> None:
    _, welcome = await served.ask("POST", "/v1/trainers", TRAINER | {"driver": "b2", "attempt": 1, "restarts": 1})
    late = TRAINER | {"driver": "a1", "attempt": 1, "restarts": 0}
    assert (await served.ask("POST", "/v1/trainers", late))[0] == 409
    path = f"/v1/trainers/run-here-1/leases?epoch={welcome['epoch']}&version=0&wait_s=0"
    assert (await served.ask("GET", path))[0] == 200
    _, third = await served.ask("POST", "/v1/trainers", TRAINER | {"driver": "c3", "attempt": 1, "restarts": 1})
    assert third["epoch"] > welcome["epoch"]


async def test_regression_a_driver_whose_registration_was_lost_with_the_host_ended_as_if_it_had_a_successor(
    served: Served,
) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    service = served.service
    service.core = restored(service.core, service.now(), 300.0, steps_lost=True)
    for epoch in (1, 2):  # as the ledger has it, and as a lost step gave it
        for method, path, body in (
            ("GET", f"/v1/trainers/run-here-1/leases?epoch={epoch}&version=0&wait_s=0", None),
            ("POST", "/v1/trainers/run-here-1/report", {"epoch": epoch, "events": []}),
            ("POST", "/v1/trainers/run-here-1/finish", {"epoch": epoch, "exit_code": 0}),
        ):
            assert (await served.ask(method, path, body))[0] == 404
    _, again = await served.ask("POST", "/v1/trainers", TRAINER)
    path = f"/v1/trainers/run-here-1/leases?epoch={again['epoch']}&version=0&wait_s=0"
    assert (await served.ask("GET", path))[0] == 200
    assert (await served.ask("GET", path.replace(str(again["epoch"]), str(again["epoch"] - 1))))[0] == 409


async def test_S1_drivers_get_the_sites_smallest_window_with_every_list_and_after_a_reload_the_new_one(
    served: Served,
) -> None:
    _, welcome = await served.ask("POST", "/v1/trainers", TRAINER)
    assert welcome["min_window_s"] == PoolConfig().min_window_s
    served.service.configure(replace(served.service.config, pool=PoolConfig(min_window_s=8)))
    path = f"/v1/trainers/run-here-1/leases?epoch=1&version={welcome['version']}&wait_s=0"
    assert (await served.ask("GET", path))[1]["min_window_s"] == 8
    assert (await served.ask("POST", "/v1/trainers", TRAINER))[1]["min_window_s"] == 8


async def test_a_trainer_that_the_daemon_does_not_know_must_register(served: Served) -> None:
    code, answer = await served.ask("GET", "/v1/trainers/77/leases?epoch=1&version=0&wait_s=0")
    assert code == 404
    assert "must register" in answer["error"]
    assert (await served.ask("GET", "/v1/trainers/77/explain"))[0] == 404
    assert (await served.ask("GET", "/v1/nothing"))[0] == 404
    assert "error" in (await served.ask("DELETE", "/v1/status"))[1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nodes_min": 0}, "trainer: nodes_min must be 1 to 1000000, not 0"),
        ({"nodes_min": 4, "nodes_max": 1}, "trainer: nodes_min 4 is above nodes_max 1"),
        (
            {"nodes_max": "two"},
            wording("protocol.fields.wrong", where="trainer", name="nodes_max", wanted="a whole number", shown="'two'"),
        ),
        (
            {"nodes_max": True},
            wording("protocol.fields.wrong", where="trainer", name="nodes_max", wanted="a whole number", shown=True),
        ),
        ({"id": None}, "trainer: id is missing"),
        (
            {"id": "../x"},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="id",
                wanted=wording("protocol.registration.id_wanted"),
                shown="'../x'",
            ),
        ),
        ({"partition": "batch"}, wording("http.bodies.other_partition", some="partition elastic", partition="batch")),
        (
            {"sizes": [5]},
            wording(
                "protocol.fields.wrong",
                where="trainer",
                name="sizes",
                wanted=wording("protocol.sizes.wanted", low=1, high=2),
                shown=[5],
            ),
        ),
        ({"weight": -1}, "trainer: weight must be 0 to 1000000, not -1"),
        (
            {"up_cost_s": "1"},
            wording("protocol.fields.wrong", where="trainer", name="up_cost_s", wanted="a finite number", shown="'1'"),
        ),
        (
            {"curve": {"nodes": [1, 2], "samples_per_s": [5]}},
            wording(
                "protocol.fields.wrong",
                where="trainer: curve",
                name="nodes",
                wanted=wording("protocol.curves.as_many_wanted"),
                shown=[1, 2],
            ),
        ),
        ({"curve": {"nodes": [2, 1], "samples_per_s": [5, 6]}}, "trainer: curve: nodes must be in increasing order"),
        ({"curve": [1]}, wording("protocol.fields.not_an_object", where="trainer: curve")),
        (
            {"held": [{"id": "n1"}]},
            wording(
                "protocol.fields.wrong",
                where="trainer: held",
                name="id",
                wanted=wording("protocol.lease.id_wanted"),
                shown="'n1'",
            ),
        ),
        ({"held": 3}, wording("protocol.fields.wrong", where="trainer", name="held", wanted="a list", shown=3)),
    ],
)
async def test_a_wrong_registration_is_told_in_one_line(change: dict[str, Any], told: str, served: Served) -> None:
    code, answer = await served.ask("POST", "/v1/trainers", TRAINER | change)
    assert code == 400
    assert answer["error"].startswith(told)
    assert "\n" not in answer["error"]
    assert not served.service.state.trainers


async def test_wrong_reports_tunings_and_queries_are_told_in_one_line(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    report = "/v1/trainers/run-here-1/report"
    progress = {"op": "progress", "at_s": 1, "samples": 1, "samples_per_s": 1, "nodes": 1, "world_size": 1}
    wrong = [
        ("POST", report, {"epoch": 1, "events": [{"op": "dance", "at_s": 1}]}, "op must be one of lease, progress"),
        (
            "POST",
            report,
            {"epoch": 1, "events": [progress]},
            wording("protocol.fields.missing", where="report progress", name="step"),
        ),
        ("POST", report, {"epoch": 1, "events": [progress | {"step": -1}]}, "step must be 0 or more"),
        ("POST", report, {"epoch": 1, "events": [progress | {"step": 1, "nodes": 1e12}]}, "nodes must be 0 to"),
        ("POST", report, {"events": []}, "epoch is missing"),
        ("POST", report, [], wording("protocol.fields.not_an_object", where="report")),
        ("POST", "/v1/tune", {}, "give at least one of"),
        ("POST", "/v1/tune", {"objective": "fun"}, "objective must be one of throughput, efficiency, priority"),
        (
            "POST",
            "/v1/tune",
            {"t_fwd_s": 0},
            wording("bftd.key_fields.too_small", where="t_fwd_s", low=0.1, value=0),
        ),
        ("GET", "/v1/events?after=-1", None, "after must be a number"),
        ("GET", "/v1/trainers/run-here-1/leases?epoch=x&version=0", None, "epoch must be a number"),
    ]
    for method, path, body, told in wrong:
        code, answer = await served.ask(method, path, body)
        assert code == 400, path
        assert told in answer["error"]
    for garbage in ("{", "[" * 100_000, ""):
        code, answer = await served.ask("POST", "/v1/tune", data=garbage)
        assert (code, answer["error"]) == (400, wording("http.reading.not_json"))
    for charset in ("nobody-knows", "idna", "punycode"):  # the last two would keep the loop for minutes
        strange = {"Content-Type": f"application/json; charset={charset}"}
        code, answer = await served.ask("POST", "/v1/tune", data="a" * 1_000_000, headers=strange)
        assert (code, answer["error"]) == (400, wording("http.reading.not_json"))
    code, answer = await served.ask("POST", "/v1/tune", data=b"\xff\xfe")
    assert code == 400
    code, answer = await served.ask("POST", "/v1/tune", data=b"\xff\xfe", headers={"Content-Encoding": "gzip"})
    assert (code, answer["error"]) == (400, wording("http.reading.not_as_said"))


async def test_a_loss_that_is_not_a_number_is_no_error(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    body = '{"epoch": 1, "events": [{"op": "progress", "at_s": 1, "step": 3, "samples": 1, "loss": NaN}]}'
    assert (await served.ask("POST", "/v1/trainers/run-here-1/report", data=body))[0] == 200
    assert served.service.state.trainers["run-here-1"].step == 3


async def test_S7_a_user_acts_on_his_own_trainers_only_and_does_not_tune(monkeypatch, served: Served) -> None:
    served.see("n1", jobs=(driver_job("55", "eve"), driver_job("8", "bob")))
    assert (await served.ask("POST", "/v1/trainers", TRAINER))[0] == 200
    as_user(monkeypatch, "bob")
    code, answer = await served.ask("GET", "/v1/trainers/run-here-1/leases?epoch=1&version=0&wait_s=0")
    assert (code, answer["error"]) == (
        403,
        wording("http.asked.not_own_trainer", id="run-here-1", whose="ann", user="bob"),
    )
    assert (await served.ask("POST", "/v1/trainers/run-here-1/report", {"epoch": 1, "events": []}))[0] == 403
    assert (await served.ask("POST", "/v1/trainers/run-here-1/finish", {"epoch": 1, "exit_code": 0}))[0] == 403
    assert (await served.ask("POST", "/v1/tune", {"pj_max": 1}))[0] == 403
    code, answer = await served.ask("POST", "/v1/trainers", TRAINER | {"id": "8"})
    assert (code, answer["error"]) == (400, wording("http.bodies.other_user", user="bob", asked_for="ann"))
    code, answer = await served.ask("POST", "/v1/trainers", TRAINER | {"id": "9", "user": "bob"})
    assert (code, answer["error"]) == (503, wording("http.ownership.not_shown_yet", id=9))
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "elsewhere", "user": "bob"}))[0] == 400
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"user": "bob"}))[0] == 403  # ann's id
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "55", "user": "bob"}))[0] == 403  # eve's job
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "8", "user": None}))[0] == 200
    assert served.service.state.trainers["8"].user == "bob"
    assert (await served.ask("GET", "/v1/status"))[0] == 200


async def test_the_caller_on_the_unix_socket_is_who_the_kernel_says(monkeypatch, served: Served) -> None:
    seen = []
    real = Callers.look_up
    monkeypatch.setattr(Callers, "look_up", lambda self, uid: seen.append(real(self, uid)) or seen[-1])
    await served.ask("GET", "/v1/status")
    assert seen == [Caller(pwd.getpwuid(os.getuid()).pw_name, True, os.getuid())]


async def test_tuning_acts_at_once_and_is_kept(served: Served) -> None:
    code, answer = await served.ask("POST", "/v1/tune", {"t_fwd_s": 30, "objective": "efficiency", "pj_max": 2})
    assert code == 200
    changed = {"t_fwd_s": 30.0, "objective": "efficiency", "pj_max": 2}
    assert answer == {"settings": changed | {"solver": "auto", "max_nodes": 0, "max_share": 1.0}}
    assert served.service.state.settings.decide.t_fwd_s == 30.0
    assert served.service.ledger.tuned() == changed


async def test_tcp_clients_must_show_the_token(tmp_path: Path, unused_tcp_port: int) -> None:
    async with serving(tmp_path, tcp=f"127.0.0.1:{unused_tcp_port}", token="a secret") as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}):
            assert (await served.ask("GET", "/v1/status", headers=headers))[0] == 401
        right = {"Authorization": "Bearer a secret"}
        assert (await served.ask("GET", "/v1/status", headers=right))[0] == 200
        assert (await served.ask("POST", "/v1/trainers", TRAINER, headers=right))[0] == 200


async def test_an_address_that_cannot_be_served_is_told(tmp_path: Path, served: Served) -> None:
    empty = str(secret_file(tmp_path / "empty", ""))
    right = str(secret_file(tmp_path / "token", "x"))
    (tmp_path / "public").write_text("x")
    (tmp_path / "public").chmod(0o644)
    token = ApiConfig(str(tmp_path / "s"), "host:1", "token")
    for wrong, told in (
        (ApiConfig("/proc/no/socket"), "cannot listen on /proc/no/socket"),
        (replace(token, token_file=empty), "is empty"),
        (replace(token, token_file=str(tmp_path / "none")), "cannot read"),
        (replace(token, token_file=str(tmp_path / "public")), pattern("http.gate.token_open")),
        (replace(token, token_file=right, tcp="nonsense"), "host:port"),
    ):
        with pytest.raises(ConfigError, match=told):
            await api.listen(served.service, wrong)


async def test_status_is_strict_json_before_the_first_snapshot(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    _, seen = await served.ask("GET", "/v1/status")
    json.dumps(seen, allow_nan=False)
    assert seen["snapshot_age_s"] is None
    assert seen["give_back_s"] == {"p50": None, "p99": None, "max": None, "count": 0}


@pytest.fixture
def unused_tcp_port() -> int:
    """A port that was free a moment ago."""
    return free_port()


async def test_a_driver_that_tells_all_steps_hears_when_it_ends_and_an_older_one_is_served_as_ever(
    served: Served,
) -> None:
    served.see()
    await served.ask("POST", "/v1/trainers", TRAINER)
    path, now = "/v1/trainers/run-here-1/report", time.time()
    older = {"op": "progress", "at_s": now, "step": 10, "samples": 100, "samples_per_s": 20.0, "nodes": 1}
    code, told = await served.ask("POST", path, {"epoch": 1, "events": [older]})
    assert (code, told["ends_in_s"]) == (200, None)
    _, seen = await served.ask("GET", "/v1/status")
    assert (seen["trainers"][0]["total_steps"], seen["trainers"][0]["expected_end_s"]) == (None, None)
    newer = older | {"total_steps": 110, "steps_per_s": 2.0, "live_step": 30}
    code, told = await served.ask("POST", path, {"epoch": 1, "events": [newer]})
    assert (code, told["ends_in_s"]) == (200, 40.0)
    _, seen = await served.ask("GET", "/v1/status")
    assert seen["trainers"][0]["total_steps"] == 110
    assert seen["trainers"][0]["expected_end_s"] == pytest.approx(now + 40.0, abs=30.0)
    for wrong in (0, -1, 10**16, 1.5, "many"):
        code, told = await served.ask("POST", path, {"epoch": 1, "events": [newer | {"total_steps": wrong}]})
        assert (code, "total_steps" in told["error"]) == (400, True)
