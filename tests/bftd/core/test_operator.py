"""What operator mode may cancel, and how much of it; and pilots of another daemon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftd.core.model.domain import Action, CancelPilot, Decided, Happened, Settings
from bftd.core.model.events import Configured, PoolObserved
from bftd.core.model.foreign_jobs import FLOOR, Cancels, ElasticJob, most
from bftd.service.status import overview
from tests.bftd.builders import Core, Pool, lease, node, of, pilot, registration
from tests.support.messages import says

OPERATOR = Settings().changed(operator=True)
YOUNG_S = 1e9


def young(number: int, **fields: object) -> ElasticJob:
    """A job of a pilot's shape that was submitted after the daemon's first look."""
    plain = ElasticJob(str(number), "bob", "chem", (f"m{number}",), None, YOUNG_S, 600.0)
    return replace(plain, **fields)  # type: ignore[arg-type]


def cancelled(core: Core, polls: int) -> list[str]:
    """The jobs of the cancels of that many polls."""
    found: list[str] = []
    for _ in range(polls):
        found += [action.job_id for action in of(core.pool("n1"), CancelPilot)]
    return found


@pytest.mark.parametrize(
    "job",
    [
        young(5, nodes=("m5", "m6")),
        young(5, limit_s=None),
        young(5, limit_s=3660.0),
        young(5, submit_s=999.0),
        young(5, user="root"),
    ],
    ids=["two nodes", "no limit", "longer than any pilot", "older than the daemon", "an administrator's"],
)
def test_what_is_no_pilot_by_its_shape_or_age_is_named_and_left_alone(job: ElasticJob) -> None:
    core = Core(OPERATOR)
    core.pool("n1")
    core.elastic = {"5": job, "6": young(6)}
    assert set(cancelled(core, 200)) == {"6"}
    shown = overview(core.state, core.time_s, "1", "live", [], [])
    assert {job["job_id"] for job in shown["orphan_jobs"]} == {"5", "6"}


def test_limits_of_pilots_are_whole_minutes() -> None:
    core = Core(OPERATOR.changed(pilot_limit_s=119.0))
    core.pool("n1")
    core.elastic = {"5": young(5, limit_s=60.0), "6": young(6, limit_s=119.0)}
    assert set(cancelled(core, 10)) == {"5"}


def test_a_job_of_the_first_snapshot_is_old_whatever_a_clock_says_of_it() -> None:
    core = Core(OPERATOR)
    core.elastic, core.job_ids = {"5": young(5), "6": young(6)}, frozenset({"5", "8_[1-9]"})
    core.pool("n1")
    core.elastic["8_3"] = young(8, id="8_3")  # a task that has waited
    assert set(cancelled(core, 10)) == {"6"}


def test_only_so_many_are_cancelled_in_a_minute() -> None:
    core = Core(OPERATOR.changed(operator_cancels_per_min=2))
    core.pool("n1")
    core.elastic = {str(number): young(number) for number in range(5, 8)} | {
        str(number): young(number, user="root") for number in range(100, 150)
    }
    assert cancelled(core, 7) == ["5", "6"]
    assert cancelled(core, 50) == []
    assert cancelled(core, 11)[0] == "7"


def test_regression_operator_mode_cancelled_every_job_of_a_partition() -> None:
    core = Core(OPERATOR)
    core.pool("n1")
    core.elastic = {str(number): young(number) for number in range(5, 105)}
    assert cancelled(core, 100) == []
    (alarm,) = of(core.actions, Happened, kind="alarm")
    told = overview(core.state, core.time_s, "1", "live", [], [])
    assert [item["text"] for item in told["alarms"]] == [alarm.data["text"]]
    assert says(told["alarms"][0]["text"], "core.sentences.cancelling_stopped", jobs=100, running=100, most=10)
    core.elastic = {"5": young(5)}
    assert cancelled(core, 20) == []
    core.time_s += 4000.0
    assert cancelled(core, 20) == [], "an alarm stays until somebody looks"
    core.apply(Configured(core.time_s, core.state.settings))  # bft tune
    assert cancelled(core, 10) == []
    core.apply(Configured(core.time_s, core.state.settings, reloaded=True))
    assert set(cancelled(core, 10)) == {"5"}
    assert not core.state.alarms


def test_one_by_one_no_more_are_cancelled_than_at_once() -> None:
    core = Core(OPERATOR)
    core.pool("n1")
    seen: set[str] = set()
    for number in range(5, 15):
        core.elastic = {str(number): young(number)}
        seen.update(cancelled(core, 20))
    assert len(seen) == FLOOR
    assert core.state.alarms


def test_the_bound_is_a_tenth_of_what_runs_and_three_of_few() -> None:
    assert [most(running) for running in (0, 3, 39, 40, 1000)] == [3, 3, 3, 4, 100]
    assert Cancels({"1": 0.0}).at(3599.0).jobs
    assert not Cancels({"1": 0.0}).at(3600.0).jobs


def test_nothing_is_cancelled_in_a_partition_that_must_not_be_harvested() -> None:
    core = Core(OPERATOR)
    core.pool("n1")
    core.elastic = {"5": young(5)}
    for _ in range(30):
        core.time_s += 1.0
        view = replace(core.state.pool, time_s=core.time_s, elastic=core.elastic, refused="batch is not preemptible")
        assert not of(core.apply(PoolObserved(core.time_s, view)), CancelPilot)
    assert cancelled(core, 10)[0] == "5"


# Two daemons.


def with_daemon(core: Core, identity: str, *users: str) -> tuple[Action, ...]:
    """A snapshot in which jobs from 70 on, one of each user, are pilots of that daemon."""
    core.time_s += 1.0
    jobs = {str(id_): young(id_, nodes=(f"m{id_}",), user=user) for id_, user in enumerate(users or ("bob",), 70)}
    core.elastic |= jobs
    view = replace(
        core.state.pool,
        time_s=core.time_s,
        hold=None,
        elastic=dict(core.elastic),
        daemons=dict.fromkeys(jobs, identity) if identity else {},
        owners=dict.fromkeys(jobs, "12"),
        pilots={**core.pilots, **{id_: job.nodes[0] for id_, job in jobs.items()}},
    )
    return core.apply(PoolObserved(core.time_s, view))


@pytest.mark.parametrize("users", [("bob", "cy"), ("root",)], ids=["two users", "an administrator"])
def test_while_pilots_of_another_daemon_run_nothing_grows_and_they_are_never_cancelled(users: tuple[str, ...]) -> None:
    core = Core(replace(OPERATOR, identities=frozenset({"ours"})))
    core.pool("n1")
    done = [action for _ in range(200) for action in with_daemon(core, "theirs", *users)]
    core.arrive(registration("1"))
    with_daemon(core, "theirs", *users)
    assert not core.state.leases
    assert says(core.state.pool.hold or "", "core.sentences.foreign_pilots", identity="theirs")
    assert not of(done, CancelPilot)
    assert len(of(done, Happened, kind="alarm")) == 1
    core.elastic.clear()
    core.pool("n1")
    assert core.nodes("1") == {"n1"}, "growth goes on when they are gone"


def test_regression_a_comment_of_any_user_stopped_the_growth_and_kept_his_job_from_being_cancelled() -> None:
    core = Core(replace(OPERATOR, identities=frozenset({"ours"})))
    core.pool("n1")
    done = list(with_daemon(core, "forged4"))
    core.arrive(registration("1"))
    done += with_daemon(core, "forged4")
    assert core.nodes("1") == {"n1"}
    done += [action for second in range(100) for action in with_daemon(core, f"forged{4 + second // 20}")]
    assert core.state.pool.hold is None
    assert not core.state.alarms
    told = [action.text for action in of(done, Decided)]
    key = "core.sentences.orphan_job_foreign"
    assert says(told, key, user="bob", nodes="m70", job_id=70, daemon="forged4"), told
    assert {action.job_id for action in of(done, CancelPilot)} == {"70"}, "as any job that no lease stands behind"


def test_words_of_many_daemons_are_one_alarm() -> None:
    core = Core(replace(OPERATOR, identities=frozenset({"ours"})))
    core.pool("n1")
    done = [action for number in range(20) for action in with_daemon(core, f"word{number}", "bob", "cy")]
    assert len(of(done, Happened, kind="alarm")) == 1
    assert list(core.state.alarms) == ["daemon"]


@pytest.mark.parametrize("identity", ["ours", ""])
def test_pilots_of_this_daemon_and_those_that_name_none_hold_nothing(identity: str) -> None:
    core = Core(replace(OPERATOR, identities=frozenset({"ours"})))
    core.arrive(registration("1"))
    core.pool("n1")
    with_daemon(core, identity, "bob", "cy")
    assert core.state.pool.hold is None
    assert not core.state.alarms


def test_a_pilot_whose_trainer_came_over_to_this_daemon_is_its_own() -> None:
    core = Core(replace(OPERATOR, identities=frozenset({"ours"})))
    core.arrive(registration("12", user="root"))
    core.pool("n1")
    with_daemon(core, "theirs", "root")
    assert not core.state.alarms
    assert core.state.pool.hold is None


def test_the_comment_of_a_pilot_says_whose_it_is() -> None:
    pool = Pool()
    view = pool.see(
        [node("n1", "ALLOCATED"), node("n2", "ALLOCATED")],
        [pilot("70", "n1", comment="bft 12 n1.3 @theirs"), pilot("71", "n2", comment="bft 12 n2.4")],
    )
    assert view.daemons == {"70": "theirs"}
    assert view.owners == {"70": "12", "71": "12"}


def test_overstaying_pilots_of_our_own_count_for_no_bound() -> None:
    core = Core(OPERATOR.changed(operator_cancels_per_min=1))
    core.arrive(registration("1", nodes_max=8))
    core.pool(*(f"n{number}" for number in range(1, 9)))
    core.place_all()
    core.finish("1")
    assert len(set(cancelled(core, 10))) == 8
    assert not core.state.alarms
    for item in list(core.state.leases.values()):
        core.report("1", lease(item.id, "ended"))
