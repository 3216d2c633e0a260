"""Every decision in words, as what is and as what would be; and nothing said where nobody listens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from bftd.core.model import decisions
from bftd.core.model.decisions import (
    Cancelled,
    CancellingStopped,
    Decision,
    Ended,
    ForeignPilots,
    GaveBack,
    GetsFirst,
    Grew,
    GrowthPaused,
    Keeps,
    Left,
    Lost,
    MapKept,
    NodeAvoided,
    NodeOverdue,
    Noted,
    OrphanJobFound,
    PauseLifted,
    Resumed,
    Saved,
    Shrank,
    SolverReplaced,
    Started,
    Stays,
    Suspended,
    Tried,
    Waits,
)
from bftd.core.model.domain import Decided, PoolNode, PoolView, Settings, State
from bftd.core.model.events import Configured, Event, Finished, PoolObserved, Registered
from bftd.core.model.messages import sentence
from bftd.core.step import fold
from bftd.protocol import changes
from bftd.protocol.changes import why_of
from bftd.protocol.reports import CrashReport, NoteReport, SuspendReport
from tests.bftd.builders import of, registration, reported
from tests.support.messages import wording

# A decision, and what follows its subject in the indicative and in the conditional.
TRAINER_DECISIONS: list[tuple[Any, str, str]] = [
    (
        Started("a", 2, ("n1", "n2"), 123.456, True),
        wording("core.sentences.starts", count="2 nodes", nodes="n[1-2]", rate="123 samples/s expected"),
        wording("core.sentences.would_start", count="2 nodes", nodes="n[1-2]", rate="123 samples/s expected"),
    ),
    (
        Resumed("a", 1, ("n3",), None, False),
        wording("core.sentences.resumes", count="1 node", nodes="n3", rate=wording("protocol.changes.unknown_speed")),
        "resume on 1 node (n3): " + wording("protocol.changes.unknown_speed"),
    ),
    (
        Grew("a", 1, ("n2",), 40.0, False, 120.0, 1.25),
        wording("core.sentences.grows", before=1, after="2 nodes", nodes="n2", gain="")
        + wording("core.sentences.gain", rate="about +40", t_fwd_s=120, stall_s=1.2),
        wording("core.sentences.would_grow", before=1, after="2 nodes", nodes="n2", gain="")
        + wording("core.sentences.gain", rate="about +40", t_fwd_s=120, stall_s=1.2),
    ),
    (
        Shrank("a", 3, ("n1", "n2"), "why"),
        wording("core.sentences.shrinks", before=3, after="1 node", nodes="n[1-2]", why="why"),
        wording("core.sentences.would_shrink", before=3, after="1 node", nodes="n[1-2]", why="why"),
    ),
    (
        Suspended("a", ("n1",), "why"),
        wording("core.sentences.suspended", nodes="n1", why="why"),
        wording("core.sentences.would_be_suspended", nodes="n1", why="why"),
    ),
    (
        GaveBack("a", ("n1",), 0, "n1 runs a job"),
        wording("core.sentences.gives_back", nodes="n1", left="none is left", why="n1 runs a job"),
        wording("core.sentences.would_give_back", nodes="n1", left="none is left", why="n1 runs a job"),
    ),
    (
        Left("a", ("n3", "n4"), 2, "job 4711"),
        wording("core.sentences.left", nodes="n[3-4]", to="job 4711", left="2 nodes left"),
        wording("core.sentences.would_leave_at_once", nodes="n[3-4]", to="job 4711", left="2 nodes left"),
    ),
    (
        Left("a", ("n3",), 0, "job 4711", "12:03:10"),
        wording("core.sentences.leaves", nodes="n3", by="12:03:10", to="job 4711", left="none is left"),
        wording("core.sentences.would_leave", nodes="n3", by="12:03:10", to="job 4711", left="none is left"),
    ),
    (Waits("a", "job 9 waits"), "waits: job 9 waits", "wait: job 9 waits"),
    (
        Stays("a", 2, "it starts late"),
        wording("core.sentences.stays", held="2 nodes", why="it starts late"),
        wording("core.sentences.would_stay", held="2 nodes", why="it starts late"),
    ),
    (
        Keeps("a", 1, 2, 0.5, 60.0, 90.0),
        "keeps" + wording("core.sentences.keeps", held="1 node", more=2, gain=0.5, t_fwd_s=60, stall_s=90.0),
        "keep" + wording("core.sentences.keeps", held="1 node", more=2, gain=0.5, t_fwd_s=60, stall_s=90.0),
    ),
    (
        GetsFirst("a", 31.0, 60.0),
        "is to have a first node within 60 s: its user has had none for 31 s",
        "be to have a first node within 60 s: its user has had none for 31 s",
    ),
    (
        Tried("a", 8, 4, 33.0, 0.5),
        "is tried on 4 nodes for 33 s, after 8, to learn how it scales",
        "be tried on 4 nodes for 33 s, after 8, to learn how it scales",
    ),
    (
        Saved("a", 40),
        "is suspended" + wording("core.sentences.saved_at", step=40),
        "be suspended" + wording("core.sentences.saved_at", step=40),
    ),
    (
        Lost("a", "its driver is gone"),
        "is lost: " + wording("core.observation.driver_gone"),
        "be lost: " + wording("core.observation.driver_gone"),
    ),
    (Ended("a", 0, ""), wording("core.sentences.finished", exit_code=0), "have finished with exit code 0"),
    (
        Ended("a", 143, changes.CANCELLED, 820),
        wording("core.sentences.cancelled_at", step=820),
        "have been cancelled at step 820",
    ),
    (Ended("a", 143, changes.CANCELLED, 0), "was cancelled", "have been cancelled"),
    (Cancelled("a", "it overstays"), "is cancelled: it overstays", "be cancelled: it overstays"),
]
NOTICES: list[tuple[Any, str]] = [
    (Noted("a", "starts late"), "a: starts late"),
    (MapKept("no licence"), "the current map is kept: the solver failed: no licence"),
    (
        SolverReplaced("gurobi", "highs", "solver gurobi: no licence", 300.0),
        "solver gurobi: no licence; highs solves in its place; it is tried again in 300 s",
    ),
    (
        NodeAvoided("n4", 300.0, 3),
        wording("core.sentences.node_avoided", node="n4", for_s=300, pilots="3 different pilots"),
    ),
    (NodeOverdue("n4", 5.5, "17"), wording("core.sentences.node_overdue", node="n4", since_s=5.5, trainer=17)),
    (
        OrphanJobFound("eve", ("n1",), "9", "beef"),
        wording("core.sentences.orphan_job_foreign", user="eve", nodes="n1", job_id=9, daemon="beef"),
    ),
    (
        OrphanJobFound("eve", ("n1", "n2"), "9"),
        wording("core.sentences.orphan_job", user="eve", nodes="n[1-2]", job_id=9),
    ),
    (
        GrowthPaused("root", "everything", "power test", True),
        wording("core.sentences.paused_and_asked_back", by="root", what="everything", why="power test"),
    ),
    (GrowthPaused("root", "user ann", "see ticket 4", False), "root paused user ann: see ticket 4"),
    (PauseLifted("root", "nodes n[1-4]"), wording("core.sentences.pause_lifted", by="root", what="nodes n[1-4]")),
    (
        CancellingStopped(12, 40, 4),
        wording("core.sentences.cancelling_stopped", jobs=12, running=40, most=4),
    ),
    (
        ForeignPilots("a1b2", ("7", "8", "9", "10"), ("ann",)),
        wording("core.sentences.foreign_pilots", identity="a1b2", jobs="jobs 7, 8, 9 and 1 more of ann"),
    ),
]


def both(decision: Decision) -> tuple[str, str]:
    """A decision in both moods."""
    decided = Decided("1", decision)
    return decided.text, replace(decided, mood="conditional").text


@pytest.mark.parametrize(("decision", "does", "would"), TRAINER_DECISIONS)
def test_a_trainers_decision_is_put_as_fact_or_condition(decision: Decision, does: str, would: str) -> None:
    assert both(decision) == (f"a {does}", f"a would {would}")


@pytest.mark.parametrize(("notice", "text"), NOTICES)
def test_a_notice_is_marked_where_it_is_of_a_shadow(notice: Decision, text: str) -> None:
    assert both(notice) == (text, f"(shadow) {text}")


def test_no_decision_is_without_words_and_no_two_are_of_one_kind() -> None:
    kinds = get_args(Decision)
    assert {type(decision) for decision, *_ in TRAINER_DECISIONS} == set(get_args(decisions.TrainerDecision))
    assert {type(notice) for notice, _ in NOTICES} == set(get_args(decisions.Notice))
    assert len({kind.kind for kind in kinds}) == len(kinds)


def test_a_decision_is_data_too() -> None:
    assert decisions.to_json(Stays("a", 2, "job 9 waits")) == {
        "kind": "stays",
        "who": "a",
        "held": 2,
        "why": "job 9 waits",
    }


def eventful() -> list[Event]:
    """Events that make the core decide on most that it can decide on."""

    def pool(time_s: float, *names: str, hold: str | None = None) -> PoolObserved:
        return PoolObserved(
            time_s,
            PoolView(int(time_s), time_s, hold, {name: PoolNode(name, "IDLE", True, "is idle") for name in names}),
        )

    return [
        Configured(1.0, Settings().changed(quarantine_after=1, pj_max=2)),
        Registered(1.0, registration("1", nodes_min=2)),
        Registered(1.0, registration("2", curve=((1, 10.0), (4, 12.0)), up_cost_s=1e4)),
        pool(2.0, "n1", "n2", "n3"),
        pool(3.0, "n1", "n2", "n3", "n4", "n5", hold="job 9 waits"),
        pool(4.0, "n2", "n5"),
        reported(4.0, "1", SuspendReport(4.0, 7), NoteReport(4.0, "hello"), CrashReport(4.0, "n5", 1)),
        Registered(5.0, registration("3")),
        pool(6.0, "n2", "n6", "n7"),
        Configured(7.0, Settings().changed(nodes_per_user=1)),
        Finished(8.0, "1", 0, ""),
        pool(9.0),
        pool(90.0, "n1"),
    ]


@pytest.mark.parametrize("explain", [True, False])
def test_where_nobody_reads_no_decision_is_made_up(explain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[type] = set()
    for kind in get_args(Decision):
        plain = kind.__init__

        def counted(self: Any, *arguments: Any, plain: Any = plain) -> None:
            made.add(type(self))
            plain(self, *arguments)

        monkeypatch.setattr(kind, "__init__", counted)
    state, actions = State(), []
    for event in eventful():
        state, done = fold(state, (event,), explain=explain)
        actions += done
    assert bool(made) == bool(of(actions, Decided)) == explain
    assert len(made) >= 9 or not explain
    assert all(bool(item.reason) == explain for item in state.leases.values() if item.live)


def test_the_driver_finds_in_a_sentence_why_the_trainer_changes() -> None:
    whys = {
        "Started": "123 samples/s expected",
        "Resumed": wording("protocol.changes.unknown_speed"),
        "Grew": wording("core.sentences.gain", rate="about +40", t_fwd_s=120, stall_s=1.2),
        "Shrank": "why",
        "Suspended": "why",
        "GaveBack": "n1 runs a job",
    }
    found = {type(decision).__name__: why_of(sentence(decision), "a") for decision, _, _ in TRAINER_DECISIONS}
    assert {name: found[name] for name in whys} == whys
    named = Shrank("a: grows from 1", 3, ("n1", "n2"), "why: so")
    assert why_of(sentence(named), named.who) == "why: so"
    assert why_of("n7 job 12 needs it", "a") == "n7 job 12 needs it"
