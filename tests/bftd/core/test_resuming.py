"""After an outage trainers resume a few at a time: a parallel file system has one front door."""

from __future__ import annotations

from bftd.config.keys import DecideConfig
from bftd.core.model.domain import Settings
from bftd.core.model.timing import LOADS_MOST_S
from bftd.protocol.reports import ProgressReport, SuspendReport
from tests.bftd.builders import Core, lease, registration
from tests.support.messages import says

NODES = [f"n{number}" for number in range(1, 9)]


def outage(most: int, users: dict[str, str], pj_max: int = 10) -> Core:
    """All nodes were taken from trainers of one node each that worked, and are there again."""
    core = Core(Settings(decide=DecideConfig(pj_max=pj_max, resumes_at_once=most)))
    core.pool(*NODES)
    for id_, user in users.items():
        core.arrive(registration(id_, nodes_max=1, user=user))
    core.pool(*NODES)
    core.place_all()
    core.pool(*NODES)
    assert all(len(core.nodes(id_)) == 1 for id_ in users)
    lost(core, *users)
    return core


def lost(core: Core, *trainers: str) -> None:
    """Slurm has taken all nodes of some trainers, and those have saved their states."""
    gone = {lease.job_id for id_ in trainers for lease in core.leases(id_)}
    core.pilots = {id_: where for id_, where in core.pilots.items() if id_ not in gone}
    for _ in range(2):
        core.pool(*core.pilots.values(), hold="slurmctld was away")
    for id_ in trainers:
        core.report(id_, SuspendReport(core.time_s, 5))


def having(core: Core) -> set[str]:
    return {lease.trainer for lease in core.state.leases.values() if lease.live}


FIVE = {"a": "ann", "b": "bob", "c": "cid", "d": "dee", "e": "eve"}


def test_after_an_outage_no_more_trainers_load_their_states_at_once_than_may() -> None:
    core = outage(2, FIVE)
    core.pool(*NODES)
    assert having(core) == {"a", "b"}
    for _ in range(5):
        core.pool(*NODES)
    assert having(core) == {"a", "b"}
    told = [text for text in core.sentences() if says(text, "core.sentences.resumes_later", loading=2)]
    assert [text.split(" ")[0] for text in told] == ["train-c", "train-d", "train-e"], "each is told once"
    core.place_all()  # they train again
    core.pool(*NODES)
    assert having(core) == {"a", "b", "c", "d"}
    core.place_all()
    core.pool(*NODES)
    assert having(core) == set(FIVE)


def test_without_a_bound_or_within_it_all_resume_at_once() -> None:
    for most in (0, 5):
        core = outage(most, FIVE)
        core.pool(*NODES)
        assert having(core) == set(FIVE)


def test_a_trainer_that_hangs_while_it_loads_its_state_holds_up_nobody_for_long() -> None:
    core = outage(1, FIVE)
    core.pool(*NODES)
    core.place_all("placed")
    for _ in range(int(LOADS_MOST_S)):
        assert having(core) == {"a"}
        core.pool(*NODES)
    assert having(core) == {"a", "b"}


def test_a_trainer_that_gives_its_nodes_back_again_and_again_without_training_takes_no_second_turn_first() -> None:
    core = outage(1, FIVE)
    trained = set[str]()
    for _ in range(20):
        core.pool(*NODES)
        for each in [one for one in core.state.leases.values() if one.live and one.phase == "granted"]:
            job_id = f"job-{each.id}"
            core.pilots[job_id] = each.node
            core.report(each.trainer, lease(each.id, "placed", job_id=job_id))
            if each.trainer == "a":
                core.pool(*NODES)
                del core.pilots[job_id]
                core.report("a", lease(each.id, "ended", job_id=job_id))
            else:
                core.report(each.trainer, lease(each.id, "working", job_id=job_id))
                trained.add(each.trainer)
    assert trained == set(FIVE) - {"a"}


def test_users_without_a_node_resume_first_and_one_who_comes_anew_waits_for_nobody() -> None:
    core = outage(1, {"a1": "ann", "a2": "ann", "a3": "ann", "b": "bob"})
    core.arrive(registration("c", nodes_max=1, user="cid"))
    core.pool(*NODES)
    assert having(core) == {"a1", "c"}
    core.place_all()
    core.pool(*NODES)
    assert having(core) == {"a1", "b", "c"}, "ann has a node, bob has none"


def test_a_trainer_that_waits_for_nodes_it_cannot_have_keeps_no_other_from_resuming() -> None:
    core = outage(1, FIVE)
    core.arrive(registration("large", nodes_min=9, nodes_max=9, user="ann"))
    core.report("large", SuspendReport(core.time_s, 1))
    core.pool(*NODES)
    core.place_all()
    core.pool(*NODES)
    assert having(core) == {"a", "b"}


def test_a_single_trainer_resumes_at_the_first_poll_with_a_node_for_it() -> None:
    core = outage(1, {"a": "ann"})
    core.pool(*NODES)
    assert having(core) == {"a"}


def test_drivers_that_slurm_started_again_after_an_outage_take_turns_too() -> None:
    core = outage(2, {})
    for id_, user in FIVE.items():
        core.arrive(registration(id_, nodes_max=1, user=user))
    core.pool(*NODES)
    core.place_all()
    for id_ in FIVE:
        core.report(id_, ProgressReport(core.time_s, 5, 50.0, 1.0, 1))
        core.finish(id_, 1)
    core.pilots.clear()
    for _ in range(2):
        core.pool(*NODES)
    for id_, user in FIVE.items():
        core.arrive(registration(id_, nodes_max=1, user=user))
    core.pool(*NODES)
    assert having(core) == {"a", "b"}
