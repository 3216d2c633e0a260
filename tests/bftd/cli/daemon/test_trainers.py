"""`bft trainers` and `bft explain NODE`, on answers of a daemon."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bftd import api_client
from bftd.base.errors import ApiError, BftError
from bftd.cli.daemon import trainers as shown
from bftd.cli.main import bft
from tests.support.messages import excerpt, fragment, wording

NOW_S = 1_800_000_000.0
ANN = {
    "id": "17", "name": "resnet", "user": "ann", "account": "phys", "state": "running", "nodes_min": 1,
    "nodes_max": 8, "requested": 4, "working": 2, "step": 20, "total_steps": 100, "samples_per_s": 12.34, "loss": 0.5,
    "exit_code": None, "arrived_s": NOW_S - 3725, "finished_s": None, "expected_end_s": NOW_S + 60, "on": "n[1-2]",
    "reason": wording("milp.reasons.grows", held=2, count="4 nodes"),
}  # fmt: skip
BOB = ANN | {
    "id": "18",
    "user": "bob",
    "state": "waiting",
    "requested": 0,
    "working": 0,
    "total_steps": None,
    "expected_end_s": None,
    "reason": "waits: " + wording("core.sentences.too_few_free", needed=1),
    "loss": None,
    "samples_per_s": 0.0,
}
ENDED = BOB | {
    "id": "9",
    "state": "finished",
    "exit_code": 3,
    "finished_s": NOW_S - 90_000,
    "arrived_s": NOW_S - 90_100,
}
LOST = ENDED | {"id": "8", "exit_code": None}
NODE = {
    "name": "n1", "state": "IDLE", "class": "a100x4", "in_pool": False, "window_s": 40.0, "trainer": None,
    "lease": None, "lease_state": None, "why": "is kept for job 7", "co_located": "", "paused": [],
    "earmark": {"job": "7", "since_s": NOW_S, "due_s": None}, "quarantined_until_s": None, "failures": 1,
    "left_out_until_s": None, "left_out_for": "",
}  # fmt: skip
LEASE = {
    "lease": "n1.4", "trainer": "17", "name": "resnet", "user": "ann", "granted_s": NOW_S, "ended_s": NOW_S + 5,
    "give_back_s": 0.1, "why_revoked": "n1 runs a job",
}  # fmt: skip


class Daemon:
    """Always gives the same answers."""

    def trainers(self, every: bool) -> dict[str, Any]:
        """Those that ended come first."""
        return {"trainers": [*([LOST, ENDED] if every else []), ANN, BOB], "more": False}

    def explain(self, name: str, limit: int) -> dict[str, Any]:
        """It knows one trainer."""
        if name != "17":
            raise ApiError(f"no trainer {name} is known: `bft status` lists those there are", 404)
        return {"trainer": None, "decisions": [{"at_s": NOW_S, "text": "resnet waits"}], "is_node": True}

    def explain_node(self, name: str, limit: int) -> dict[str, Any]:
        """It knows one node."""
        if name not in ("n1", "17"):
            raise ApiError(f"no node {name} is harvested: ...", 404)
        return {"node": NODE, "leases": [LEASE], "decisions": [{"at_s": NOW_S, "trainer": "17", "text": "so it is"}]}


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the commands find."""
    monkeypatch.setattr(api_client, "find", lambda path=None: Daemon())
    monkeypatch.setattr(shown.time, "time", lambda: NOW_S)
    monkeypatch.setenv("TZ", "UTC")
    shown.time.tzset()
    yield
    monkeypatch.undo()
    shown.time.tzset()


@pytest.mark.parametrize("field", ["co_located", "beside"])
def test_the_job_on_a_part_of_a_node_is_named_also_by_a_daemon_of_0_1(
    monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    node = {name: value for name, value in NODE.items() if name != "co_located"} | {field: "9"}
    monkeypatch.setattr(Daemon, "explain_node", lambda *_: {"node": node, "leases": [], "decisions": []})
    assert "job 9 " in run("explain", "n1").output


def run(*words: str) -> Result:
    return CliRunner().invoke(bft, [*words])


def ids(*words: str) -> list[str]:
    return [line.split()[0] for line in run("trainers", *words).output.splitlines()[1:]]


def test_a_trainer_is_a_row_with_all_that_its_user_asks_for() -> None:
    lines = run("trainers").output.splitlines()
    assert lines[0].split() == ["ID", "NAME", "USER", "ACCOUNT", "STATE", "NODES", "RANGE", "STEP", "SAMPLES/S", "LOSS",
                                "TIME", "ENDS", "REASON"]  # fmt: skip
    assert lines[1].split(maxsplit=12) == [
        "17",
        "resnet",
        "ann",
        "phys",
        "running",
        "2->4",
        "1-8",
        "20/100",
        "12.3",
        "0.5",
        "1:02:05",
        "08:01",
        wording("milp.reasons.grows", held=2, count="4 nodes"),
    ]
    assert lines[2].split(maxsplit=12)[9:] == [
        "-",
        "1:02:05",
        "-",
        "waits: " + wording("core.sentences.too_few_free", needed=1),
    ]


def test_those_that_ended_have_their_exit_code_and_their_end() -> None:
    rows = [line.split(maxsplit=12) for line in run("trainers", "-a", "-u", "bob").output.splitlines()]
    assert rows[1][4:5] == ["lost"]
    assert rows[2][4:6] == ["finished", "(3)"]
    assert "2027-01-14" in run("trainers", "9").output


def test_they_are_chosen_by_id_user_and_state_as_with_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ids() == ["17", "18"]
    assert ids("--all") == ["8", "9", "17", "18"]
    assert ids("-u", "bob") == ["18"]
    assert ids("-u", "ann, bob", "-t", "run") == ["17"]
    assert ids("-t", "all") == ["8", "9", "17", "18"]
    assert ids("-t", "F") == ["8", "9"]
    assert ids("17", "9") == ["9", "17"]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ann", "", uid, 0, "", "", "")))
    assert (os.geteuid() >= 0, ids("--me")) == (True, ["17"])
    assert [trainer["id"] for trainer in json.loads(run("trainers", "-u", "ann", "--json").output)["trainers"]] == [
        "17"
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trainers", "77"], wording("cli.trainers.unknown", missing=77)),
        (
            ["trainers", "-t", "gone"],
            wording("cli.trainers.not_a_state", word="gone", STATES="waiting, running, suspended, finished"),
        ),
        (["trainers", "--me", "-u", "ann"], excerpt("cli.trainers.me_and_user")),
        (["explain", "n9"], excerpt("cli.explain.nothing_called_so", name=fragment("n9"))),
        (["explain", "--node", "n9"], "no node n9 is harvested"),
        (["explain", "--trainer", "n1"], "no trainer n1 is known"),
        (["explain", "--trainer", "--node", "n1"], "exclude each other"),
    ],
)
def test_a_wrong_question_is_told_in_one_line(words: list[str], told: str) -> None:
    ended = run(*words)
    assert told in f"{ended.output}{ended.exception}"
    assert ended.exit_code == 2 or isinstance(ended.exception, BftError)


def test_a_trainer_is_found_by_its_name_the_one_that_has_not_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run("explain", "resnet")
    assert isinstance(ended.exception, BftError)
    assert str(ended.exception) == wording("cli.trainers.several_called_so", count=2, name="resnet", ids="17, 18")
    others = [LOST, ENDED, ANN, BOB | {"name": "gpt"}]
    monkeypatch.setattr(Daemon, "trainers", lambda *_: {"trainers": others, "more": False})
    for words in (("resnet",), ("--trainer", "resnet")):
        assert run("explain", *words).output.splitlines() == ["2027-01-15 08:00:00  resnet waits"]
    assert (ids("gpt"), ids("resnet")) == (["18"], ["8", "9", "17"])


def test_a_node_is_explained_by_what_it_is_who_had_it_and_what_was_said() -> None:
    assert run("explain", "n1").output.splitlines() == [
        "n1 (IDLE, a100x4) " + wording("cli.explain.not_in_pool", why="is kept for job 7"),
        wording("cli.explain.planned_use", window_s=40),
        wording("cli.explain.earmarked_for", job="job 7", since_s="2027-01-15 08:00:00"),
        wording("cli.explain.crashed_lately", failures=1, value=""),
        "",
        "FROM                 TO                   TRAINER  NAME    USER  GAVE BACK IN  WHY IT ENDED",
        "2027-01-15 08:00:00  2027-01-15 08:00:05  17       resnet  ann         0.10 s  n1 "
        + wording("pool.judgement.runs_a_job"),
        "",
        "2027-01-15 08:00:00  so it is",
    ]


def test_a_word_that_names_a_trainer_and_a_node_is_the_trainer_and_the_node_is_mentioned() -> None:
    assert run("explain", "17").output.splitlines() == [
        "2027-01-15 08:00:00  resnet waits",
        wording("cli.explain.node_too", name=17, name2=17),
    ]
    assert run("explain", "--node", "17").output.startswith("17 (IDLE, a100x4)")
    assert "node too" not in run("explain", "--trainer", "17").output
