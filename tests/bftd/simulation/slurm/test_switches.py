"""The choice of nodes by topology/tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.pool.backfill.node_choice import NodeNeed
from bftd.simulation.slurm.switches import Switch, Tree
from tests.bftd.simulation.slurm.test_controller import job, ran, site

# two pairs of leaves of four nodes, each pair below a switch, and both below one root
SWITCHES = (
    *(Switch(0b1111 << 4 * place, 4 + place // 2) for place in range(4)),
    Switch(0xFF, 6),
    Switch(0xFF00, 6),
    Switch(0xFFFF),
)
ALL = (0xFFFF,)


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        (0xFFFF, 2, 0x3),  # of equal leaves the first
        (0b0011_0111_1111_1111, 2, 0b0011_0000_0000_0000),  # the leaf with the fewest free nodes that suffice
        (0b0011_0111_1111_1111, 3, 0b0000_0111_0000_0000),
        (0b0001_0001_1111_0011, 6, 0b1111_0011),  # no leaf suffices, but one pair does
        (0b1111_1111_0000_1111, 5, 0b0001_1111_0000_0000),  # the pair that suffices, then its nearer leaf
    ],
)
def test_a_job_has_the_leaf_switches_that_fit_best(free: int, count: int, chosen: int) -> None:
    assert Tree(SWITCHES).chosen(free, NodeNeed(count), ALL) == chosen


def test_required_nodes_come_first_and_then_their_switches() -> None:
    need = NodeNeed(3, required=0b1000_0000_0000)
    assert Tree(SWITCHES).chosen(0xFFFF, need, ALL) == 0b1011_0000_0000


def test_light_nodes_are_taken_before_the_switch_counts() -> None:
    assert Tree(SWITCHES).chosen(0xFFFF, NodeNeed(3), (0x8000, 0x7FFF)) == 0b1011_0000_0000_0000


@given(free=st.integers(1, 0xFFFF), data=st.data())
def test_as_many_free_nodes_as_needed_and_one_leaf_where_one_suffices(free: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, free.bit_count()))
    chosen = Tree(SWITCHES).chosen(free, NodeNeed(count), ALL)
    assert chosen.bit_count() == count
    assert not chosen & ~free
    if any((free & leaf.mask).bit_count() >= count for leaf in SWITCHES[:4]):
        assert any(chosen & ~leaf.mask == 0 for leaf in SWITCHES[:4])


def test_the_simulated_cluster_chooses_by_switches() -> None:
    where = replace(site(16), switches=SWITCHES)
    holder, pair = ran(where, job(0, 3), job(1, 4, 10.0))
    assert (holder.nodes, pair.nodes) == (0b111, 0b1111_0000)
