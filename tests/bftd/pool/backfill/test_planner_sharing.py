"""What the copy of Slurm's planner makes of nodes of which a pilot has a part."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.pool.backfill.model import QueueEntry
from tests.bftd.pool.backfill.cases import Cluster, clusters, job, nodes


def test_a_job_fits_beside_a_pilot_before_it_takes_an_idle_node() -> None:
    found = Cluster(2, ours=nodes(0)).look(job("a", 1, shared=nodes(0)), job("b", 2))
    assert found.now == {"a": 0}, "and no other job can have the node then"


def test_of_a_job_of_several_nodes_only_those_are_kept_that_need_a_pilot_to_leave() -> None:
    cluster = Cluster(4, ready=nodes(1, 2), ours=nodes(0, 1, 2), ends={600: nodes(0), 1200: nodes(3)})
    assert cluster.look(job("a", 3, shared=nodes(1), yields=nodes(0))).now == {"a": nodes(0, 2)}
    assert cluster.look(job("a", 4, shared=nodes(1), yields=nodes(0))).now == {}


def test_a_pilot_leaves_its_part_to_one_job_alone() -> None:
    cluster = Cluster(1, ready=0, ours=nodes(0), ends={600: nodes(0)})
    found = cluster.look(*(job(name, 1, yields=nodes(0)) for name in "ab"))
    assert found.now == {"a": nodes(0)}


@st.composite
def shared(draw: st.DrawFn) -> tuple[Cluster, list[QueueEntry]]:
    """A drawn cluster whose jobs fit beside pilots, or once these are gone."""
    cluster, queue = draw(clusters())
    some = st.integers(0, (1 << cluster.size) - 1)

    def beside(entry: QueueEntry) -> QueueEntry:
        earmark, after = draw(some), draw(some)
        parts = (
            replace(part, shared=part.allowed & earmark, yields=part.allowed & after & ~earmark) for part in entry.parts
        )
        return replace(entry, parts=tuple(parts))

    return cluster, [beside(entry) for entry in queue]


@settings(deadline=None, max_examples=200)
@given(shared())
def test_what_is_kept_is_ready_or_yields_and_nobody_is_promised_what_another_has(
    drawn: tuple[Cluster, list[QueueEntry]],
) -> None:
    cluster, queue = drawn
    told = cluster.arguments()
    found = cluster.look(*queue)
    taken = 0
    for name, mask in found.now.items():
        yields = 0
        for entry in queue:
            for part in entry.parts if entry.id == name else ():
                yields |= part.yields
        assert not mask & ~(told["ready"] | yields)
        assert not mask & taken
        taken |= mask
