"""Every decision in words, as what is and as what would be; and nothing said where nobody listens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from bftd.core import decisions
from bftd.core.decisions import (
    Cancelled,
    CancellingStopped,
    Decision,
    Ended,
    ForeignPilots,
    GaveBack,
    GetsFirst,
    Grew,
    GrowthPaused,
    JobStrays,
    Keeps,
    Left,
    Lost,
    MapKept,
    NodeAvoided,
    NodeOverdue,
    Noted,
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
from bftd.core.domain import (
    Decided,
    PoolNode,
    PoolView,
    Settings,
    State,
)
from bftd.core.events import (
    Configured,
    Event,
    Finished,
    PoolObserved,
    Registered,
)
from bftd.core.sentences import sentence
from bftd.core.step import fold
from bftd.protocol.changes import why_of
from bftd.protocol.reports import CrashReport, NoteReport, SuspendReport
from tests.bftd.builders import of, registration, reported

# A decision, and what follows its subject in the indicative and in the conditional.
DEEDS: list[tuple[Any, str, str]] = [
    (
        Started("a", 2, ("n1", "n2"), 123.456, True),
        "starts on 2 nodes (n[1-2]): 123 samples/s expected",
        "start on 2 nodes (n[1-2]): 123 samples/s expected",
    ),
    (
        Resumed("a", 1, ("n3",), None, False),
        "resumes on 1 node (n3): its speed is not known yet",
        "resume on 1 node (n3): its speed is not known yet",
    ),
    (
        Grew("a", 1, ("n2",), 40.0, False, 120.0, 1.25),
        "grows from 1 to 2 nodes (n2): about +40 samples/s over the next 120 s outweigh 1.2 s of stall",
        "grow from 1 to 2 nodes (n2): about +40 samples/s over the next 120 s outweigh 1.2 s of stall",
    ),
    (
        Shrank("a", 3, ("n1", "n2"), "why"),
        "shrinks from 3 to 1 node, n[1-2] given back: why",
        "shrink from 3 to 1 node, n[1-2] given back: why",
    ),
    (
        Suspended("a", ("n1",), "why"),
        "is suspended and gives back n1: why",
        "be suspended and give back n1: why",
    ),
    (
        GaveBack("a", ("n1",), 0, "n1 runs a job"),
        "gives back n1 (none is left): n1 runs a job",
        "give back n1 (none is left): n1 runs a job",
    ),
    (
        Left("a", ("n3", "n4"), 2, "job 4711"),
        "left n[3-4] to job 4711, which can start there (2 nodes left)",
        "leave n[3-4] to job 4711, which can start there (2 nodes left)",
    ),
    (
        Left("a", ("n3",), 0, "job 4711", "12:03:10"),
        "leaves n3 by 12:03:10 to job 4711, which can start there (none is left)",
        "leave n3 by 12:03:10 to job 4711, which can start there (none is left)",
    ),
    (Waits("a", "job 9 waits"), "waits: job 9 waits", "wait: job 9 waits"),
    (Stays("a", 2, "it starts late"), "stays at 2 nodes: it starts late", "stay at 2 nodes: it starts late"),
    (
        Keeps("a", 1, 2, 0.5, 60.0, 90.0),
        "keeps 1 node: 2 more would add 0.5 samples/s, which over the next 60 s does not outweigh 90.0 s of stall",
        "keep 1 node: 2 more would add 0.5 samples/s, which over the next 60 s does not outweigh 90.0 s of stall",
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
    (Saved("a", 40), "is suspended to disk at step 40", "be suspended to disk at step 40"),
    (Lost("a", "its driver is gone"), "is lost: its driver is gone", "be lost: its driver is gone"),
    (Ended("a", 0, ""), "has finished with exit code 0", "have finished with exit code 0"),
    (Cancelled("a", "it overstays"), "is cancelled: it overstays", "be cancelled: it overstays"),
]
NOTICES: list[tuple[Any, str]] = [
    (Noted("a", "starts late"), "a: starts late"),
    (MapKept("no licence"), "the current map is kept: the solver failed: no licence"),
    (
        SolverReplaced("gurobi", "highs", "solver gurobi: no licence", 300.0),
        "solver gurobi: no licence; highs solves in its place; it is tried again in 300 s",
    ),
    (NodeAvoided("n4", 300.0, 3), "n4 is left alone for 300 s: 3 different pilots failed there"),
    (NodeOverdue("n4", 5.5, "17"), "n4 was asked back 5.5 s ago and is still in use by 17"),
    (JobStrays("eve", ("n1", "n2"), "9"), "eve has n[1-2] with job 9, which no lease stands behind"),
    (
        GrowthPaused("root", "everything", "power test", True),
        "root paused everything and asked back what was lent: power test",
    ),
    (GrowthPaused("root", "user ann", "see ticket 4", False), "root paused user ann: see ticket 4"),
    (PauseLifted("root", "nodes n[1-4]"), "root lifted the pause of nodes n[1-4]"),
    (
        CancellingStopped(12, 40, 4),
        "operator mode has stopped: it would cancel 12 jobs within an hour where 40 run, and 4 is its bound: see "
        "`bft status`, then reload bftd to let it go on",
    ),
    (
        ForeignPilots("a1b2", ("7", "8", "9", "10"), ("ann",)),
        "pilots of another bftd (a1b2) run in this partition (jobs 7, 8, 9 and 1 more of ann): stop one of the two",
    ),
]


def both(decision: Decision) -> tuple[str, str]:
    """A decision in both moods."""
    decided = Decided("1", decision)
    return decided.text, replace(decided, mood="conditional").text


@pytest.mark.parametrize(("deed", "does", "would"), DEEDS)
def test_a_deed_is_told_as_what_is_and_as_what_would_be(deed: Decision, does: str, would: str) -> None:
    assert both(deed) == (f"a {does}", f"a would {would}")


@pytest.mark.parametrize(("notice", "text"), NOTICES)
def test_a_notice_is_marked_where_it_is_of_a_shadow(notice: Decision, text: str) -> None:
    assert both(notice) == (text, f"(shadow) {text}")


def test_no_decision_is_without_words_and_no_two_are_of_one_kind() -> None:
    kinds = get_args(Decision)
    assert {type(deed) for deed, *_ in DEEDS} == set(get_args(decisions.Deed))
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
        "Resumed": "its speed is not known yet",
        "Grew": "about +40 samples/s over the next 120 s outweigh 1.2 s of stall",
        "Shrank": "why",
        "Suspended": "why",
        "GaveBack": "n1 runs a job",
    }
    found = {type(deed).__name__: why_of(sentence(deed), "a") for deed, _, _ in DEEDS}
    assert {name: found[name] for name in whys} == whys
    named = Shrank("a: grows from 1", 3, ("n1", "n2"), "why: so")
    assert why_of(sentence(named), named.who) == "why: so"
    assert why_of("n7 job 12 needs it", "a") == "n7 job 12 needs it"
