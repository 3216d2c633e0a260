"""A user who has no node gets one in time, and nobody is robbed of his for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milp
from bftd.core.model.decisions import GetsFirst
from bftd.core.model.domain import Decided, Settings
from bftd.core.planning import first_nodes
from bftd.protocol.registration import Registration
from milp import Problem
from milp.utility import objective_of
from tests.bftd.builders import Core, lease, names, of, registration
from tests.milp.instances import one_class_problems, problems
from tests.support.messages import wording

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


@pytest.mark.parametrize("objective", ["efficiency", "throughput", "priority"])
@pytest.mark.parametrize("nodes", [3, 8])
def test_a_second_trainer_of_a_user_does_not_starve_behind_one_that_would_use_all_nodes_as_well(
    nodes: int, objective: str
) -> None:
    core = Core(Settings().changed(objective=objective))
    core.pool(*names(nodes))
    core.arrive(rival("1", "ann"))
    poll(core, names(nodes))
    assert len(core.nodes("1")) == nodes
    core.arrive(rival("2", "ann", nodes_max=3))
    why = wording("core.sentences.newcomers", names="train-2")
    assert any(text.startswith("train-1") and text.endswith(why) for text in core.sentences())
    poll(core, names(nodes), 2 * POLL_S)
    assert core.nodes("2")
    assert core.nodes("1")


def test_two_trainers_that_wait_for_one_node_do_not_take_it_from_each_other() -> None:
    core = Core()
    core.pool("n1")
    for id_ in "123":
        core.arrive(rival(id_, "ann"))
    poll(core, ["n1"], 600.0)
    assert len(core.nodes("1")) == 1
    assert not core.state.trainers["1"].suspends


def test_the_objective_alone_decides_where_a_site_wants_it_so() -> None:
    core = Core(Settings().changed(first_node_within_s=0.0))
    core.pool(*names(3))
    core.arrive(rival("1", "ann"))
    poll(core, names(3))
    core.arrive(rival("2", "ann"))
    poll(core, names(3), 600.0)
    assert core.nodes("2") == set()


def favoured(problem: Problem) -> Problem:
    """The problem as a plan solves it."""
    trainers = (first_nodes.favoured(item, problem.earns_now[item.name]) for item in problem.trainers)
    return replace(problem, trainers=tuple(trainers))


@settings(max_examples=60, deadline=None)
@given(problems(max_classes=1))
def test_a_plan_that_lets_fewer_wait_loses_at_most_a_fifth_of_a_nodes_worth_for_each(problem: Problem) -> None:
    best, chosen = milp.solve(problem, gap=0.0), milp.solve(favoured(problem), gap=0.0)
    milp.verify(problem, replace(chosen, objective=(made := objective_of(problem, chosen.assignment)), bound=made))
    bonus = {item.name: first_nodes.BONUS * item.curve(1) * item.weight * problem.t_fwd_s for item in problem.trainers}
    more = [sum(bonus[name] for name, count in plan.counts.items() if count) for plan in (best, chosen)]
    slack = 1e-6 * (1.0 + abs(best.objective))
    assert best.objective - made <= more[1] - more[0] + slack
    assert made <= best.objective + slack


@settings(max_examples=40, deadline=None)
@given(one_class_problems(3))
def test_all_solvers_that_prove_their_plans_favour_alike(problem: Problem) -> None:
    asked = favoured(problem)
    best = milp.solve(asked, gap=0.0).objective
    for name in ("exact", "classes", "highs", "highs-nodes"):
        plan = milp.solve(asked, name, gap=0.0)
        assert plan.objective == pytest.approx(best, rel=1e-6, abs=1e-6), name


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8), st.sampled_from([0.3, 0.8, 1.0])), min_size=1, max_size=5),
    st.sampled_from(["efficiency", "throughput", "priority"]),
)
def test_once_nothing_else_changes_the_map_comes_to_rest(
    count: int, shapes: list[tuple[int, int, float]], objective: str
) -> None:
    core = Core(Settings().changed(objective=objective, trainers_per_user=0, t_fwd_s=30.0))
    core.pool(*names(count))
    for number, (low, more, exponent) in enumerate(shapes):
        curve = tuple((size, 100.0 * size**exponent) for size in range(1, 13))
        core.arrive(registration(str(number), low, low + more, curve=curve))
        poll(core, names(count), 2 * POLL_S)
    poll(core, names(count), 120.0)
    rested = {id_: core.nodes(id_) for id_ in core.state.trainers}
    for _ in range(8):
        poll(core, names(count), 30.0)
        assert {id_: core.nodes(id_) for id_ in core.state.trainers} == rested
