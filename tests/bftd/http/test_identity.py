"""Who callers are and what is theirs, without a network."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.api_client import find
from bftd.base.errors import ConfigError
from bftd.core.model.events import Finished, Registered
from bftd.credentials import proofs
from bftd.credentials.munge import MungeError
from bftd.http.auth.caller import KEEP_S, Caller, Callers
from bftd.http.auth.munge import Nonces
from bftd.http.auth.ownership import objection
from bftd.http.handlers import driver
from bftd.http.rate_limit import BURST, UNITS_PER_S, Budgets
from bftd.http.routes import OVERVIEW_UNITS
from bftd.protocol.address import endpoint, split_address
from elastic.driver.settings import foreground_id
from tests.bftd.builders import registration
from tests.bftd.http.test_api import TRAINER, Served, as_user, driver_job, serving
from tests.support.messages import pattern, wording

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["ann", "bob"])
OTHER_UID = 65533


def test_administrators_are_root_the_daemons_user_and_the_groups_members_by_primary_group_too() -> None:
    games = pwd.getpwnam("games")  # a member by its primary group only, on every Debian
    callers = Callers("games")
    assert callers.look_up(games.pw_uid) == Caller("games", True, games.pw_uid)
    assert callers.look_up(0).admin
    assert not callers.look_up(pwd.getpwnam("nobody").pw_uid).admin
    assert not Callers().look_up(games.pw_uid).admin


def test_a_group_that_does_not_exist_is_told_at_the_start() -> None:
    with pytest.raises(ConfigError, match=pattern("http.caller.no_group", group="nosuchgroup")):
        Callers("nosuchgroup")


def test_a_uid_without_a_name_is_shown_as_its_number() -> None:
    assert Callers().look_up(OTHER_UID) == Caller("65533", False, OTHER_UID)


def test_a_name_is_looked_up_again_after_a_few_seconds() -> None:
    now = [100.0]
    callers = Callers(clock=lambda: now[0])
    assert callers.known(OTHER_UID) is None
    found = callers.look_up(OTHER_UID)
    now[0] += KEEP_S - 0.1
    assert callers.known(OTHER_UID) is found
    now[0] += 0.2
    assert callers.known(OTHER_UID) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.floats(0, 4)), max_size=60))
def test_a_number_is_new_once_within_the_time_for_which_it_is_kept(uses: list[tuple[int, int, float]]) -> None:
    nonces, seen, now_s = Nonces(10.0), dict[tuple[int, str], float](), 0.0
    for uid, number, pause_s in uses:
        now_s += pause_s
        key = uid, str(number)
        fresh = nonces.is_new(*key, now_s)
        assert fresh == (key not in seen or now_s - seen[key] > 10.0)
        if fresh:
            seen[key] = now_s
        assert len(nonces) <= sum(now_s - at_s <= 10.0 for at_s in seen.values())


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0.5, 5000)), max_size=60))
def test_a_budget_never_lets_through_more_than_its_burst_and_its_rate(requests: list[tuple[float, float]]) -> None:
    budgets, now_s, spent = Budgets(), 0.0, 0.0
    for pause_s, units in requests:
        now_s += pause_s
        if budgets.spend(7, units, now_s):
            spent += min(units, BURST)
        elif pause_s * UNITS_PER_S >= BURST:
            pytest.fail("a full budget was refused")
        assert spent <= BURST + now_s * UNITS_PER_S + 1e-6
    assert budgets.spend(8, BURST, now_s), "one user's flood is nobody else's"


async def test_a_user_who_floods_is_put_off_and_others_are_not(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    as_user(monkeypatch, "eve")
    for _ in range(int(BURST / OVERVIEW_UNITS) * 2):
        code, answer = await served.ask("GET", "/v1/status")
        if code != 200:
            break
    assert (code, answer["error"]) == (429, wording("http.gate.over_budget", user="eve"))
    monkeypatch.undo()
    assert (await served.ask("GET", "/v1/status"))[0] == 200, "administrators are not put off"


@given(
    st.sampled_from(["7", "run-here-1", "run-here-1.u7.00c0ffee", "odd"]), NAMES, st.none() | NAMES, st.none() | NAMES
)
def test_S7_nobody_registers_what_is_or_may_become_somebody_elses(
    id_: str, user: str, job_user: str | None, known_user: str | None
) -> None:
    refused = objection(id_, user, job_user, known_user, 7 if user == "ann" else 8)
    if refused is None:
        assert known_user in (None, user)
        assert (
            id_ == "run-here-1"
            or (id_.startswith("run-here-1.u7.") and user == "ann")
            or job_user == user
            or (job_user is None and known_user == user)
        )
    elif id_ == "7" and job_user is None and known_user is None:
        assert refused[0] == 503, "a job that Slurm has not shown yet is asked for again, not refused"
    elif id_ != "odd":
        assert refused[0] == 403
        assert {job_user, known_user} - {user, None} or (".u7." in id_ and user != "ann")


async def test_regression_anybody_could_take_the_id_of_a_foreground_run_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = foreground_id()
    assert id_ != foreground_id(), "nobody knows it beforehand"
    assert f".u{os.getuid()}." in id_
    async with serving(tmp_path) as served:
        monkeypatch.setattr(Callers, "known", lambda self, uid: Caller("eve", False, os.getuid() + 1))
        code, answer = await served.ask("POST", "/v1/trainers", TRAINER | {"id": id_, "user": "eve"})
        assert (code, answer["error"]) == (
            403,
            wording("http.ownership.other_uid", id=id_, of_uid=os.getuid(), user="eve"),
        )
        monkeypatch.setattr(Callers, "known", lambda self, uid: Caller("ann", False, os.getuid()))
        assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": id_, "user": "ann"}))[0] == 200
        older = TRAINER | {"id": "run-here-77", "user": "ann"}
        assert (await served.ask("POST", "/v1/trainers", older))[0] == 200, "drivers of older versions are served"


async def test_a_driver_may_come_before_slurm_has_shown_its_job_and_nobody_may_take_its_place(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    as_user(monkeypatch, "eve")  # guesses the next job's id
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "71", "user": "eve"}))[0] == 503
    as_user(monkeypatch, "ann")
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "71"}))[0] == 503
    served.see("n1", jobs=(driver_job("71", "ann"),))
    as_user(monkeypatch, "eve")
    code, answer = await served.ask("POST", "/v1/trainers", TRAINER | {"id": "71", "user": "eve"})
    assert (code, answer["error"]) == (403, wording("http.ownership.other_owner", id=71, whose="ann", user="eve"))
    as_user(monkeypatch, "ann")
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "71"}))[0] == 200


async def test_everybody_sees_who_trains_and_only_the_owner_and_administrators_how_it_goes(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    for name in ("ann", "bob"):
        await served.ask("POST", "/v1/trainers", TRAINER | {"id": f"run-{name}-1", "user": name})
        progress = {"op": "progress", "at_s": 1, "step": 1, "samples": 1, "loss": 0.5}
        await served.ask("POST", f"/v1/trainers/run-{name}-1/report", {"epoch": 1, "events": [progress]})
    losses = {"run-ann-1": 0.5, "run-bob-1": 0.5}
    _, seen = await served.ask("GET", "/v1/status")
    assert {item["id"]: item["loss"] for item in seen["trainers"]} == losses
    _, ledger = await served.ask("GET", "/v1/events?after=0")
    assert {event["trainer"] for event in ledger["events"]} >= set(losses)
    as_user(monkeypatch, "ann")
    _, seen = await served.ask("GET", "/v1/status")
    assert {item["id"]: item["loss"] for item in seen["trainers"]} == losses | {"run-bob-1": None}
    _, told = await served.ask("GET", "/v1/trainers/run-bob-1/explain")
    assert told["trainer"]["loss"] is None
    _, told = await served.ask("GET", "/v1/trainers/run-ann-1/explain")
    assert told["trainer"]["loss"] == 0.5
    _, ledger = await served.ask("GET", "/v1/events?after=0")
    assert {event["trainer"] for event in ledger["events"]} == {"run-ann-1"}


async def test_one_user_cannot_fill_the_daemon_with_trainers(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(driver, "MOST_TRAINERS_OF_A_USER", 3)
    now = time.time()
    for number in range(3):
        served.service.apply(Registered(now, registration(f"run-a-{number}")))
    served.service.apply(Finished(now, "run-a-0", 0, ""))
    as_user(monkeypatch, "ann")
    code, answer = await served.ask("POST", "/v1/trainers", TRAINER)
    assert code == 429
    assert answer["error"].startswith("ann has 3 trainers")
    again = TRAINER | {"id": "run-a-1"}
    assert (await served.ask("POST", "/v1/trainers", again))[0] == 200, "a driver comes back all the same"
    as_user(monkeypatch, "bob")
    assert (await served.ask("POST", "/v1/trainers", TRAINER | {"id": "run-b-1", "user": "bob"}))[0] == 200


async def test_the_long_polls_of_a_trainer_are_bounded_and_those_that_end_make_way(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    monkeypatch.setattr(driver, "MOST_POLLS_OF_A_TRAINER", 2)
    _, first = await served.ask("POST", "/v1/trainers", TRAINER)
    path = f"/v1/trainers/run-here-1/leases?epoch=1&version={first['version']}&wait_s="
    waiting = [asyncio.create_task(served.ask("GET", path + "20")) for _ in range(2)]
    codes = []
    while 429 not in codes and len(codes) < 1000:
        codes.append((await served.ask("GET", path + "0"))[0])
    assert set(codes) <= {200, 429}
    assert codes[-1] == 429
    served.see("n1")
    assert [code for code, _ in await asyncio.gather(*waiting)] == [200, 200]
    assert (await served.ask("GET", path + "0"))[0] == 200


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", ":1", "host:0", "host:70000", "a@:1"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        split_address(address)


def test_an_address_names_the_daemons_user_its_host_and_its_port() -> None:
    assert split_address("login1:6820") == ("bftd", "login1", 6820)
    assert split_address("ops@[::1]:6820") == ("ops", "::1", 6820)


def test_both_ends_of_a_connection_name_it_the_same() -> None:
    assert endpoint(("::ffff:10.0.0.1", 6820, 0, 0)) == endpoint(("10.0.0.1", 6820))
    assert endpoint(("fe80::1%eth0", 6820, 0, 2)) == "[fe80::1]:6820"


def test_a_daemons_user_that_is_unknown_here_may_be_given_by_number() -> None:
    assert proofs.uid_of("4711") == 4711
    with pytest.raises(MungeError, match=pattern("protocol.credentials.no_such_user", user="nosuchuser")):
        proofs.uid_of("nosuchuser")


@given(st.binary(max_size=80))
def test_no_payload_but_our_own_is_taken_for_a_request(payload: bytes) -> None:
    with pytest.raises(MungeError):
        proofs.RequestCredential.of(payload)


def test_a_payload_made_for_another_purpose_is_none_even_with_the_same_fields() -> None:
    said = proofs.RequestCredential("5a17", "127.0.0.1:1", "GET", "/v1/status", proofs.digest(b""))
    assert proofs.RequestCredential.of(said.payload()) == said
    with pytest.raises(MungeError, match=pattern("protocol.credentials.not_for_bftd")):
        proofs.RequestCredential.of(said.payload().replace(b"bftd request 1", b"other request 1"))


def test_the_client_on_another_host_is_made_from_the_configuration_or_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BFTD_SOCKET", raising=False)
    path = tmp_path / "bftd.toml"
    path.write_text(f'[daemon]\nuser = "4711"\n[api]\nsocket = "{tmp_path}/none"\ntcp = "login1:6820"\n')
    assert find(str(path)).address == "4711@login1:6820"
    path.write_text(f'[api]\nsocket = "{tmp_path}/none"\ntcp = "login1:6820"\n')
    assert find(str(path)).address == "login1:6820"
    monkeypatch.setenv("BFTD_SOCKET", "ops@login2:7")
    assert find(str(path)).address == "ops@login2:7"


@given(st.text(max_size=400))
def test_what_an_impostor_says_is_one_harmless_line(said: str) -> None:
    line = proofs.unproved({"error": said})
    assert line.isprintable()
    assert len(line) < 250
