"""Caps on nodes and trainers per user and per account."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milp
from bftd.core.model.domain import Settings, Trainer
from bftd.core.model.draft import Draft
from bftd.core.model.events import Configured
from bftd.core.model.foreign_jobs import ElasticJob
from bftd.core.planning.caps import at_caps, rule
from bftd.core.planning.node_order import by_preference
from bftd.core.planning.planning import build_problem
from milp.errors import MilpError
from tests.bftd.builders import Core, lease, names, registration
from tests.support.messages import says, wording


def broken(*arguments: Any, **options: Any) -> Any:
    """A solver that always fails."""
    raise MilpError("the solver is broken")


class Watching:
    """The real solver, and what it was asked and did."""

    def __init__(self) -> None:
        self.problems: list[milp.Problem] = []
        self.solvers: list[str] = []

    def __call__(self, problem: milp.Problem, *arguments: Any, **options: Any) -> milp.Plan:
        plan = milp.solve(problem, *arguments, **options)
        self.problems.append(problem)
        self.solvers.append(plan.solver)
        return plan


# Who scales so is given all that there is, before others.
LINEAR = ((1, 1.0), (16, 16.0))


def test_a_user_never_holds_more_nodes_than_the_cap_and_is_told_so() -> None:
    core = Core(Settings().changed(nodes_per_user=3))
    core.pool(*names(8))
    core.arrive(registration("1", nodes_min=2, nodes_max=8, curve=LINEAR))
    core.arrive(registration("2", nodes_min=2, nodes_max=8, curve=LINEAR), after_s=1)
    core.arrive(registration("3", nodes_max=8, user="bob", curve=LINEAR), after_s=1)
    held = {id_: len(core.nodes(id_)) for id_ in "123"}
    assert held["1"] + held["2"] == 3
    assert held["3"] == 3
    core.pool(*names(9))
    assert (
        "train-3 "
        + wording("core.sentences.stays", held="3 nodes", why="")
        + wording("core.caps.at_cap", group="bob", most=3, things="nodes")
        in core.sentences()
    )


def test_an_account_shares_its_cap_among_its_users() -> None:
    core = Core(Settings().changed(nodes_per_account=4))
    core.accounts = {"1": ("ann", "chem"), "2": ("bob", "chem"), "3": ("cyd", "bio")}
    core.pool(*names(12))
    for id_, user in (("1", "ann"), ("2", "bob"), ("3", "cyd")):
        core.arrive(registration(id_, nodes_min=4, nodes_max=12, user=user, curve=LINEAR), after_s=1)
    held = {id_: len(core.nodes(id_)) for id_ in "123"}
    assert held["1"] + held["2"] == 4
    assert held["3"] == 4
    assert [item["text"] for item in at_caps(core.state)] == [
        wording("core.caps.at_cap", group="account chem", most=4, things="nodes"),
        wording("core.caps.at_cap", group="account bio", most=4, things="nodes"),
    ]


def test_lower_caps_shrink_at_once_also_where_nothing_may_grow_or_the_solver_fails() -> None:
    for hold, solve in ((None, None), ("job 9 waits", None), (None, broken)):
        core = Core(Settings())
        core.pool(*names(6))
        core.arrive(registration("1", nodes_max=3))
        core.arrive(registration("2", nodes_min=2, nodes_max=3), after_s=1)
        assert len(core.nodes("1")) + len(core.nodes("2")) == 6
        core.place_all()
        core.pool(*names(6), hold=hold)
        core.solve = solve
        core.apply(Configured(core.time_s, Settings().changed(nodes_per_user=4)))
        left = {id_: len(core.nodes(id_)) for id_ in "12"}
        # whoever shrinks stops at a size it can run on
        assert 0 < sum(left.values()) <= 4
        assert left["2"] in (0, 2, 3)
        assert any(says(text, "core.caps.at_cap", group="ann", most=4, things="nodes") for text in core.sentences())


def test_a_cap_below_what_a_trainer_needs_suspends_it() -> None:
    core = Core(Settings())
    core.pool(*names(4))
    core.arrive(registration("1", nodes_min=3, nodes_max=4))
    core.apply(Configured(core.time_s, Settings().changed(nodes_per_user=2)))
    assert core.nodes("1") == set()
    assert (
        "train-1 "
        + wording(
            "core.sentences.suspended",
            nodes="n[1-4]",
            why=wording("core.caps.at_cap", group="ann", most=2, things="nodes"),
        )
        in core.sentences()
    )


def test_trainers_beyond_the_cap_wait_and_others_go_ahead_of_them() -> None:
    core = Core(Settings().changed(trainers_per_user=1, pj_max=2))
    core.pool(*names(6))
    core.arrive(registration("1", nodes_max=2))
    core.arrive(registration("2", nodes_max=2), after_s=1)
    core.arrive(registration("3", nodes_max=2, user="bob"), after_s=1)
    assert [len(core.nodes(id_)) for id_ in "123"] == [2, 0, 2]
    core.pool(*names(7))
    said = [text for text in core.sentences() if text.startswith("train-2 waits")]
    assert said == ["train-2 waits: " + wording("core.caps.at_cap", group="ann", most=1, things="trainer")]
    texts = [item["text"] for item in at_caps(core.state)]
    assert texts == [
        wording("core.caps.at_cap", group="ann", most=1, things="trainer") + ", 1 more waits",
        wording("core.caps.at_cap", group="bob", most=1, things="trainer"),
    ]
    core.finish("1")
    core.pool(*names(7))
    assert len(core.nodes("2")) == 2


def test_a_lower_cap_on_trainers_stops_those_that_came_last() -> None:
    core = Core(Settings())
    core.pool(*names(4))
    core.arrive(registration("1", nodes_max=2))
    core.arrive(registration("2", nodes_max=2), after_s=1)
    core.solve = broken
    core.apply(Configured(core.time_s, Settings().changed(trainers_per_user=1)))
    assert [len(core.nodes(id_)) for id_ in "12"] == [2, 0]
    told = "train-2 " + wording(
        "core.sentences.suspended",
        nodes="n[1-2]",
        why=wording("core.caps.at_cap", group="ann", most=1, things="trainer"),
    )
    assert told in core.sentences()


def test_the_account_is_that_of_the_job_as_slurm_shows_it_and_never_what_the_driver_says() -> None:
    core = Core(Settings().changed(nodes_per_account=1))
    core.accounts = {"1": ("ann", "chem"), "2": ("eve", "bio")}
    core.pool("n1", "n2", "n3")
    core.arrive(registration("1", nodes_max=2))
    # job 2 is another user's: its account is none of this trainer's
    core.arrive(registration("2", nodes_max=2), after_s=1)
    assert {id_: item.account for id_, item in core.state.trainers.items()} == {"1": "chem", "2": ""}
    assert (len(core.nodes("1")), len(core.nodes("2"))) == (1, 2)


def test_a_trainer_that_is_no_job_is_on_the_account_of_its_pilots() -> None:
    core = Core(Settings().changed(nodes_per_account=1))
    core.arrive(registration("run-a-7", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    assert len(core.nodes("run-a-7")) == 2
    core.elastic = {id_: ElasticJob(id_, "ann", "chem", (where,)) for id_, where in core.pilots.items()}
    core.accounts = dict.fromkeys(core.pilots, ("ann", "chem"))
    core.pool("n1", "n2")
    assert core.state.trainers["run-a-7"].account == "chem"
    assert len(core.nodes("run-a-7")) == 1


@pytest.mark.parametrize(
    ("limits", "exact"),
    [
        (Settings().changed(nodes_per_user=12), True),  # nobody can use more
        (Settings().changed(nodes_per_user=8), True),  # the pool has no more
        (Settings().changed(nodes_per_account=5), True),  # one trainer each: a smaller nodes_max
        (Settings().changed(nodes_per_user=7), False),
    ],
)
def test_only_a_cap_that_can_bind_several_trainers_costs_a_solver_that_knows_caps(
    limits: Settings, exact: bool
) -> None:
    core = Core(limits)
    core.accounts = {"1": ("ann", "chem"), "2": ("ann", "bio")}
    core.arrive(registration("1", nodes_max=6))
    core.arrive(registration("2", nodes_max=6))
    watching = Watching()
    core.solve = watching
    core.pool(*names(8))
    assert set(watching.solvers) == ({"exact"} if exact else {"capped"})
    assert bool(watching.problems[-1].caps) is not exact


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 4), st.sampled_from("ab"), st.sampled_from(["", "x", "y"])),
        min_size=1,
        max_size=6,
    ),
    st.tuples(*[st.integers(0, 6)] * 2),
    st.integers(1, 12),
)
def test_a_problem_allows_just_the_plans_that_the_caps_allow(
    wanted: list[tuple[int, int, str, str]], caps: tuple[int, int], size: int
) -> None:
    """The best plan of the problem is that of the same problem with every cap written out."""
    core = Core(Settings().changed(nodes_per_user=caps[0], nodes_per_account=caps[1], pj_max=9))
    core.accounts = {str(at): (user, account) for at, (_, _, user, account) in enumerate(wanted) if account}
    core.solve = broken
    for at, (low, more, user, _) in enumerate(wanted):
        core.arrive(registration(str(at), low, low + more, user=user))
    core.pool(*names(size))
    turn = Draft(core.state, core.time_s)
    by_id = core.state.trainers
    curves: dict[str, Any] = {item.id: ((0, 0.0), (1, 1.0), (9, 9.0)) for item in by_id.values()}
    ordered = by_preference(core.state.pool.nodes)
    problem = build_problem(turn, rule(turn, {}, size), curves, {}, ordered)
    plain = Draft(core.state, core.time_s)
    plain.settings = Settings()
    full = build_problem(plain, rule(plain, {}, size), curves, {}, ordered)
    written = [milp.Cap(caps[0], user=user) for user in "ab" if caps[0]]
    written += [milp.Cap(caps[1], account=account) for account in "xy" if caps[1]]
    specs = tuple(_with_owner(spec, by_id[spec.name]) for spec in full.trainers)
    reference = milp.Problem(full.nodes, specs, full.t_fwd_s, tuple(written))
    found, best = milp.solve(problem), milp.solve(reference)
    assert found.objective == pytest.approx(best.objective, rel=1e-3)
    counts = {spec.name: found.counts.get(spec.name, 0) for spec in specs}
    for cap in written:
        covered = sum(counts[spec.name] for spec in specs if cap.covers(spec.user, spec.account))
        assert covered <= cap.nodes_max


def _with_owner(spec: milp.TrainerSpec, item: Trainer) -> milp.TrainerSpec:
    return milp.TrainerSpec(
        **{name: getattr(spec, name) for name in ("name", "nodes_min", "nodes_max", "up_cost_s", "down_cost_s")},
        curve=spec.curve,
        user=item.user,
        account=item.account,
    )


def test_a_lease_on_its_way_out_does_not_count_towards_a_cap() -> None:
    core = Core(Settings().changed(nodes_per_user=2))
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n3", "n4")  # both are taken back, and their pilots have not gone yet
    assert core.nodes("1") == {"n3", "n4"}
    for item in core.leases("1", live=False):
        core.report("1", lease(item.id, "ended"))
