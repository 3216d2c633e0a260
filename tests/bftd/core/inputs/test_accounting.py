"""Node-seconds: whose they are, and which gaps count."""

from __future__ import annotations

import pytest

from bftd.core.inputs.accounting import counted_s
from bftd.core.model.domain import Charged, PoolNode, Settings, UsageShare
from bftd.core.model.events import PoolObserved
from bftd.core.step import fold
from bftd.protocol.reports import ResizeReport, SuspendReport
from tests.bftd.builders import Core, lease, of, registration


def shares(core: Core) -> dict[tuple[str, str], UsageShare]:
    """What the last snapshot charged, by user and account."""
    charged = of(core.actions, Charged)
    return {(share.user, share.account): share for share in charged[-1].shares} if charged else {}


def test_S10_node_seconds_are_charged_to_the_user_and_account_whose_pilot_ran() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.arrive(registration("2", nodes_max=1, user="bob"))
    core.accounts = {"2": ("bob", "chem")}
    core.pool("n1", "n2", "n3")
    core.place_all("placed")
    core.pool("n1", "n2", "n3")
    first, _ = core.leases("1")
    core.report("1", lease(first.id, "working"))
    before = core.state.usage
    core.pool("n1", "n2", "n3", after_s=2)
    assert shares(core) == {
        ("ann", ""): UsageShare("ann", "", 4.0, 2.0, 0.0),
        ("bob", "chem"): UsageShare("bob", "chem", 2.0, 0.0, 0.0),
    }
    assert core.state.usage.used_node_seconds - before.used_node_seconds == 6.0


def test_a_node_that_was_asked_back_is_charged_as_leaving_until_its_pilot_is_gone() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", "n2")
    busy = {"n2": PoolNode("n2", "ALLOCATED", False, "runs a job", wanted=True)}
    core.pool("n1", out=busy)
    assert shares(core)["ann", ""] == UsageShare("ann", "", 2.0, 2.0, 0.0)
    core.pool("n1", out=busy)
    assert shares(core)["ann", ""] == UsageShare("ann", "", 2.0, 2.0, 1.0)


def test_nothing_is_charged_where_no_pilot_runs_or_nobody_reads_it() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.pool("n1")
    assert of(core.actions, Charged) == []
    core.place_all()
    core.pool("n1")
    after = core.state
    core.pool("n1")
    (charged,) = of(core.actions, Charged)
    assert charged.shares == (UsageShare("ann", "", 1.0, 1.0, 0.0),)
    view = core.state.pool
    replayed, actions = fold(after, [PoolObserved(view.time_s, view)], explain=False)
    assert replayed.usage == core.state.usage
    assert of(actions, Charged) == []


@pytest.mark.parametrize(
    ("poll_s", "stale_after_s", "passed_s", "counted"),
    [
        (1.0, 10.0, 10.0, 10.0),
        (1.0, 10.0, 10.1, 0.0),
        (15.0, 10.0, 15.0, 15.0),  # polls that are further apart than a snapshot stays fresh
        (15.0, 10.0, 45.0, 45.0),
        (15.0, 10.0, 45.1, 0.0),
        (1.0, 10.0, 0.0, 0.0),
        (1.0, 10.0, -5.0, 0.0),
    ],
)
def test_regression_polls_far_apart_are_counted_and_gaps_that_are_too_long_are_not(
    poll_s: float, stale_after_s: float, passed_s: float, counted: float
) -> None:
    settings = Settings().changed(poll_s=poll_s, stale_after_s=stale_after_s)
    assert counted_s(passed_s, settings) == counted


def test_S10_polls_of_fifteen_seconds_count_all_nodes_of_the_pool() -> None:
    core = Core(Settings().changed(poll_s=15.0, stale_after_s=10.0))
    for _ in range(21):
        core.pool("n1", "n2", after_s=15.0)
    assert core.state.usage.pool_node_seconds == 20 * 15.0 * 2


def resize(from_nodes: int, to_nodes: int, stall_s: float | None) -> ResizeReport:
    return ResizeReport(0.0, from_nodes, to_nodes, "up" if to_nodes > from_nodes else "down", stall_s)


def test_a_node_that_is_held_and_does_not_train_yet_is_starting_and_not_training() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all("placed")
    core.pool("n1", "n2")
    first, second = core.leases("1")
    core.pool("n1", "n2", after_s=4)
    assert (core.state.usage.training_node_seconds, core.state.usage.starting_node_seconds) == (0.0, 8.0)
    core.report("1", lease(first.id, "ready"), lease(second.id, "working"))
    core.pool("n1", "n2", after_s=3)
    usage = core.state.usage
    assert (usage.training_node_seconds, usage.starting_node_seconds) == (3.0, 11.0)
    assert usage.used_node_seconds == 14.0
    assert shares(core)["ann", ""] == UsageShare("ann", "", 6.0, 3.0, 0.0)


def test_S10_the_stall_of_a_resize_is_no_training_on_the_nodes_that_went_through_it() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=3))
    core.pool("n1", "n2", "n3")
    core.place_all()
    core.pool("n1", "n2", "n3")
    core.pool("n1", "n2", "n3", after_s=10)
    assert core.state.usage.training_node_seconds == 30.0
    core.report("1", resize(2, 3, 2.5))  # the third was no worker before
    core.pool("n1", "n2", "n3", after_s=1)
    usage = core.state.usage
    assert (usage.training_node_seconds, usage.resizing_node_seconds) == (30.0, 3.0)
    assert shares(core)["ann", ""] == UsageShare("ann", "", 3.0, 0.0, 0.0)
    core.pool("n1", "n2", "n3", after_s=1)
    usage = core.state.usage
    assert (usage.training_node_seconds, usage.resizing_node_seconds) == (31.0, 5.0)
    core.report("1", resize(3, 2, None))
    core.pool("n1", "n2", "n3", after_s=1)
    assert core.state.usage.training_node_seconds == 34.0, "a stall that was not measured takes nothing off"


def test_nodes_that_a_suspended_trainer_still_holds_do_not_train() -> None:
    core = Core()
    core.arrive(registration("1", nodes_min=2, nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", "n2")
    core.report("1", SuspendReport(0.0, 7))
    core.pool("n1", "n2", after_s=5)
    assert core.state.usage.training_node_seconds == 0.0
    assert core.state.usage.used_node_seconds == 10.0
    warm_up_s = core.state.trainers["1"].knowledge.warm_up_s
    core.report("1", *(lease(item.id, "working") for item in core.leases("1")))
    core.pool("n1", "n2", after_s=5)
    assert core.state.usage.training_node_seconds == 10.0
    assert core.state.trainers["1"].knowledge.warm_up_s == warm_up_s, "the lease is old, and tells nothing of a start"
