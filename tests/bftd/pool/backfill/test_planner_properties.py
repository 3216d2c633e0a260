"""What holds for every queue, and that the planner says the same as the plain reference."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from bftd.pool.backfill.model import QueueEntry
from tests.bftd.pool.backfill import reference
from tests.bftd.pool.backfill.cases import NOW, Cluster, clusters

pytestmark = pytest.mark.slow

Case = tuple[Cluster, list[QueueEntry]]


def numbers(mask: int) -> frozenset[int]:
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


@settings(deadline=None, max_examples=150)
@given(clusters())
def test_the_planner_says_what_the_plain_reference_says(case: Case) -> None:
    cluster, queue = case
    found = cluster.look(*queue)
    plain = reference.simulate(queue, **cluster.arguments())
    assert {name: (plan.start_s - NOW, numbers(plan.mask)) for name, plan in found.later.items()} == {
        name: (start - NOW, chosen) for name, (start, chosen) in plain.plans.items()
    }
    assert {name: numbers(mask) for name, mask in found.now.items()} == plain.starts
    assert found.looked == found.queued == len(queue)
    assert found.cut == ""


few = settings(deadline=None, max_examples=60)


@few
@given(clusters())
def test_a_job_that_starts_now_gets_as_many_nodes_as_it_needs_all_allowed_ready_and_its_own(case: Case) -> None:
    cluster, queue = case
    entries: dict[str, list[QueueEntry]] = {}
    for entry in queue:
        entries.setdefault(entry.id, []).append(entry)
    taken = 0
    for name, mask in cluster.look(*queue).now.items():
        assert mask & ~cluster.arguments()["ready"] == 0
        assert mask & taken == 0, "no node twice"
        taken |= mask
        assert any(fits(mask, entry) for entry in entries[name]) or len(entries[name]) > 1


def fits(mask: int, entry: QueueEntry) -> bool:
    """Whether nodes are what some of the tasks of a job need."""
    (part,) = entry.parts
    need = max(1, part.need, part.required.bit_count())
    tasks, rest = divmod(mask.bit_count(), need)
    neighbours = tasks > 1 or not part.contiguous or (mask // (mask & -mask)) == (1 << need) - 1
    kinds = tasks > 1 or not part.either or any(not mask & ~kind for kind in part.either)
    inside = not mask & ~part.allowed and not part.required & ~mask
    return not rest and tasks <= entry.count and neighbours and kinds and inside


@few
@given(clusters())
def test_nothing_is_given_away_that_is_booked_or_planned_for_an_earlier_job_within_the_limit(case: Case) -> None:
    cluster, queue = case
    for upto, entry in enumerate(queue):
        before, found = cluster.look(*queue[:upto]), cluster.look(*queue[: upto + 1])
        fresh = found.now.get(entry.id, 0) & ~before.now.get(entry.id, 0)
        until = NOW + min(entry.limit_s, entry.least_s)
        for start, end, mask in [(NOW + start, NOW + end, mask) for mask, start, end in cluster.bookings]:
            assert not fresh & mask or start > until or end <= NOW
        for plan in before.later.values():
            # a plan is reserved from the step in which it begins
            in_window = plan.start_s <= NOW + cluster.scheduler.window_s
            step_s = plan.start_s // cluster.scheduler.resolution_s * cluster.scheduler.resolution_s
            assert not fresh & plan.mask or step_s > until or not in_window


@few
@given(clusters())
def test_what_is_kept_stays_as_it_is_when_nothing_has_changed(case: Case) -> None:
    cluster, queue = case
    first = cluster.look(*queue)
    cluster.kept = dict(first.now)
    again = cluster.look(*queue)
    assert (again.now, again.later) == (first.now, first.later)


@few
@given(clusters())
def test_the_first_job_starts_with_more_nodes_if_it_starts_with_fewer(case: Case) -> None:
    cluster, queue = case
    entry = next((entry for entry in queue if not entry.parts[0].either), None)
    if entry is None:
        return
    starts = cluster.look(entry).now
    cluster.ready |= 1
    cluster.ends = [(at, mask & ~1) for at, mask in cluster.ends]
    assert starts.keys() <= cluster.look(entry).now.keys()


@few
@given(clusters())
def test_which_nodes_are_ours_changes_nothing_in_what_the_first_job_may_do(case: Case) -> None:
    cluster, queue = case
    found = cluster.look(queue[0])
    cluster.ours = 0
    again = cluster.look(queue[0])
    assert found.now.keys() == again.now.keys()
    assert found.later.keys() == again.later.keys()
