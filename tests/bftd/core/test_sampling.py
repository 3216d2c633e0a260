"""The state of the core as a sample: each node is one thing, and each trainer that is there is in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model.domain import Lease, PoolNode, PoolView, State
from bftd.core.sampling import AWAY, FINISHED_FOR_S, IDLE, LEASED, NODE_STATES, PLANNED, REGULAR, sample
from tests.bftd.builders import Core, registration, trainer

NOW_S = 10_000.0


def state(*nodes: PoolNode, leases: tuple[Lease, ...] = (), seen_s: float = NOW_S, **pool: frozenset[str]) -> State:
    view = PoolView(1, seen_s, nodes={node.name: node for node in nodes}, **pool)
    return State(time_s=NOW_S, pool=view, leases={lease.id: lease for lease in leases})


@pytest.mark.parametrize(
    ("slurm", "in_pool", "kind"),
    [
        ("IDLE", True, IDLE),
        ("IDLE", False, PLANNED),  # a job's that is to come, a spare, or idle for one poll
        ("IDLE+PLANNED", False, PLANNED),
        ("IDLE+RESERVED", False, PLANNED),
        ("IDLE+COMPLETING", False, REGULAR),
        ("IDLE+CLOUD", False, PLANNED),
        ("ALLOCATED", False, REGULAR),
        ("MIXED+DRAIN", False, REGULAR),
        ("IDLE+DRAIN", False, AWAY),
        ("DOWN", False, AWAY),
        ("IDLE+WHATEVER_COMES", False, AWAY),
        ("UNKNOWN", False, AWAY),
    ],
)
def test_a_node_that_is_not_lent_is_what_slurm_says_of_it(slurm: str, in_pool: bool, kind: str) -> None:
    taken = sample(state(PoolNode("n1", slurm, in_pool, "")))
    assert {name for name, count in taken.nodes.items() if count} == {kind}


def test_a_lent_node_is_leased_until_its_pilot_is_gone_whatever_slurm_says() -> None:
    held = Lease("n1.1", "n1", "1", 0.0, 60.0, "", revoked_s=5.0)
    assert sample(state(PoolNode("n1", "ALLOCATED", False, ""), leases=(held,))).nodes[LEASED] == 1
    assert sample(state(leases=(held,))).nodes[LEASED] == 1, "also one that Slurm does not show any more"


def test_what_is_paused_or_in_quarantine_is_away() -> None:
    idle = PoolNode("n1", "IDLE", False, "")
    assert sample(state(idle, barred=frozenset({"n1"}))).nodes[AWAY] == 1
    assert sample(replace(state(idle), quarantined={"n1": NOW_S + 60})).nodes[AWAY] == 1


def test_of_a_pool_that_was_not_seen_for_long_nothing_is_known() -> None:
    old = state(PoolNode("n1", "IDLE", True, ""), PoolNode("n2", "ALLOCATED", False, ""), seen_s=NOW_S - 1000)
    assert sample(old).nodes == {REGULAR: 0, PLANNED: 0, LEASED: 0, IDLE: 0, AWAY: 2}


def test_a_trainer_is_in_the_samples_until_a_while_after_its_end() -> None:
    done = replace(trainer("1"), state="finished", finished_s=NOW_S, samples=7.0)
    at = replace(state(), trainers={"1": done, "2": trainer("2")})
    assert sample(at).trainers["1"].samples == 7.0
    later = replace(at, time_s=NOW_S + FINISHED_FOR_S + 1)
    assert sample(later).trainers.keys() == {"2"}


@given(busy=st.sets(st.sampled_from("abcdef")), most=st.integers(1, 6), gone=st.sets(st.sampled_from("abcdef")))
@settings(max_examples=30)
def test_every_node_is_counted_once_and_each_lease_is_some_trainers(busy: set[str], most: int, gone: set[str]) -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=most))
    out = {name: PoolNode(name, "ALLOCATED", False, "", wanted=True) for name in busy}
    core.pool(*sorted(set("abcdef") - busy), out=out)
    core.place_all()
    core.pool(*sorted(set("abcdef") - busy - gone), out=out)
    taken = sample(core.state)
    assert set(taken.nodes) == set(NODE_STATES)
    assert taken.nodes[LEASED] == len({lease.node for lease in core.state.leases.values()})
    assert sum(taken.nodes.values()) == len(core.state.pool.nodes.keys() | {x.node for x in core.state.leases.values()})
    assert sum(point.leased for point in taken.trainers.values()) == len(core.leases("1"))
