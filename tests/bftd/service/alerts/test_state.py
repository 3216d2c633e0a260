"""Who is told of what begins and ends, in simulated time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.base.health import HealthProblem
from bftd.service.alerts.state import LISTED_MOST, Ringing
from tests.support.messages import wording

pytestmark = pytest.mark.slow

SLURM = HealthProblem("CRITICAL", "Slurm was not read for 301 s", "snapshot")
PAUSE = HealthProblem("WARNING", "user ann is paused by root: x", "pause", "user ann")
NODE = HealthProblem("CRITICAL", "n1 was asked back 9 s ago", "overdue", "n1")
EVERY_S = 300.0


def keys(items: list[dict[str, Any]]) -> list[str]:
    """What a list of a message names."""
    return sorted(f"{item['kind']}:{item['name']}" if item["name"] else item["kind"] for item in items)


def test_a_problem_that_bftd_0_1_knew_by_its_old_kind_goes_on() -> None:
    known = {"standing": [{"level": "WARNING", "text": "x", "kind": "rooms", "name": "", "since_s": 1.0}]}
    ringing = Ringing(known)
    ringing.hear(5.0, [HealthProblem("WARNING", "x", "earmarks")])
    assert not ringing.due(5.0, EVERY_S)


def test_what_begins_is_told_at_once_and_what_ends_not_before_its_time() -> None:
    ringing = Ringing()
    ringing.hear(0.0, [])
    assert not ringing.due(0.0, EVERY_S)
    ringing.hear(5.0, [SLURM])
    assert ringing.due(5.0, EVERY_S)
    told = ringing.send(5.0)
    assert told == {
        "format": 1,
        "time_s": 5.0,
        "level": "CRITICAL",
        "text": "CRITICAL: begun: " + wording("bftd.health.snapshot_old", age_s=301),
        "begun": [
            {
                "level": "CRITICAL",
                "kind": "snapshot",
                "name": "",
                "text": wording("bftd.health.snapshot_old", age_s=301),
                "since_s": 5.0,
                "times": 1,
            }
        ],
        "ended": [],
        "still": [],
        "left_out": 0,
    }
    ringing.hear(10.0, [])
    assert not ringing.due(10.0, EVERY_S)  # somebody is being told
    ringing.delivered()
    assert not ringing.due(304.0, EVERY_S)
    assert ringing.due(305.0, EVERY_S)
    (over,) = ringing.send(305.0)["ended"]
    assert (over["since_s"], over["ended_s"]) == (5.0, 10.0)


def test_a_problem_that_comes_and_goes_is_told_once_with_how_often() -> None:
    ringing = Ringing()
    ringing.hear(0.0, [PAUSE])
    ringing.send(0.0)
    ringing.delivered()
    for at_s in (10.0, 30.0, 50.0):
        ringing.hear(at_s, [PAUSE, NODE])
        ringing.hear(at_s + 10.0, [PAUSE])
    told = ringing.send(300.0)
    assert (keys(told["begun"]), keys(told["ended"]), keys(told["still"])) == (
        ["overdue:n1"],
        ["overdue:n1"],
        ["pause:user ann"],
    )
    (begun,) = told["begun"]
    assert (begun["times"], begun["since_s"], begun["ended_s"]) == (3, 50.0, 60.0)
    assert told["level"] == "WARNING"
    assert told["text"] == (
        "WARNING: begun: n1 was asked back 9 s ago (3 times) / over: n1 was asked back 9 s ago / "
        "still: user ann is paused by root: x"
    )


def test_what_nobody_took_is_told_the_next_time_with_what_has_happened_since() -> None:
    ringing = Ringing()
    ringing.hear(0.0, [NODE])
    ringing.send(0.0)
    ringing.hear(5.0, [SLURM])
    ringing.failed()
    assert not ringing.due(299.0, EVERY_S)
    told = ringing.send(300.0)
    assert (keys(told["begun"]), keys(told["ended"])) == (["overdue:n1", "snapshot"], ["overdue:n1"])


def test_a_restart_tells_what_is_over_and_not_again_what_goes_on() -> None:
    ringing = Ringing()
    ringing.hear(0.0, [NODE, PAUSE])
    ringing.send(0.0)
    ringing.delivered()
    again = Ringing(json.loads(json.dumps(ringing.kept())))
    again.hear(1000.0, [PAUSE])
    told = again.send(1000.0)
    assert (told["begun"], keys(told["ended"]), keys(told["still"])) == ([], ["overdue:n1"], ["pause:user ann"])
    assert told["still"][0]["since_s"] == 0.0
    assert Ringing({"standing": [{"level": "LOUD"}, 7]}).standing == {}


def test_a_message_is_bounded_and_says_what_it_leaves_out() -> None:
    ringing = Ringing()
    many = [HealthProblem("WARNING", f"pause {number}", "pause", str(number)) for number in range(LISTED_MOST + 20)]
    ringing.hear(0.0, [*many, NODE])
    told = ringing.send(0.0)
    assert (len(told["begun"]), told["left_out"], told["begun"][0]["kind"]) == (LISTED_MOST, 21, "overdue")
    assert told["text"].endswith("118 more")


STEPS = st.lists(
    st.tuples(st.frozensets(st.sampled_from([SLURM, PAUSE, NODE])), st.sampled_from([1.0, 50.0, 400.0]), st.booleans()),
    max_size=30,
)


@given(steps=STEPS)
def test_who_listens_knows_in_the_end_what_is_wrong_and_was_told_of_every_beginning(steps: Any) -> None:
    ringing, now_s, before = Ringing(), 0.0, frozenset[HealthProblem]()
    known: set[str] = set()
    beginnings, told_of, sent_s = 0, 0, float("-inf")

    def tell(taken: bool) -> None:
        nonlocal told_of, sent_s
        assert now_s - sent_s >= EVERY_S
        sent_s = now_s
        message = ringing.send(now_s)
        if not taken:
            ringing.failed()
            return
        assert known & set(keys(message["still"])) == set(keys(message["still"]))
        known.update(keys(message["begun"]))
        known.difference_update(keys(message["ended"]))
        told_of += sum(item["times"] for item in message["begun"])
        ringing.delivered()

    for problems, passed_s, taken in steps:
        now_s += passed_s
        ringing.hear(now_s, problems)
        beginnings += len(problems - before)
        before = problems
        if ringing.due(now_s, EVERY_S):
            tell(taken)
    now_s += EVERY_S
    if ringing.due(now_s, EVERY_S):
        tell(True)
    assert known == {problem.key for problem in before}
    assert told_of == beginnings
