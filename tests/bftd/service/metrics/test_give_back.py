"""From a node being asked back to a regular job on it, as snapshots show it."""

from __future__ import annotations

import pytest

from bftd.core.model.domain import PoolNode
from bftd.service.metrics.give_back import AWAITED_S, FREE_S, Handovers

WANTED = PoolNode("n1", "IDLE", False, "is left to job 5", wanted=True)
PILOT = PoolNode("n1", "ALLOCATED", False, "is left to job 5", wanted=True, pilot="71")
ENDING = PoolNode("n1", "ALLOCATED+COMPLETING", False, "runs a job", wanted=True)
REGULAR = PoolNode("n1", "MIXED", False, "runs a job", wanted=True)
FREE = PoolNode("n1", "IDLE", True, "is idle")


def test_a_job_counts_from_when_its_node_was_asked_back_until_it_is_seen_there() -> None:
    found = Handovers()
    found.begin("n1", 100.0)
    found.begin("n1", 105.0)  # asked again, more urgently
    for at_s, node in ((101.0, PILOT), (102.0, ENDING), (103.0, WANTED)):
        assert found.seen({"n1": node}, ("n1",), at_s) == []
    assert found.seen({"n1": REGULAR}, (), 104.0) == [4.0]
    assert found.seen({"n1": REGULAR}, (), 105.0) == []


@pytest.mark.parametrize(
    ("node", "at_s"), [(None, 101.0), (FREE, 101.0 + FREE_S), (WANTED, 101.0 + AWAITED_S)], ids=["gone", "free", "late"]
)
def test_a_job_that_does_not_come_is_not_awaited_for_ever(node: PoolNode | None, at_s: float) -> None:
    found = Handovers()
    found.begin("n1", 100.0)
    assert found.seen({} if node is None else {"n1": node}, (), at_s) == []
    assert found.seen({"n1": REGULAR}, (), at_s + 1.0) == []


def test_a_node_that_is_idle_for_a_moment_between_two_cycles_is_still_awaited() -> None:
    found = Handovers()
    found.begin("n1", 100.0)
    assert found.seen({"n1": FREE}, (), 102.0) == []
    assert found.seen({"n1": REGULAR}, (), 104.0) == [4.0]


def test_a_node_that_is_lent_again_is_awaited_no_more() -> None:
    found = Handovers()
    found.begin("n1", 100.0)
    found.end("n1")
    assert found.seen({"n1": REGULAR}, (), 104.0) == []


def test_a_clock_that_is_set_makes_no_job_wait_longer_or_shorter() -> None:
    found = Handovers()
    found.begin("n1", 100.0)
    found.move(-3600.0)
    assert found.seen({"n1": REGULAR}, (), 104.0 - 3600.0) == [4.0]
