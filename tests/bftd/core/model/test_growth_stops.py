"""Stop and go: pauses of administrators, hours of harvesting, and a bound on all trainers together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftd.core.model.domain import CancelPilot, Happened, PoolNode, PoolView, Settings
from bftd.core.model.events import Configured, Tick
from bftd.core.model.growth_stops import folded
from bftd.core.model.timing import PLACE_WITHIN_S
from bftd.core.planning.admin_limits import bound
from tests.bftd.builders import Core, granted, lease, names, of, registration, revoked
from tests.support.messages import says, wording

HOUR_S = 3600.0
# 1 January 1970 was a Thursday; the core's clock begins at 00:16:40.
EVENING = Settings().changed(harvest_at="Thu 00:00-01:00")


def working(*ids: str, nodes: int = 4, settings: Settings | None = None, **fields: object) -> Core:
    """Trainers that have all of some nodes."""
    core = Core(settings)
    for id_ in ids:
        core.arrive(registration(id_, **fields))
    core.pool(*names(nodes))
    core.place_all()
    return core


def test_while_all_is_paused_nothing_is_lent_and_what_is_lent_stays() -> None:
    core = working("1", nodes=2)
    core.pause("all", why="power test")
    assert core.nodes("1") == {"n1", "n2"}
    assert not granted(core.pool(*names(4)))
    core.arrive(registration("2", user="bob"))
    assert not granted(core.pool(*names(5)))
    assert core.nodes("1") == {"n1", "n2"}
    assert core.state.pool.nodes["n3"].why == wording(
        "core.sentences.paused",
        what=wording("core.admin_limits.idle_but", halt="everything"),
        by="root",
        why="power test",
    )
    assert core.sentences()[-3:] == [
        "root paused everything: power test",
        "train-1 "
        + wording("core.sentences.stays", held="2 nodes", why="")
        + wording("core.sentences.paused", what="everything", by="root", why="power test"),
        "train-2 waits: " + wording("core.sentences.paused", what="everything", by="root", why="power test"),
    ]
    core.resume("all")
    assert core.sentences()[-1] == wording("core.sentences.pause_lifted", by="root", what="everything")
    assert granted(core.pool(*names(5)))


def test_L4_a_release_asks_all_back_as_slurm_would_and_the_trainer_resumes_later() -> None:
    core = working("1", nodes_min=2)
    actions = core.pause("all", release=True, why="cooling")
    assert [(item.vacate, item.reason) for item in revoked(actions)] == [
        (True, wording("core.sentences.paused", what="everything", by="root", why="cooling"))
    ] * 4
    assert core.sentences()[-1] == "train-1 gives back n[1-4] (none is left): everything is paused by root: cooling"
    core.pool(*names(4))
    for item in core.leases("1", live=False):
        core.pilots.clear()
        core.report("1", lease(item.id, "ended"), after_s=0.1)
    assert [event.data["duration_s"] for event in of(core.actions, Happened, kind="give_back")]
    assert not granted(core.pool(*names(4)))
    core.resume("all")
    assert len(granted(core.pool(*names(4)))) == 4


def test_S2_a_pilot_that_stays_after_a_release_is_cancelled_and_past_the_bound_an_alarm_is_raised() -> None:
    core = working("1")
    core.elastic = {}
    core.pause("all", release=True)
    assert len(of(core.pool(*names(4), after_s=2.0), CancelPilot)) == 4
    assert len(of(core.pool(*names(4), after_s=4.0), Happened, kind="alarm")) == 4


def test_a_pause_acts_at_once_while_slurm_does_not_answer() -> None:
    core = working("1")
    core.tick(after_s=600.0)
    assert len(revoked(core.pause("all", release=True))) == 4
    assert not core.state.plan_due


def test_a_pause_before_the_first_snapshot_asks_back_what_the_ledger_says_is_lent() -> None:
    core = working("1")
    core.state = replace(core.state, pool=PoolView())
    assert len(revoked(core.pause("user ann", release=True))) == 4


def test_a_paused_node_is_lent_to_nobody_and_its_neighbours_are() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pause("node n2", "node n3")
    core.pool(*names(4))
    assert core.nodes("1") == {"n1", "n4"}
    assert core.state.pool.nodes["n2"].why == "is paused by root: a test"
    core.resume("node n2")
    core.pool(*names(4))
    core.pool(*names(4))
    assert core.nodes("1") == {"n1", "n2", "n4"}


def test_a_paused_node_that_becomes_free_between_two_snapshots_is_not_lent_again() -> None:
    core = working("1", nodes=1)
    core.pause("node n1")
    (item,) = core.leases("1")
    core.pilots.clear()
    core.report("1", lease(item.id, "ended"))
    assert not granted(core.arrive(registration("2", user="bob"), after_s=5.0))


def test_a_release_of_a_node_takes_it_from_the_trainer_that_has_it() -> None:
    core = working("1")
    actions = core.pause("node n2", release=True)
    assert [(item.node, item.vacate) for item in revoked(actions)] == [("n2", True)]
    assert core.nodes("1") == {"n1", "n3", "n4"}


def test_a_paused_user_neither_grows_nor_keeps_others_from_growing() -> None:
    core = Core(Settings().changed(pj_max=1))
    core.arrive(registration("1"))
    core.arrive(registration("2", user="bob"), after_s=1.0)
    core.pause("user ann", why="ticket 4")
    core.pool(*names(4))
    assert not core.nodes("1")
    assert len(core.nodes("2")) == 4
    assert "train-1 waits: user ann is paused by root: ticket 4" in core.sentences()


def test_a_paused_user_keeps_what_he_has_and_gets_no_more_of_what_is_free() -> None:
    core = working("1", nodes=2)
    core.pause("user ann", why="ticket 4")
    assert not granted(core.pool(*names(4)))
    assert core.nodes("1") == {"n1", "n2"}
    assert core.sentences()[-1] == "train-1 " + wording("core.sentences.stays", held="2 nodes", why="") + wording(
        "core.sentences.paused", what="user ann", by="root", why="ticket 4"
    )
    core.resume("user ann")
    assert len(granted(core.pool(*names(4)))) == 2


def test_a_released_user_is_planned_for_at_once() -> None:
    core = working("1")
    core.tick(after_s=600.0)
    core.pause("user ann", release=True)
    assert not core.state.plan_due
    assert not any(core.state.planned.assignment.values())


def test_L4_what_a_released_node_leaves_too_small_is_suspended_at_once() -> None:
    core = working("1", nodes_min=3)
    assert len(revoked(core.pause("node n1", "node n2", release=True))) == 4
    assert (
        "train-1 "
        + wording(
            "core.sentences.suspended",
            nodes="n[3-4]",
            why=wording("core.sentences.too_few_left", left="2 nodes", needed=3),
        )
        in core.sentences()
    )


def test_a_paused_account_is_that_of_its_trainers_as_slurm_shows_it() -> None:
    core = Core()
    core.accounts = {"1": ("ann", "chem"), "2": ("ann", "bio")}
    core.arrive(registration("1"))
    core.arrive(registration("2"))
    core.pause("account chem", release=True)
    core.pool(*names(6))
    assert not core.nodes("1")
    assert len(core.nodes("2")) == 4
    # an account that becomes known later is not too late
    core.accounts["2"] = ("ann", "chem")
    assert len(revoked(core.pool(*names(6)))) == 4
    assert "train-2 gives back n[3-6] (none is left): account chem is paused by root: a test" in core.sentences()


def test_a_paused_trainer_may_still_shrink_for_others() -> None:
    core = working("1", nodes=4, curve=((1, 10.0), (4, 11.0)))
    core.pause("user ann")
    core.arrive(registration("2", user="bob", curve=((1, 10.0), (4, 400.0)), up_cost_s=0.1))
    core.pool(*names(4))
    assert len(core.nodes("1")) < 4


def test_pauses_of_several_nodes_by_one_word_are_told_as_one() -> None:
    core = Core()
    core.pause("node n1", "node n2", "node n4", why="new disks")
    core.pause("user ann")
    shown = [(pause.kind, names) for pause, names in folded(core.state.pauses.values())]
    assert shown == [("node", ("n1", "n2", "n4")), ("user", ("ann",))]
    assert core.sentences()[0] == "root paused nodes n[1-2,4]: new disks"
    paused = of(core.actions, Happened, kind="paused")[0]
    assert (paused.data["by"], paused.data["why"], len(paused.data["what"])) == ("root", "new disks", 3)


def test_the_ledger_can_tell_which_nodes_were_in_the_pool_when() -> None:
    core = working("1", nodes=2, nodes_max=2)
    told: set[str] = set()

    def agrees() -> bool:
        told.clear()
        for event in of(core.actions, Happened, kind="pool"):
            told.difference_update(event.data["left"])
            told.update(event.data["joined"])
        return told == {name for name, node in core.state.pool.nodes.items() if node.in_pool}

    core.pool(*names(4))
    core.pause("node n3")
    core.pause("all")
    assert agrees()
    core.resume("all")
    core.pool(*names(4))
    assert agrees()
    assert "n3" not in told


# hours


def test_outside_the_hours_nothing_is_lent_and_the_sentence_says_when_it_begins_again() -> None:
    core = Core(Settings().changed(harvest_at="Mon 20:00-24:00"))
    core.arrive(registration("1"))
    assert not granted(core.pool(*names(4)))
    assert "train-1 waits: " + wording("core.sentences.begins_again", when="Mon 20:00") in core.sentences()


def test_S1_a_pilot_ends_before_the_hours_do_however_late_it_is_placed() -> None:
    core = working("1", settings=EVENING)
    closes_s = HOUR_S
    assert all(core.time_s + PLACE_WITHIN_S + item.limit_s <= closes_s for item in core.state.leases.values())
    assert max(item.limit_s for item in core.state.leases.values()) > closes_s - core.time_s - 120


def test_what_is_lent_is_given_back_gracefully_before_the_hours_end_also_while_slurm_does_not_answer() -> None:
    core = working("1", settings=EVENING)
    # granted before the hours were set: their own limits are far away
    leases = {key: replace(item, limit_s=24 * HOUR_S) for key, item in core.state.leases.items()}
    core.state = replace(core.state, leases=leases)
    core.time_s = HOUR_S - 90.0
    core.pool(*names(5))
    assert len(core.nodes("1")) == 4, "too early"
    core.time_s = HOUR_S - 60.0
    actions = core.apply(Tick(core.time_s))
    assert [item.vacate for item in revoked(actions)] == [False] * 4
    assert says(core.sentences()[-1], "core.sentences.ends_soon", when="Thu 01:00")
    assert not core.nodes("1")


def test_nothing_begins_in_the_last_two_minutes_and_all_begins_with_the_hours() -> None:
    core = Core(Settings().changed(harvest_at="Thu 00:00-01:00, Thu 02:00-03:00"))
    core.arrive(registration("1"))
    core.time_s = HOUR_S - 110.0
    assert not granted(core.pool("n1"))
    core.time_s = 2 * HOUR_S - 2.0
    assert not granted(core.pool("n1"))
    assert granted(core.pool("n1"))
    assert core.time_s == 2 * HOUR_S


def test_hours_that_are_taken_away_let_all_grow_again() -> None:
    core = Core(Settings().changed(harvest_at="Mon"))
    core.arrive(registration("1"))
    core.pool("n1")
    core.apply(Configured(core.time_s, Settings()))
    assert granted(core.pool("n1"))


def test_hours_of_no_harvesting_cost_no_pool_time() -> None:
    core = Core(Settings().changed(harvest_at="Mon"))
    core.pool("n1")
    core.pool("n1")
    assert core.state.usage.pool_node_seconds == 0.0


# a bound on all


def test_all_trainers_together_have_no_more_than_the_bound_and_are_told_so() -> None:
    core = Core(Settings().changed(max_nodes=3))
    core.arrive(registration("1", nodes_min=2, nodes_max=8))
    core.arrive(registration("2", nodes_min=2, nodes_max=8, user="bob"))
    core.pool(*names(8))
    core.place_all()
    core.pool(*names(8))
    assert len(core.state.leases) == 3
    assert any(says(text, "core.sentences.bounded", most="3 nodes", by="max_nodes = 3") for text in core.sentences())
    assert sum(node.in_pool for node in core.state.pool.nodes.values()) == 3


def test_a_lower_bound_takes_nodes_back_and_suspends_as_few_trainers_as_it_can() -> None:
    core = Core()
    core.arrive(registration("1", nodes_min=3, nodes_max=3))
    core.arrive(registration("2", nodes_min=1, nodes_max=3, user="bob"))
    core.pool(*names(6))
    core.place_all()
    assert (len(core.nodes("1")), len(core.nodes("2"))) == (3, 3)
    actions = core.apply(Configured(core.time_s, Settings().changed(max_nodes=4)))
    assert [item.vacate for item in revoked(actions)] == [False, False]
    assert (len(core.nodes("1")), len(core.nodes("2"))) == (3, 1)
    why = wording("core.sentences.bounded", most="4 nodes", by="max_nodes = 4")
    assert (
        "train-2 " + wording("core.sentences.gives_back", nodes="n[1-2]", left="1 node left", why=why)
        in core.sentences()
    )
    core.place_all()
    for item in (item for item in core.state.leases.values() if not item.live):
        core.report(item.trainer, lease(item.id, "ended"))
        core.pilots.pop(item.job_id or "")
    core.pool(*names(6))
    core.apply(Configured(core.time_s, Settings()))
    assert len(granted(core.pool(*names(6)))) == 2, "not before the next plan"
    assert not core.state.pool.barred


def test_the_bound_counts_what_is_still_being_given_back() -> None:
    core = Core(Settings().changed(max_nodes=2))
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2", "n3")
    core.place_all()
    out = {"n3": PoolNode("n3", "ALLOCATED", False, "is needed by job 9", wanted=True)}
    actions = core.pool("n1", "n2", out=out)
    assert len(revoked(actions)) == 1
    assert not granted(actions), "a third node while the first is not free yet"


def test_the_bound_counts_a_released_node_until_it_is_free() -> None:
    core = Core(Settings().changed(max_nodes=2))
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2", "n3")
    core.place_all()
    assert not granted(core.pause("node n3", release=True))
    assert not granted(core.pool("n1", "n2", "n3"))
    (item,) = core.leases("1", live=False)
    core.pilots.pop(item.job_id or "")
    core.report("1", lease(item.id, "ended"))
    assert [new.node for new in granted(core.pool("n1", "n2", "n3"))] == ["n1"]


def test_the_bound_keeps_to_the_nodes_that_it_let_trainers_use_before() -> None:
    core = Core(Settings().changed(max_nodes=2))
    core.pool(*names(6), windows={"n5": 900.0, "n6": 800.0})
    free = {name for name, node in core.state.pool.nodes.items() if node.in_pool}
    core.pool(*names(6), windows=dict.fromkeys(free, 100.0))
    assert {name for name, node in core.state.pool.nodes.items() if node.in_pool} == free


@pytest.mark.parametrize(
    ("keys", "size", "most"),
    [
        ({}, 10, (None, "")),
        ({"max_nodes": 4}, 10, (4, "max_nodes = 4")),
        ({"max_share": 0.3}, 10, (3, "max_share = 0.3")),
        ({"max_share": 0.29}, 100, (29, "max_share = 0.29")),
        ({"max_share": 0.5, "max_nodes": 4}, 6, (3, "max_share = 0.5")),
        ({"max_share": 0.0}, 6, (0, "max_share = 0")),
    ],
)
def test_the_bound_is_the_lower_of_nodes_and_share(
    keys: dict[str, float], size: int, most: tuple[int | None, str]
) -> None:
    assert bound(Settings().changed(**keys), size) == most
