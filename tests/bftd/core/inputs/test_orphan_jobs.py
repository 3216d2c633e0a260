"""Jobs of the harvested partition that no lease stands behind: who names them, and who is cancelled."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bftd.core.model import timing
from bftd.core.model.domain import CancelPilot, Happened, Settings
from bftd.core.model.foreign_jobs import ElasticJob
from bftd.protocol.registration import Held
from bftd.service.status import overview
from bftd.ui.status import render
from tests.bftd.builders import Core, Pool, lease, members, node, of, pilot, registration
from tests.support.messages import says, wording

OPERATOR = Settings().changed(operator=True)


def own(id_: str = "55", user: str = "bob", *nodes: str) -> ElasticJob:
    """What a user started in the partition himself, after the daemon's first look."""
    return ElasticJob(id_, user, "chem", nodes or ("n9",), 900.0, submit_s=5000.0, limit_s=600.0)


def cancelled(core: Core, seconds: int, *names: str) -> dict[str, int]:
    """Job ids cancelled in that many polls, and after how many of them first."""
    found: dict[str, int] = {}
    for second in range(seconds):
        for action in of(core.pool(*names), CancelPilot):
            found.setdefault(action.job_id, second)
    return found


def shown(core: Core) -> list[dict[str, object]]:
    """The orphan jobs of `bft status`."""
    jobs: list[dict[str, object]] = overview(core.state, core.time_s, "1", "live", [], [])["orphan_jobs"]
    return jobs


def test_a_job_that_goes_round_the_daemon_is_named_once_with_its_user_account_node_and_start() -> None:
    core = Core()
    core.elastic["55"] = own()
    core.pool("n1")
    assert not shown(core)
    assert not cancelled(core, 30, "n1")
    (orphan,) = shown(core)
    assert orphan == {
        "job_id": "55",
        "user": "bob",
        "account": "chem",
        "nodes": ["n9"],
        "since_s": 900.0,
        "cancelled": False,
    }
    named = [text for text in core.sentences() if says(text, "core.sentences.orphan_job")]
    assert named == [wording("core.sentences.orphan_job", user="bob", nodes="n9", job_id=55)]
    assert len(of(core.actions, Happened, kind="stray")) == 1


def test_an_orphan_job_is_forgotten_when_it_is_gone() -> None:
    core = Core()
    core.elastic["55"] = own()
    cancelled(core, 5)
    core.elastic.clear()
    core.pool("n1")
    assert not shown(core)
    assert not core.state.orphan_jobs


def test_with_operator_rights_it_is_cancelled_after_a_grace_and_then_only_now_and_then() -> None:
    core = Core(OPERATOR)
    core.elastic["55"] = own()
    times = []
    for second in range(130):
        times += [second for _ in of(core.pool("n1"), CancelPilot)]
    assert [second - times[0] for second in times] == [0, 61, 122]
    assert timing.ORPHAN_UNMARKED_GRACE_S < times[0] <= timing.ORPHAN_UNMARKED_GRACE_S + 1
    assert shown(core)[0]["cancelled"] is True


def test_jobs_of_root_and_of_administrators_are_named_and_left_alone() -> None:
    core = Core(replace(OPERATOR, spared=frozenset({"root", "ada"})))
    core.elastic = {"1": own("1", "root", "n8"), "2": own("2", "ada"), "3": own("3", "bob", "n7")}
    assert set(cancelled(core, 20)) == {"3"}
    assert {job["user"] for job in shown(core)} == {"root", "ada", "bob"}


def test_a_pilot_whose_driver_has_not_said_its_job_id_yet_is_no_orphan() -> None:
    core = Core(OPERATOR)
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    (item,) = core.leases("1")
    core.elastic["70"] = ElasticJob("70", "ann", "", ("n1",))
    assert not cancelled(core, 20, "n1")
    core.report("1", lease(item.id, "placed", job_id="70"))
    assert not cancelled(core, 20, "n1")
    assert not shown(core)


@pytest.mark.parametrize(
    "job",
    [
        own("70", "bob", "n1"),
        own("70", "ann", "n2"),
        own("71", "ann", "n1"),
    ],
    ids=["another user's", "another node", "another job"],
)
def test_nothing_hides_behind_the_lease_of_something_else(job: ElasticJob) -> None:
    core = Core(OPERATOR)
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "placed", job_id="70"))
    core.pilots["70"] = "n1"
    core.elastic[job.id] = job
    assert set(cancelled(core, 10, "n1")) == {job.id}


def test_a_job_of_several_nodes_hides_behind_no_lease_and_is_named_only() -> None:
    core = Core(OPERATOR)
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "placed", job_id="70"))
    core.pilots["70"] = "n1"
    core.elastic["70"] = own("70", "ann", "n1", "n2")
    assert not cancelled(core, 30, "n1")
    assert [job["job_id"] for job in shown(core)] == ["70"]


def test_the_daemon_cancels_no_job_for_a_driver_that_is_not_a_pilot_of_the_trainers_user() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    one, two = core.leases("1")
    # one is another user's job of the partition, the other no job of the partition at all
    core.pilots["90"] = one.node
    core.elastic["90"] = ElasticJob("90", "bob", "", (one.node,))
    core.report("1", lease(one.id, "placed", job_id="90"), lease(two.id, "placed", job_id="91"))
    core.finish("1")
    assert not cancelled(core, 60)


def test_regression_a_pilot_that_a_driver_had_left_on_a_node_that_is_not_harvested_any_more_stayed() -> None:
    core = Core(OPERATOR)
    core.arrive(registration("1", nodes_max=2))
    core.elsewhere = {id_: own(id_, user, f"n{id_}") for id_, user in (("7", "ann"), ("8", "bob"), ("9", "ann"))}
    core.owners = {"7": "1", "8": "1"}  # bob's job names ann's trainer, and ann's other one none
    assert set(cancelled(core, 200)) == {"7"}
    assert [job["job_id"] for job in shown(core)] == ["7"]


def test_a_driver_that_never_says_which_job_it_placed_does_not_keep_its_node() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.pilots, core.owners = {"70": "n1"}, {"70": "1"}
    assert set(cancelled(core, 60, "n1")) == {"70"}


def test_after_a_start_a_pilot_waits_for_its_driver_to_register_before_it_is_cancelled() -> None:
    core = Core(OPERATOR)
    core.pilots, core.owners = {"70": "n1"}, {"70": "run-a-1"}
    core.elastic["55"] = own()
    assert set(cancelled(core, 40)) == {"55"}
    core.arrive(registration("run-a-1"), Held("n1.7", "n1", "70"))
    assert not cancelled(core, 20)
    core.elastic.clear()
    # a driver that held on to it for ever would be no better than none
    assert set(cancelled(core, 70)) == {"70"}


def test_a_pilot_of_an_unknown_trainer_is_cancelled_when_no_driver_came_for_it() -> None:
    core = Core(OPERATOR)
    core.elastic["70"], core.owners = own("70", "ann", "n1"), {"70": "run-a-1"}
    found = cancelled(core, 70)
    assert timing.DRIVER_SILENT_S < found["70"] <= timing.DRIVER_SILENT_S + 2


def test_the_comment_of_a_pilot_gets_no_job_cancelled_that_is_none_by_its_shape() -> None:
    core = Core(OPERATOR)
    core.elastic["70"], core.owners = own("70", "ann", "n1", "n2"), {"70": "run-a-1"}
    assert not cancelled(core, 90)


def test_a_comment_that_names_another_users_trainer_makes_no_orphan_of_it() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.elastic["55"], core.owners["55"] = own(), "1"
    assert not cancelled(core, 30)
    assert shown(core)


def test_its_node_is_not_in_the_pool_and_says_why() -> None:
    pool = Pool()
    view = pool.see([node("n1"), node("n2", "ALLOCATED")], [pilot("55", "n2", user="bob", account="chem")])
    view = pool.see([node("n1"), node("n2", "ALLOCATED")], [pilot("55", "n2", user="bob", account="chem")])
    assert members(view) == {"n1"}
    assert view.nodes["n2"].why == wording("pool.judgement.runs_orphan", pilot=55)
    assert view.elastic["55"] == ElasticJob("55", "bob", "chem", ("n2",), None, 0.0, 3600.0)


def test_the_view_shows_a_line_for_each() -> None:
    core = Core(OPERATOR)
    core.elastic["55"] = own()
    cancelled(core, 10)
    out = io.StringIO()
    Console(file=out, width=160).print(render(overview(core.state, core.time_s, "1", "live", [], [])))
    text = out.getvalue()
    assert says(text, "web.sections.orphan_job", job_id=55, user="bob (chem) on n9", since_s="1970-01-01")
    assert says(text, "bftd.view.cancelled")
