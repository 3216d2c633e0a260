"""Crashes that drivers report: which count, and when they put a node into quarantine."""

from __future__ import annotations

import pytest

from bftd.core.inputs.node_failures import SHARE_OF_ONE_USER
from bftd.core.model import timing
from bftd.core.model.domain import Failure, Settings, State
from bftd.protocol.reports import CrashReport
from tests.bftd.builders import NOW_S, Core, lease, registration
from tests.support.messages import says

NAMES = [f"n{number}" for number in range(1, 31)]


def crash(node: str) -> CrashReport:
    """A worker ended by itself."""
    return CrashReport(NOW_S, node, 1, "bus error")


def fails_on(core: Core, trainer: str, *nodes: str, work_s: float = 1.0) -> None:
    """One pilot of a trainer on each of these nodes works, crashes and ends, and the trainer may try again."""
    if trainer not in core.state.trainers:
        core.arrive(registration(trainer, nodes_max=len(nodes), user=trainer.split(".")[0]))
    core.pool(*nodes, after_s=9.0)
    core.place_all()
    core.pool(*nodes, after_s=work_s)
    assert core.nodes(trainer) == set(nodes)
    core.report(trainer, *map(crash, nodes))
    core.pilots.clear()
    core.report(trainer, *(lease(item.id, "ended") for item in core.leases(trainer)))


def test_regression_a_trainer_that_never_had_a_node_put_the_pool_into_quarantine() -> None:
    core = Core()
    core.arrive(registration("1", user="eve", nodes_min=99, nodes_max=99))
    core.pool(*NAMES)
    for _ in range(3):
        core.report("1", *map(crash, NAMES), after_s=0.1)
    assert not core.state.quarantined
    assert not core.state.failures


def test_regression_names_of_nodes_that_nobody_has_were_kept_for_ever() -> None:
    core = Core()
    core.arrive(registration("1", user="eve", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    core.report("1", *(crash(f"invented{number}") for number in range(1000)))
    assert not core.state.failures
    assert not core.state.ended


def test_a_crash_counts_only_where_slurm_has_shown_the_pilot() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.report("1", crash("n1"))
    assert not core.state.failures
    core.pool("n1")
    core.report("1", crash("n1"))
    assert [failure.user for failure in core.state.failures["n1"]] == ["ann"]


def test_a_crash_counts_once_a_lease_whatever_job_id_the_driver_says() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    (item,) = core.leases("1")
    for job_id in ("81", "82", "83", "84"):
        core.report("1", lease(item.id, "working", job_id=job_id), crash("n1"))
    assert len(core.state.failures["n1"]) == 1
    assert not core.state.quarantined


@pytest.mark.parametrize(("after_s", "counts"), [(timing.ENDED_KEPT_S, True), (timing.ENDED_KEPT_S + 1, False)])
def test_a_crash_that_is_told_after_its_lease_ended_counts_for_a_short_while(after_s: float, counts: bool) -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "ended"))
    core.report("1", crash("n1"), after_s=after_s)
    assert bool(core.state.failures) is counts
    core.pool("n2", after_s=timing.ENDED_KEPT_S + 1)
    assert not core.state.ended, "the memory is bounded"


def test_another_users_lease_is_not_ones_own() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.arrive(registration("2", user="eve", nodes_min=9, nodes_max=9))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    core.report("2", crash("n1"))
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "ended"))
    core.report("2", crash("n1"))
    assert not core.state.failures


def test_failures_of_two_users_put_a_node_into_quarantine_and_two_of_one_do_not() -> None:
    core = Core()
    fails_on(core, "ann.1", "n1")
    fails_on(core, "ann.1", "n1")
    assert not core.state.quarantined
    core.finish("ann.1")
    fails_on(core, "bob.1", "n1")
    assert set(core.state.quarantined) == {"n1"}
    assert says(core.sentences(), "core.sentences.node_avoided", node="n1", for_s=300, pilots="3 different pilots")


def test_one_failure_of_each_of_two_users_is_enough() -> None:
    core = Core()
    fails_on(core, "ann.1", "n1")
    core.finish("ann.1")
    fails_on(core, "bob.1", "n1")
    assert set(core.state.quarantined) == {"n1"}


def test_three_failures_of_one_user_alone_are_enough_where_nobody_else_trains() -> None:
    core = Core()
    for _ in range(3):
        assert not core.state.quarantined
        fails_on(core, "ann.1", "n1", "n2")
    assert set(core.state.quarantined) == {"n1", "n2"}


def test_one_users_failures_alone_keep_few_nodes_from_the_others() -> None:
    core = Core(Settings().changed(objective="throughput"))
    for _ in range(3):
        fails_on(core, "eve.1", *NAMES)
        if "bob.1" not in core.state.trainers:
            core.arrive(registration("bob.1", nodes_min=99, nodes_max=99, user="bob"))
    assert len(core.state.quarantined) == SHARE_OF_ONE_USER * len(NAMES)


def test_a_worker_that_trains_on_a_node_for_a_while_shows_that_it_is_sound() -> None:
    core = Core()
    fails_on(core, "ann.1", "n1")
    fails_on(core, "ann.1", "n1")
    core.pool("n1", after_s=9.0)
    core.place_all()
    core.pool("n1")
    for _ in range(7):
        core.pool("n1", after_s=9.0)
    (item,) = core.leases("ann.1")
    core.report("ann.1", lease(item.id, "ended"))
    assert not core.state.failures


def test_a_worker_that_crashes_after_a_long_time_is_the_first_failure_again() -> None:
    core = Core()
    fails_on(core, "ann.1", "n1")
    fails_on(core, "ann.1", "n1")
    fails_on(core, "ann.1", "n1", work_s=timing.SOUND_AFTER_S + 1)
    assert len(core.state.failures["n1"]) == 1
    assert not core.state.quarantined


def test_failures_expire_and_those_without_a_user_count_no_more() -> None:
    core = Core(Settings().changed(quarantine_s=100.0))
    core.state = State(settings=core.state.settings, time_s=1000.0, failures={"x1": (Failure("71", 999.0),)})
    fails_on(core, "ann.1", "n1")
    assert set(core.state.failures) == {"n1"}
    core.pool(after_s=101.0)
    assert not core.state.failures


def test_regression_a_node_that_its_driver_gave_back_after_a_crash_was_granted_again_in_the_same_second() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", "n2")
    (bad,) = [item for item in core.leases("1") if item.node == "n1"]
    core.report("1", crash("n1"))
    core.pilots.pop(bad.job_id or "")
    core.report("1", lease(bad.id, "ended", reason="workers on n1 failed 2 times"))
    assert core.nodes("1") == {"n2"}
    core.pool("n1", "n2", after_s=0.1)
    assert core.nodes("1") == {"n2"}
    core.pool("n1", "n2", after_s=timing.BACKOFF_MOST_S)
    assert core.nodes("1") == {"n1", "n2"}


def test_nodes_that_say_at_once_that_they_cannot_train_are_in_quarantine_after_three_pilots() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    for _ in range(3):
        for _ in range(20):
            core.pool("n1", "n2", after_s=3.0)
            core.place_all("placed")
            if any(item.node == "n1" for item in core.leases("1")):
                break
        core.pool("n1", "n2")  # Slurm shows the pilot before its driver gives it back
        (bad,) = [item for item in core.leases("1") if item.node == "n1"]
        core.pilots.pop(bad.job_id or "")
        core.report("1", crash("n1"), lease(bad.id, "ended", reason="no python there"))
    assert set(core.state.quarantined) == {"n1"}
    assert core.nodes("1") == {"n2"}
    assert core.state.trainers["1"].refused_rounds == 0
