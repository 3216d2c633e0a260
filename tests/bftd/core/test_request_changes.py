"""A user changes how many nodes a trainer may have, or its weight."""

from __future__ import annotations

from dataclasses import replace

from bftd.core.model.domain import Settings
from bftd.core.model.events import Finished, RequestChanged
from bftd.protocol.sizes import Sizes
from tests.bftd.builders import Core, lease, registration, revoked
from tests.support.messages import says

FOUR = ("n1", "n2", "n3", "n4")


def with_four(nodes_max: int = 4) -> Core:
    core = Core()
    core.arrive(registration("1", nodes_max=nodes_max))
    core.pool(*FOUR)
    core.place_all()
    return core


def test_fewer_nodes_are_taken_back_in_the_same_step_and_the_driver_hears_why() -> None:
    core = with_four()
    version = core.state.trainers["1"].version
    taken = revoked(core.apply(RequestChanged(core.time_s, "1", Sizes(1, 2))))
    assert len(core.nodes("1")) == 2
    assert len(taken) == 2
    assert not any(item.vacate for item in taken)
    assert all(says(item.reason, "core.sentences.above_most", most="2 nodes") for item in core.leases("1", live=False))
    assert core.state.trainers["1"].version > version


def test_more_nodes_are_lent_in_the_same_step() -> None:
    core = with_four(nodes_max=2)
    assert len(core.nodes("1")) == 2
    core.apply(RequestChanged(core.time_s, "1", Sizes(1, 4)))
    assert core.nodes("1") == set(FOUR)


def test_more_than_there_are_suspends_the_trainer_until_they_come() -> None:
    core = with_four()
    core.apply(RequestChanged(core.time_s, "1", Sizes(5, 6)))
    assert core.nodes("1") == set()
    for item in core.leases("1", live=False):
        core.report("1", lease(item.id, "ended"))
    core.pilots.clear()
    core.pool(*FOUR, "n5")
    assert len(core.nodes("1")) == 5


def test_a_change_outlives_a_restart_of_the_driver_and_a_requeue() -> None:
    core = with_four()
    core.apply(RequestChanged(core.time_s, "1", Sizes(1, 2), 3.0))
    core.arrive(registration("1", nodes_max=4))
    assert (core.state.trainers["1"].sizes, core.state.trainers["1"].request.weight) == (Sizes(1, 2), 3.0)
    core.apply(Finished(core.time_s, "1", 1, ""))
    core.arrive(registration("1", nodes_max=4))
    core.pool(*FOUR)
    assert len(core.nodes("1")) <= 2


def test_a_weight_moves_nodes_where_the_objective_is_priority() -> None:
    core = Core(Settings().changed(objective="priority"))
    known = {"curve": ((1, 100.0), (4, 400.0)), "up_cost_s": 0.1, "down_cost_s": 0.1}
    for id_ in ("1", "2"):
        core.arrive(replace(registration(id_, nodes_max=4, **known), weight=1.0))
    core.pool(*FOUR)
    core.place_all()
    before = len(core.nodes("1"))
    core.apply(RequestChanged(core.time_s, "2", weight=50.0))
    assert len(core.nodes("1")) < before
    assert core.state.trainers["2"].sizes == Sizes(1, 4)


def test_what_is_unknown_or_has_ended_is_not_changed() -> None:
    core = with_four()
    core.apply(RequestChanged(core.time_s, "2", Sizes(1, 1)))
    core.finish("1")
    before = core.state.trainers["1"]
    core.apply(RequestChanged(core.time_s, "1", Sizes(1, 1), 2.0))
    assert core.state.trainers["1"] == before


def test_listed_sizes_stay_listed_whatever_the_range() -> None:
    only = Sizes(1, 8, (1, 2, 4, 8))
    narrow = only.between(2, 5)
    assert narrow is not None
    assert [narrow.largest(nodes) for nodes in (1, 3, 8)] == [0, 2, 4]
    assert narrow.between(1, 8) == only
    assert only.between(5, 7) is None
    assert only.between(3, 2) is None
