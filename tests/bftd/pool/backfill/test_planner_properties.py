"""What holds for every queue, and that the planner says the same as the plain reference."""

from __future__ import annotations

from hypothesis import given, settings

from bftd.pool.backfill.wanted import Wanted
from tests.bftd.pool.backfill import reference
from tests.bftd.pool.backfill.cases import NOW, Cluster, clusters

Case = tuple[Cluster, list[Wanted]]


def numbers(mask: int) -> frozenset[int]:
    return frozenset(number for number in range(mask.bit_length()) if mask >> number & 1)


@settings(deadline=None, max_examples=400)
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
