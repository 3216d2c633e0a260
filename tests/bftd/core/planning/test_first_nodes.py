"""A user who has no node gets one in time, and nobody is robbed of his for it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model.decisions import GetsFirst
from bftd.core.model.domain import Decided, Settings
from bftd.protocol.registration import Registration
from tests.bftd.builders import Core, lease, names, of, registration

WITHIN_S = 60.0
POLL_S = 5.0
# Whoever has this curve beside anybody of weight 1 gets everything under the objective "priority".
WEIGHT = 1000.0


def rival(id_: str, user: str, nodes_max: int = 8, nodes_min: int = 1, weight: float = 1.0) -> Registration:
    """A trainer whose speed is known."""
    curve = ((1, 100.0), (16, 1600.0))
    return registration(id_, nodes_min, nodes_max, user=user, curve=curve, weight=weight)


def poll(core: Core, nodes: list[str], for_s: float = POLL_S) -> None:
    """Time passes, with snapshots; drivers place pilots and end those that are asked back."""
    for _ in range(round(for_s / POLL_S)):
        core.pool(*nodes, after_s=POLL_S)
        core.place_all()
        for item in [item for item in core.state.leases.values() if not item.live]:
            core.pilots.pop(item.job_id or "", None)
            core.report(item.trainer, lease(item.id, "ended"))


def starving(nodes: int = 4, **changed: float) -> Core:
    """Ann's trainer outweighs bob's by so much that the best plan never gives his a node."""
    core = Core(Settings().changed(objective="priority", **changed))
    core.pool(*names(nodes))
    core.arrive(rival("1", "ann", weight=WEIGHT))
    poll(core, names(nodes))
    core.arrive(rival("2", "bob"))
    return core


def test_a_user_whom_the_objective_gives_nothing_gets_a_first_node_in_time_and_keeps_it() -> None:
    core = starving()
    poll(core, names(4), WITHIN_S - POLL_S)
    assert len(core.nodes("2")) == 1
    assert len(core.nodes("1")) == 3
    [told] = [item.decision for item in of(core.actions, Decided) if isinstance(item.decision, GetsFirst)]
    assert told.within_s == WITHIN_S
    assert told.waited_s <= WITHIN_S
    poll(core, names(4), 600.0)
    assert len(core.nodes("2")) == 1, "it keeps it as others do"


def test_no_promise_is_kept_where_none_is_made() -> None:
    core = starving(first_node_within_s=0.0)
    poll(core, names(4), 600.0)
    assert core.nodes("2") == set()


def test_two_users_take_no_turns_on_one_node() -> None:
    core = starving(nodes=1)
    poll(core, names(1), 600.0)
    assert len(core.nodes("1")) == 1
    assert core.nodes("2") == set()
    assert not core.state.trainers["1"].suspends


def test_a_trainer_that_needs_several_nodes_gets_them_where_they_fit_beside_what_others_need() -> None:
    for nodes, expected in ((4, 3), (3, 0)):
        core = Core(Settings().changed(objective="priority"))
        core.pool(*names(nodes))
        core.arrive(rival("1", "ann", weight=WEIGHT))
        poll(core, names(nodes))
        core.arrive(rival("2", "bob", nodes_min=3))
        poll(core, names(nodes), WITHIN_S)
        assert len(core.nodes("2")) == expected


def test_places_under_pj_max_are_not_needed_for_a_first_node() -> None:
    core = Core(Settings().changed(pj_max=1))
    core.pool(*names(4))
    for id_, user in (("1", "ann"), ("2", "bob"), ("3", "cyd")):
        core.arrive(rival(id_, user))
    poll(core, names(4), WITHIN_S)
    assert all(core.nodes(id_) for id_ in "123")


def test_a_second_trainer_of_a_user_has_no_such_claim() -> None:
    core = Core(Settings().changed(objective="priority"))
    core.pool(*names(4))
    core.arrive(rival("1", "ann", weight=WEIGHT))
    core.arrive(rival("2", "ann"))
    poll(core, names(4), 600.0)
    assert core.nodes("2") == set()


def test_whoever_is_paused_or_silent_has_no_such_claim() -> None:
    core = starving()
    core.pause("user bob")
    poll(core, names(4), 300.0)
    assert core.nodes("2") == set()
    core = starving()
    core.silent = {"2"}
    core.pool(*names(4), after_s=50.0)
    poll(core, names(4), 300.0)
    assert core.nodes("2") == set()


def test_a_cap_is_not_broken_for_a_first_node() -> None:
    core = Core(Settings().changed(objective="priority", nodes_per_account=2))
    core.accounts = {"1": ("ann", "chem"), "2": ("bob", "chem")}
    core.pool(*names(4))
    core.arrive(rival("1", "ann", weight=WEIGHT))
    core.arrive(rival("2", "bob"))
    for _ in range(30):
        poll(core, names(4))
        assert len(core.nodes("1")) + len(core.nodes("2")) <= 2
    assert core.nodes("2")


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.sampled_from(["efficiency", "throughput", "priority"]),
    st.integers(1, 10),
)
def test_nobody_waits_longer_while_the_pool_has_more_nodes_than_users(
    seed: int, users: int, objective: str, pj_max: int
) -> None:
    random_ = random.Random(seed)
    core = Core(Settings().changed(objective=objective, pj_max=pj_max))
    pool = names(users + 1)
    core.pool(*pool)
    since_s: dict[str, float] = {}
    for number in range(40):
        if random_.random() < 0.1 and number < 30:
            user = f"u{random_.randrange(users)}"
            weight = random_.choice([0.01, 1.0, WEIGHT])
            core.arrive(rival(str(number), user, nodes_max=random_.randint(1, 8), weight=weight))
        active = [item for item in core.state.trainers.values() if item.active]
        if active and random_.random() < 0.03:
            core.finish(random_.choice(active).id)
        if random_.random() < 0.1:
            pool = names(users + 1 + random_.randrange(4))
        poll(core, pool)
        having = {item.user for item in core.state.trainers.values() if core.nodes(item.id)}
        waiting = {item.user for item in core.state.trainers.values() if item.active} - having
        since_s = {user: since_s.get(user, core.time_s) for user in waiting}
        assert all(core.time_s - at_s <= WITHIN_S for at_s in since_s.values())


@pytest.mark.parametrize("within_s", [30.0, 300.0])
def test_the_time_is_the_sites_own(within_s: float) -> None:
    core = starving(first_node_within_s=within_s)
    poll(core, names(4), within_s / 2 - 2 * POLL_S)
    assert core.nodes("2") == set()
    poll(core, names(4), within_s / 2 + POLL_S)
    assert core.nodes("2")
