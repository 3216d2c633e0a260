"""What the job's output says of its nodes: what has come about, in the daemon's words, and never too much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.protocol.changes import ASKED
from elastic.driver.progress.job_output import Changes, TrainingRate, span
from tests.support.messages import wording

pytestmark = pytest.mark.slow

GREW = (
    "a "
    + wording("core.sentences.grows", before=2, after="8 nodes", nodes="n[1-6]", gain="")
    + wording("core.sentences.gain", rate="+1.35e+03", t_fwd_s=120, stall_s=2.0)
)
STARTED = "a " + wording(
    "core.sentences.starts", count="2 nodes", nodes="n[7-8]", rate=wording("protocol.changes.unknown_speed")
)


@dataclass
class Node:
    node: str
    granted: str = ""
    reason: str = ""
    revoked: bool = False
    expiring: bool = False

    @property
    def lease(self) -> str:
        return f"{self.node}.1"


class Job:
    """A trainer whose output is looked at, a second at a time."""

    def __init__(self, *, resumes: bool = False) -> None:
        self.changes = Changes("a", resumes=resumes)
        self.now_s = 0.0
        self.groups = 0
        self.lines: list[str] = []

    def on(self, *nodes: Node, seconds: int = 3, rate: float = 0.0, ends_in_s: float | None = None) -> list[str]:
        """The lines while these nodes train as a new group."""
        self.groups += 1
        self.changes.listed((node.lease, node.granted) for node in nodes if node.granted)
        known = TrainingRate(self.groups, len(nodes), rate, ends_in_s)
        return self.look(nodes, known, seconds)

    def look(self, nodes: Sequence[Node], known: TrainingRate, seconds: int) -> list[str]:
        said = [line for _ in range(seconds) if (line := self._once(nodes, known))]
        self.lines += said
        return said

    def _once(self, nodes: Sequence[Node], known: TrainingRate) -> str | None:
        self.now_s += 1.0
        return self.changes.look(self.now_s, nodes, known)

    def suspended(self, step: int) -> str | None:
        line = self.changes.suspended(self.now_s, step)
        self.lines += [line] if line else []
        return line


def few(*numbers: int, granted: str = "") -> list[Node]:
    return [Node(f"n{number}", granted) for number in numbers]


def test_each_change_is_one_line_with_why_rate_and_time_to_go() -> None:
    job, first, more = Job(), few(7, 8, granted=STARTED), few(1, 2, 3, 4, 5, 6, granted=GREW)
    assert job.on(*first, rate=400.0) == [
        wording("elastic.changes.started", count="2 nodes", nodes="n[7-8]", speed="400 samples/s")
    ]
    assert job.on(*first, *more, rate=1510.0, ends_in_s=7810.0) == [
        "grew from 2 to 8 nodes (n[1-6]): +1.35e+03 samples/s over the next 120 s outweigh 2.0 s of stall; "
        "1510 samples/s, about 2 h 10 min to go"
    ]
    for node in more:
        node.reason, node.revoked = f"{node.node} job 12 needs it", True
    assert job.on(*first, rate=400.0) == [
        wording(
            "elastic.changes.shrank",
            before=8,
            after="2 nodes",
            nodes="n[1-6]",
            why="job 12 needs it",
            speed="400 samples/s",
        )
    ]
    for node in first:
        node.reason = ASKED
    assert job.suspended(120) == wording("elastic.changes.suspended", nodes="n[7-8]", step=120, why=ASKED)
    job.now_s += 60.0
    again = few(7, granted="a resumes on 1 node (n7): 200 samples/s expected")
    assert job.on(*again, rate=200.0) == ["resumed on 1 node (n7); 200 samples/s"]


def test_what_was_planned_and_not_reached_is_not_told_as_if_it_were() -> None:
    job, first, more = Job(), few(7, 8), few(1, 2, 3, 4, 5, 6, granted=GREW)
    job.on(*first, rate=400.0)
    job.changes.listed((node.lease, node.granted) for node in more)
    [line] = job.on(*first, *more[:4], rate=1200.0)
    assert line.startswith("grew from 2 to 6 nodes (n[1-4]), 4 of 6 nodes planned: +1.35e+03")
    [line] = job.on(*first, *more, rate=1510.0)
    assert line.startswith("grew from 6 to 8 nodes (n[5-6]): +1.35e+03"), "now all of them are there"


def test_regression_the_same_nodes_planned_twice_were_told_as_twice_as_many() -> None:
    job = Job()
    for attempt in (1, 2):  # the first never came to train
        job.changes.listed((f"n{number}.{attempt}", STARTED) for number in (7, 8))
    first = few(7, 8, granted=STARTED)
    job.changes.listed((node.lease, STARTED) for node in first)
    assert job.look(first, TrainingRate(1, 2, 400.0), 3) == [
        wording("elastic.changes.started", count="2 nodes", nodes="n[7-8]", speed="400 samples/s")
    ]


def test_regression_a_trainer_whose_nodes_went_before_its_first_step_was_suspended_without_a_why() -> None:
    job, nodes = Job(), few(7, 8)
    assert job.look(nodes, TrainingRate(), 3) == []
    for node in nodes:
        node.reason, node.revoked = (
            f"{node.node} is left to " + wording("pool.judgement.job_that_waits", planned=7),
            True,
        )
    assert job.suspended(0) == (
        wording(
            "elastic.changes.suspended",
            nodes="n[7-8]",
            step=0,
            why="left to " + wording("pool.judgement.job_that_waits", planned=7),
        )
    )
    assert job.suspended(0) == wording("elastic.changes.back_at_step", back="was suspended", gone=0)


def test_a_group_that_has_not_stepped_yet_is_not_told_of_and_a_speed_of_the_group_before_neither() -> None:
    job, first, more = Job(), few(1), few(2)
    job.on(*first, rate=100.0)
    assert job.look([*first, *more], TrainingRate(job.groups, 1, 100.0), 5) == []
    assert job.on(*first, *more, rate=0.0, seconds=2) == []
    assert job.look([*first, *more], TrainingRate(job.groups + 1, 1, 100.0), 3) == [], "it is another group again"
    assert job.look([*first, *more], TrainingRate(job.groups + 2, 2, 200.0), 3) == [
        wording("elastic.changes.grew", before=1, after="2 nodes", nodes="n2", speed="200 samples/s")
    ]


def test_a_script_that_tells_of_no_steps_is_told_of_without_its_speed() -> None:
    job = Job(resumes=True)
    assert job.look(few(1, 2), TrainingRate(), 20) == [
        "resumed" + wording("cli.size_choose_shown.on_nodes", nodes=2) + " (n[1-2])"
    ]


def test_a_node_that_is_lost_is_not_called_given_back() -> None:
    job, nodes = Job(), few(1, 2)
    job.on(*nodes, rate=100.0)
    nodes[1].reason = wording("elastic.connections.agent_gone", node="n2")
    assert job.on(nodes[0], rate=50.0) == [
        wording(
            "elastic.changes.lost",
            before=2,
            after="1 node",
            nodes="n2",
            why=wording("elastic.connections.agent_gone", node="n2"),
            speed="50 samples/s",
        )
    ]


def test_nodes_that_come_and_go_at_once_are_one_line() -> None:
    job, nodes = Job(), few(1, 2, 3)
    job.on(nodes[0], nodes[1], rate=100.0)
    nodes[1].reason, nodes[1].revoked = "n2 job 9 needs it", True
    [line] = job.on(nodes[0], nodes[2], rate=100.0)
    assert line == wording(
        "elastic.changes.exchanged",
        count="2 nodes",
        exchanged="n3 new, n2 given back",
        why="job 9 needs it",
        speed="100 samples/s",
    )


def test_a_trainer_that_is_moved_to_and_fro_is_summed_up() -> None:
    job, nodes = Job(), few(1, 2)
    for _ in range(12):
        job.on(*nodes, rate=100.0)
        job.on(nodes[0], rate=50.0)
    assert len(job.lines) == 8, "four lines a minute"
    assert job.lines[4] == wording(
        "elastic.changes.many", times=17, least=1, most="2 nodes", now="2 nodes", nodes="n[1-2]", speed="100 samples/s"
    )


@given(st.lists(st.tuples(st.sets(st.integers(1, 4)), st.integers(1, 30), st.booleans()), max_size=30))
def test_never_more_than_four_lines_a_minute_and_each_names_who_trains(
    moves: list[tuple[set[int], int, bool]],
) -> None:
    job, at_s = Job(), []
    for numbers, seconds, rated in moves:
        if not numbers:
            at_s += [job.now_s] * (job.suspended(7) is not None)
        for _ in range(seconds):
            if job.on(*few(*numbers), rate=10.0 * rated, seconds=1):
                at_s.append(job.now_s)
    assert all(later - at >= 60.0 for at, later in zip(at_s, at_s[4:], strict=False))
    assert len(job.lines) == len(at_s)


def test_times_are_told_in_two_units_at_most() -> None:
    told = [span(seconds) for seconds in (0.0, 59.4, 59.6, 3599.0, 7200.0, 7810.0, 172_800.0, 180_000.0)]
    assert told == ["1 s", "59 s", "1 min", "1 h", "2 h", "2 h 10 min", "2 days", "2 days 2 h"]
