"""The health check: each fault with its level, and the line that a monitoring system reads."""

from __future__ import annotations

from typing import Any

import pytest

from bftd.base.health import (
    HELD_WARNING_S,
    LEVELS,
    SNAPSHOT_CRITICAL_S,
    SNAPSHOT_WARNING_S,
    judged,
    unreachable,
)
from bftd.service.status import overview
from tests.bftd.builders import Core, registration
from tests.support.messages import excerpt, fragment, wording


def well() -> dict[str, Any]:
    """A daemon with three nodes, two of them lent."""
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2", "n3")
    core.place_all()
    shown = overview(core.state, core.time_s, "1.0", "live", [], [0.1, 0.2])
    return shown | {"held_s": 0.0}


def test_a_daemon_that_does_well_is_ok_with_its_figures() -> None:
    found = judged(well())
    assert (found.level, found.code) == ("OK", 0)
    assert found.line == (
        "BFTD OK: all is well | nodes=3 lent=2 free=1 trainers=1 snapshot_age=0.0s;60;300 give_back_p99=0.200s"
    )


QUARANTINED = {"name": "n9", "lease": None, "in_pool": False, "why": "is in quarantine for 30 s more"}
FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"snapshot_age_s": None}, "CRITICAL", wording("bftd.health.snapshot_missing")),
    ({"snapshot_age_s": SNAPSHOT_CRITICAL_S + 1}, "CRITICAL", wording("bftd.health.snapshot_old", age_s=301)),
    ({"snapshot_age_s": SNAPSHOT_WARNING_S + 1}, "WARNING", wording("bftd.health.snapshot_old", age_s=61)),
    ({"alarms": [{"text": "n1 was asked back 9 s ago"}]}, "CRITICAL", "n1 was asked back 9 s ago"),
    (
        {"pauses": [{"text": wording("core.sentences.paused", what="everything", by="root", why="x")}]},
        "WARNING",
        wording("core.sentences.paused", what="everything", by="root", why="x"),
    ),
    (
        {"hold": "job 9 waits", "held_s": HELD_WARNING_S + 1},
        "WARNING",
        wording("bftd.health.nothing_grows", held_s=601, hold="job 9 waits"),
    ),
    ({"nodes": [QUARANTINED]}, "WARNING", wording("bftd.health.quarantine", quarantined=1, value=" is")),
    ({"orphan_jobs": [{}, {}]}, "WARNING", wording("bftd.health.orphan_jobs", orphan_jobs=2, value="s")),
    ({"strays": [{}, {}]}, "WARNING", wording("bftd.health.orphan_jobs", orphan_jobs=2, value="s")),  # until 1.1
    ({"earmarks_wary": "few get earmarks"}, "WARNING", "few get earmarks"),
    ({"silent": ["17"]}, "WARNING", wording("bftd.health.silent_drivers", silent=17)),
    (
        {"ledger": {"bytes": 95, "max_bytes": 100}},
        "WARNING",
        wording("bftd.health.ledger_nearly_full", used="95%"),
    ),
    ({"ledger": {"failure": "the ledger cannot be written"}}, "CRITICAL", "the ledger cannot be written"),
]


@pytest.mark.parametrize(("fault", "level", "text"), FAULTS)
def test_each_fault_has_its_level_and_its_text(fault: dict[str, Any], level: str, text: str) -> None:
    found = judged(well() | fault)
    assert (found.level, found.code) == (level, LEVELS.index(found.level))
    assert [(each.level, each.text) for each in found.problems] == [(level, text)]
    assert found.line.startswith(f"BFTD {level}: {text} | nodes=")


@pytest.mark.parametrize(
    "fine",
    [
        {"hold": "job 9 waits", "held_s": 30.0},
        {"snapshot_age_s": SNAPSHOT_WARNING_S - 1},
        {"ledger": {"bytes": 50, "max_bytes": 100, "failure": None}},
        {"ledger": {"bytes": 50}},
        {
            "hours": {
                "open": False,
                "until_s": 9.0,
                "text": excerpt("core.sentences.begins_again", when=fragment("Mon 20:00")),
            }
        },
    ],
)
def test_what_passes_by_itself_is_no_fault(fine: dict[str, Any]) -> None:
    assert judged(well() | fine).level == "OK"


def test_the_worst_fault_comes_first_and_a_line_stays_a_line() -> None:
    pauses = [
        {"text": wording("core.sentences.paused", what=f"user u{number}", by="root", why="a | b")}
        for number in range(9)
    ]
    line = judged(well() | {"pauses": pauses, "alarms": [{"text": "n1 is overdue"}]}).line
    assert line.startswith(
        "BFTD CRITICAL: " + wording("core.sentences.paused", what="n1 is overdue; user u0", by="root", why="a / b; ")
    )
    assert "; 5 more | nodes=3" in line
    assert line.count("|") == 1


def test_a_daemon_that_does_not_answer_is_critical() -> None:
    error = "no daemon answers at /run/bftd/bftd.sock: start bftd"
    found = unreachable(error)
    assert (found.code, found.line) == (2, f"BFTD CRITICAL: {error}")
    assert found.to_json()["problems"] == [{"level": "CRITICAL", "kind": "unreachable", "text": found.problems[0].text}]


def test_what_the_core_knows_of_overdue_nodes_and_silent_drivers_is_found() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pause("node n1", release=True, why="new disk")
    core.silent.add("1")
    core.pool("n1", "n2", after_s=70.0)
    found = judged(overview(core.state, core.time_s, "1.0", "live", [], []))
    assert [(each.level, each.text, each.key) for each in found.problems] == [
        ("CRITICAL", wording("service.steered.overdue", node="n1", since_s=70), "overdue:n1"),
        ("WARNING", wording("core.sentences.paused", what="node n1", by="root", why="new disk"), "pause:node n1"),
        ("WARNING", wording("bftd.health.silent_drivers", silent=1), "silent"),
    ]


def test_a_problem_keeps_its_name_while_its_text_goes_on() -> None:
    def key(**fault: Any) -> str:
        (problem,) = judged(well() | fault).problems
        return problem.key

    assert key(snapshot_age_s=70.0) == key(snapshot_age_s=400.0) == "snapshot"
    assert key(alarms=[{"kind": "operator", "node": None, "text": "it has stopped"}]) == "operator"
    assert key(alarms=[{"kind": "daemon a1b2", "node": None, "text": "pilots of another"}]) == "daemon:a1b2"
    assert key(pauses=[{"kind": "all", "names": [], "text": "everything is paused"}]) == "pause:all"
    assert key(silent=["1"]) == key(silent=["1", "2"]) == "silent"
