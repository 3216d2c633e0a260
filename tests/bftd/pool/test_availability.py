"""What waiting jobs find at one snapshot: nodes that are ready, and when the others are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from bftd.pool.availability import Availability, survey
from bftd.pool.backfill.model import Booking, JobEnd, Numbering
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import occupy
from slurm_plugin.read.types import Job, Node, Reservation, Snapshot
from tests.bftd.builders import PARTITION, job, node, pilot

WAITS = job("9")
NOBODY = Numbering.of(())


def ground(
    nodes: Iterable[Node],
    jobs: Iterable[Job] = (),
    leased: Mapping[str, str | None] | None = None,
    reservations: Iterable[Reservation] = (),
    kept: Iterable[str] = (),
    before: Numbering = NOBODY,
    slow: Iterable[str] = (),
) -> Availability:
    snapshot = Snapshot(1000.0, {item.name: item for item in nodes}, (WAITS, *jobs), tuple(reservations))
    harvest = Harvest.of(PARTITION)
    return survey(snapshot, occupy(snapshot, harvest), harvest, leased or {}, tuple(kept), before, tuple(slow))


def names(found: Availability, mask: int) -> tuple[str, ...]:
    return found.numbering.of_mask(mask)


def ends(found: Availability) -> dict[float, tuple[str, ...]]:
    return {end.at_s: names(found, end.mask) for end in found.ends if end.mask}


def test_a_node_is_ready_that_is_idle_or_under_one_of_our_pilots() -> None:
    nodes = [node("n1"), node("n2", "ALLOCATED"), node("n3", "ALLOCATED"), node("n4", "IDLE", "COMPLETING")]
    found = ground(nodes, [pilot("71", "n2"), job("5", "RUNNING", nodes=("n3",))], {"n2": "71"})
    assert names(found, found.ready) == ("n1", "n2", "n4")
    assert names(found, found.ours) == ("n2",)


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED"])
def test_a_leased_node_whose_pilot_is_not_seen_yet_is_ours(state: str) -> None:
    found = ground([node("n1", state)], leased={"n1": None})
    assert names(found, found.ours) == ("n1",)


def test_a_pilot_that_no_lease_stands_behind_is_not_ours_to_move() -> None:
    found = ground(
        [node("n1", "ALLOCATED"), node("n2", "ALLOCATED")], [pilot("71", "n1"), pilot("72", "n2")], {"n2": "99"}
    )
    assert (found.ready, found.ours, found.ends) == (0, 0, ())


@pytest.mark.parametrize("flag", ["DRAIN", "MAINT", "NOT_RESPONDING", "POWERED_DOWN", "NEVER_HEARD_OF"])
def test_a_node_that_slurm_gives_to_nobody_is_neither_ready_nor_ever_free(flag: str) -> None:
    found = ground([node("n1", "IDLE", flag), node("n2", "ALLOCATED", flag)], [job("5", "RUNNING", nodes=("n2",))])
    assert (found.ready, ends(found)) == (0, {})


def test_a_reserved_node_is_ready_and_booked() -> None:
    nodes = [node("n1", "IDLE", "RESERVED"), node("n2")]
    booked = [
        Reservation("r", ("n1", "elsewhere"), 900.0, 2000.0, frozenset()),
        Reservation("past", ("n2",), 10.0, 20.0, frozenset()),
        Reservation("other", ("elsewhere",), 900.0, 2000.0, frozenset()),
    ]
    found = ground(nodes, reservations=booked)
    assert names(found, found.ready) == ("n1", "n2")
    assert found.bookings == (Booking(found.numbering.mask(["n1"]), 900.0, 2000.0),)


@pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING"])
def test_a_node_with_a_job_is_free_when_its_last_job_has_reached_its_limit(state: str) -> None:
    nodes = [node("n1", "MIXED"), node("n2")]
    jobs = [
        job("5", state, nodes=("n1", "n2"), start_s=500.0, time_limit_s=600.0),
        job("6", state, nodes=("n1",), start_s=500.0, time_limit_s=900.0),
    ]
    found = ground(nodes, jobs)
    assert found.ready == 0, "Slurm shows the nodes of a suspended job idle"
    assert ends(found) == {1100.0: ("n2",), 1400.0: ("n1",)}


def test_a_job_past_its_limit_ends_in_a_moment_and_one_without_limit_never() -> None:
    nodes = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED"), node("n3", "ALLOCATED")]
    jobs = [
        job("5", "RUNNING", nodes=("n1", "n2"), start_s=100.0, time_limit_s=60.0),
        job("6", "RUNNING", nodes=("n2",), start_s=100.0, time_limit_s=None),
        job("7", "RUNNING", nodes=("n3",), start_s=None, time_limit_s=60.0),
    ]
    assert ends(ground(nodes, jobs)) == {1001.0: ("n1",), 1060.0: ("n3",)}


def test_a_job_of_another_partition_ends_without_nodes_of_those_that_wait() -> None:
    nodes = [node("n1", "ALLOCATED"), node("y1", "ALLOCATED", partitions=("fat",))]
    jobs = [
        job("5", "RUNNING", partition=("fat",), nodes=("y1",), start_s=500.0, time_limit_s=600.0),
        job("12_3", "RUNNING", nodes=("n1",), start_s=500.0, time_limit_s=900.0),
    ]
    found = ground(nodes, jobs)
    assert found.ends == (JobEnd(1100.0, 0, (0, 5, 0)), JobEnd(1400.0, found.numbering.mask(["n1"]), (1, 12, 3)))


def test_the_end_of_a_pilots_limit_is_no_end() -> None:
    suspended = job("71", "SUSPENDED", partition=(PARTITION,), nodes=("n1",), start_s=900.0, time_limit_s=600.0)
    running = pilot("72", "n2", start_s=900.0, time_limit_s=600.0)
    found = ground([node("n1"), node("n2", "ALLOCATED")], [suspended, running], {"n1": "71", "n2": "72"})
    assert names(found, found.ready) == ("n2",)
    assert found.ends == ()


def test_nodes_outside_the_pool_count_where_waiting_jobs_may_use_them_and_no_others() -> None:
    nodes = [node("n1"), node("x1", partitions=("batch",)), node("y1", partitions=("fat",))]
    assert ground(nodes).numbering.names == ("n1", "x1")


def test_regression_a_node_on_which_its_job_had_just_started_cost_the_job_another_one() -> None:
    """Slurm's nodes and jobs are two answers: the node may be busy already while its job still waits."""
    nodes = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED")]
    found = ground(nodes, kept=["n1"])
    assert names(found, found.ready) == ("n1",)
    assert found.ours == 0
    held = ground(nodes, [job("5", "RUNNING", nodes=("n1",))], kept=["n1"])
    assert held.ready == 0, "another job has it"


def test_nodes_of_one_weight_are_one_set_and_the_lighter_come_first() -> None:
    assert ground([node("n1"), node("n2")]).weights == (0b11,)
    assert ground([node("n1", weight=5), node("n2", weight=2), node("n3", weight=5)]).weights == (0b010, 0b101)


def test_the_nodes_are_numbered_anew_only_where_they_are_others() -> None:
    first = ground([node("n1"), node("n2")])
    assert ground([node("n1"), node("n2")], before=first.numbering).numbering is first.numbering
    assert ground([node("n1")], before=first.numbering).numbering.names == ("n1",)


def test_a_node_that_was_busy_when_nodes_were_read_is_ready_if_its_job_is_over_when_jobs_are() -> None:
    nodes = [node("n1", "ALLOCATED"), node("n2", "ALLOCATED")]
    over, on = job("5", "COMPLETING", nodes=("n1", "n2")), job("6", "RUNNING", nodes=("n2",))
    found = ground(nodes, [over, on])
    assert names(found, found.ready) == ("n1",)


def test_a_node_that_is_slow_to_be_left_is_free_at_any_moment_and_not_now() -> None:
    nodes = [node("n1", "IDLE", "COMPLETING"), node("n2", "IDLE", "COMPLETING"), node("n3", "ALLOCATED", "COMPLETING")]
    found = ground(nodes, [pilot("71", "n3")], {"n3": "71"}, slow=("n1", "n3"))
    assert names(found, found.ready) == ("n2", "n3"), "a pilot that works there may leave as ever"
    assert names(found, found.clearing) == ("n2", "n3")
    assert ends(found) == {1001.0: ("n1",)}
