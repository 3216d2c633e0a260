"""Who answers and who does not, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic.base.timing import BEAT_S, BUSY_TIMES, DRIVER_LOST_S, FROZEN_S, KILLED_S, PING_S
from elastic.driver.failures.liveness import Liveness
from elastic.driver.pilots.launcher import Pilot
from elastic.link.peer import Peer
from tests.elastic.fakes import ops, peer, sent, settings_for
from tests.support.messages import wording

pytestmark = pytest.mark.slow


class Stage:
    """Two nodes with an agent and a worker each, and all that a liveness asks for."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.settings = settings_for(folder)
        self.lines: list[str] = []
        self.abandoned: list[tuple[str, str]] = []
        self.all = [self.pilot("n1"), self.pilot("n2")]
        pilot_manager: Any = self
        self.liveness = Liveness(pilot_manager, pilot_manager, clock=lambda: self.now_s)
        for pilot in self.all:
            for one in (pilot.agent, *pilot.workers.values()):
                assert one
                self.liveness.heard(one)

    def pilot(self, node: str) -> Pilot:
        pilot = Pilot(f"{node}.1", node, 3600.0, "", state="ready", answers=True)
        pilot.agent = peer(role="agent")
        pilot.workers[0] = peer(role="worker", pid=100 + int(node[1:]))
        return pilot

    def log(self, text: str) -> None:
        self.lines.append(text)

    def abandon(self, pilot: Pilot, why: str) -> None:
        self.abandoned.append((pilot.node, why))
        pilot.agent = None
        pilot.workers.clear()

    def agent(self, node: str) -> Peer:
        agent = next(pilot.agent for pilot in self.all if pilot.node == node)
        assert agent
        return agent

    def worker(self, node: str) -> Peer:
        return next(pilot.workers[0] for pilot in self.all if pilot.node == node)

    def live(self, length_s: float, *answering: Peer) -> None:
        """Lets time pass as the driver sees it, with these answering all along."""
        for beat in range(round(length_s / BEAT_S)):
            self.now_s += BEAT_S
            self.liveness.beat()
            if beat % round(PING_S / BEAT_S) == 0:
                self.liveness.ping()
            for one in answering:
                self.liveness.heard(one)

    def looked(self, verdict: str, why: str, silent_s: float = FROZEN_S) -> None:
        said = {"op": "looked", "pid": 101, "verdict": verdict, "silent_s": silent_s, "why": why}
        self.liveness.looked(self.all[0], said)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_regression_a_node_that_vanished_without_a_word_stayed_a_member_for_ever(stage: Stage) -> None:
    others = stage.agent("n2"), stage.worker("n1"), stage.worker("n2")
    stage.live(DRIVER_LOST_S, *others)
    assert stage.abandoned == []
    stage.live(2 * BEAT_S, *others)
    assert stage.abandoned == [("n1", wording("elastic.liveness.node_silent", node="n1", DRIVER_LOST_S=5))]
    stage.live(60, *others)
    assert len(stage.abandoned) == 1


def test_each_agent_gets_a_beat_to_answer(stage: Stage) -> None:
    agent = stage.agent("n1")
    stage.live(2.0)
    assert [message["op"] for message in sent(agent)] == ["beat"] * 4


def test_nodes_that_answer_stay(stage: Stage) -> None:
    stage.live(600, *(stage.agent(node) for node in ("n1", "n2")), *(stage.worker(node) for node in ("n1", "n2")))
    assert (stage.abandoned, stage.lines) == ([], [])


def test_a_driver_that_was_stopped_itself_takes_no_node_for_lost(stage: Stage) -> None:
    agents = stage.agent("n1"), stage.agent("n2")
    everybody = *agents, stage.worker("n1"), stage.worker("n2")
    stage.live(10, *everybody)
    for length_s in (60.0, 3600.0, 1e6):
        stage.now_s += length_s
        # the answers to the beats before lie in the sockets still: they are read after the first beat
        stage.live(BEAT_S)
        stage.live(2, *everybody)
    assert stage.abandoned == []
    assert ops(agents[0]) == []


def test_a_driver_that_is_slow_all_the_time_waits_longer_but_not_for_ever(stage: Stage) -> None:
    for _ in range(3):
        stage.now_s += 4.0
        stage.liveness.beat()
    assert stage.abandoned == []
    for _ in range(3):
        stage.now_s += 4.0
        stage.liveness.beat()
    assert len(stage.abandoned) == 2


def test_an_agent_that_starts_its_node_process_still_is_not_expected_to_answer(stage: Stage) -> None:
    stage.all[0].answers = False
    stage.live(60, stage.agent("n2"))
    assert stage.abandoned == []


def test_a_silent_worker_is_looked_at_again_and_again_and_the_driver_condemns_nobody(stage: Stage) -> None:
    agents, alive = (stage.agent("n1"), stage.agent("n2")), stage.worker("n2")
    stage.liveness.stepped(stage.worker("n1"))
    stage.live(FROZEN_S * 2, *agents, alive)
    looks = [message for message in sent(agents[0]) if message["op"] == "look"]
    assert len(looks) >= 10
    assert {(look["pid"], look["stepped"]) for look in looks} == {(101, True)}
    silences = [look["silent_s"] for look in looks]
    assert silences == sorted(silences)
    assert silences[0] <= 3 * PING_S
    assert ops(agents[1]) == []
    assert (stage.abandoned, stage.lines) == ([], [])


def test_a_worker_at_its_imports_is_looked_at_as_one_that_has_not_begun(stage: Stage) -> None:
    agents = stage.agent("n1"), stage.agent("n2")
    stage.live(3 * PING_S, *agents)
    assert {message["stepped"] for message in sent(agents[0]) if message["op"] == "look"} == {False}


def test_regression_that_a_frozen_worker_was_ended_was_said_every_two_seconds(stage: Stage) -> None:
    agents, alive = (stage.agent("n1"), stage.agent("n2")), stage.worker("n2")
    stage.live(FROZEN_S, *agents, alive)
    stage.looked("killed", "it is stopped")
    stage.live(KILLED_S / 2, *agents, alive)
    assert stage.lines == [
        wording("elastic.liveness.worker_silent", node="n1", silent_s=15)
        + wording("elastic.liveness.ended", text="", why="it is stopped")
    ]
    assert stage.abandoned == []


def test_a_node_on_which_a_killed_worker_stays_is_given_back(stage: Stage) -> None:
    agents, alive = (stage.agent("n1"), stage.agent("n2")), stage.worker("n2")
    stage.live(FROZEN_S, *agents, alive)
    stage.looked("killed", wording("elastic.vitals.did_nothing", still_s=15))
    stage.live(KILLED_S + 2 * PING_S, *agents, alive)
    assert stage.abandoned == [("n1", wording("elastic.liveness.worker_unkillable", node="n1"))]


def test_that_a_silent_worker_is_at_work_is_said_once_each_time(stage: Stage) -> None:
    agents, alive, busy = (stage.agent("n1"), stage.agent("n2")), stage.worker("n2"), stage.worker("n1")
    stage.live(FROZEN_S, *agents, alive)
    for _ in range(3):
        stage.looked("busy", "it is at work", 16.0)
    [line] = stage.lines
    silent = wording("elastic.liveness.worker_silent", node="n1", silent_s=16)
    at_work = wording("elastic.vitals.at_work")
    assert line.startswith(wording("elastic.liveness.may_be_so", text=silent, why=at_work, most_s=600))
    stage.liveness.heard(busy)
    stage.live(FROZEN_S, *agents, alive)
    stage.looked("busy", "it is at work")
    assert len(stage.lines) == 2


def test_a_silent_worker_that_its_agent_does_not_find_costs_the_node_in_the_end(stage: Stage) -> None:
    agents, alive = (stage.agent("n1"), stage.agent("n2")), stage.worker("n2")
    stage.live(BUSY_TIMES * FROZEN_S, *agents, alive)
    assert stage.abandoned == []
    stage.live(2 * KILLED_S, *agents, alive)
    assert [node for node, _ in stage.abandoned] == ["n1"]


def test_what_is_said_of_a_worker_that_has_gone_meanwhile_is_only_said(stage: Stage) -> None:
    stage.liveness.gone(stage.all[0].workers.pop(0))
    stage.looked("killed", "it is stopped")
    stage.looked("busy", wording("elastic.vitals.at_work"))
    assert len(stage.lines) == 1
    stage.live(60, stage.agent("n1"), stage.agent("n2"), stage.worker("n2"))
    assert stage.abandoned == []
