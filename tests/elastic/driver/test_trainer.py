"""The trainer's decisions: whom to train with, when to suspend, and how it answers a notice of Slurm's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import pytest

from bftd.protocol.reports import CrashReport, LeaseReport, ProgressReport, ResumeReport, SuspendReport
from bftd.protocol.sizes import Sizes
from elastic.base.timing import BEAT_S
from elastic.driver import timers
from elastic.driver import trainer as trainers
from elastic.driver.failures import liveness as livenesses
from elastic.driver.pilots.launcher import Pilot
from tests.elastic.driver.stage import OpenStage, Stage
from tests.elastic.fakes import (
    FakeBackend,
    ops,
    peer,
    sent,
    until,
)
from tests.support.messages import says as says_message
from tests.support.messages import wording

pytestmark = pytest.mark.slow


# -- whom to train with ---


async def test_a_granted_node_trains_once_it_is_warm_and_every_state_is_told(stage: Stage) -> None:
    stage.grant("n1")
    agent = await stage.connect("n1")
    [configure] = sent(agent)
    assert (configure["op"], configure["backend"]) == ("configure", "horovod")
    assert stage.backend.members == []
    await stage.says(agent, {"op": "ready"})
    await stage.trains_on("n1")
    await stage.step("n1", 1, first=True)
    assert [report.state for report in stage.reports(LeaseReport)] == ["placed", "ready", "working"]
    assert stage.ended is None


@pytest.mark.parametrize(("arrives", "told"), [(7, [5, 7]), (5, [5])])
async def test_regression_a_checkpoint_after_the_last_step_was_not_counted(
    open_stage: OpenStage, arrives: int, told: list[int]
) -> None:
    async with open_stage("1-4") as stage:
        stage.grant("n1")
        await stage.warm("n1")
        await stage.trains_on("n1")
        await stage.step("n1", 5, first=True)
        stage.run.progress.saved(arrives, 10 * arrives)
    assert [(report.step, report.samples) for report in stage.reports(ProgressReport)] == [(n, 10 * n) for n in told]


async def test_of_three_warm_nodes_a_trainer_of_1_2_or_4_trains_on_two(open_stage: OpenStage) -> None:
    async with open_stage("1-4,sizes=1:2:4") as stage:
        stage.grant("n1", "n2", "n3")
        await stage.warm("n1", "n2", "n3")
        await stage.trains_on("n1", "n2")
        stage.grant("n4")
        await stage.warm("n4")
        await stage.trains_on("n1", "n2", "n3", "n4")
        stage.revoke("n1")
        await stage.trains_on("n2", "n3")


async def test_a_trainer_that_was_resized_trains_on_as_many_nodes_as_its_daemon_says(open_stage: OpenStage) -> None:
    async with open_stage("2-2") as stage:
        stage.run.settings.site.sizes = Sizes(1, 3)
        stage.grant("n1")
        await stage.warm("n1")
        await stage.trains_on("n1")
        stage.grant("n2", "n3")
        await stage.warm("n2", "n3")
        await stage.trains_on("n1", "n2", "n3")


async def test_regression_a_trainer_was_suspended_at_its_end_since_a_node_that_was_done_had_gone(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    async with open_stage("2-4") as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1", "n2")
        await stage.trains_on("n1", "n2")
        monkeypatch.setattr(FakeBackend, "finishing", [stage.pilot("n1")])
        stage.revoke("n2")
        await stage.trains_on("n1")
        stage.grant("n3")
        await stage.warm("n3")
        await asyncio.sleep(0.05)
        assert stage.backend.calls == [["n1", "n2"], ["n1"]]
        assert not stage.backend.suspended
        # It fails after all: now there have to be as many as ever.
        monkeypatch.setattr(FakeBackend, "finishing", [])
        stage.run.wake()
        await stage.trains_on("n1", "n3")
        assert stage.ended is None


async def test_no_more_nodes_are_used_than_the_trainer_may(open_stage: OpenStage) -> None:
    async with open_stage("1-2") as stage:
        stage.grant("n1", "n2", "n3")
        await stage.warm("n1", "n2", "n3")
        await stage.trains_on("n1", "n2")


async def test_newcomers_that_get_warm_one_after_the_other_join_together(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(trainers, "COALESCE_S", 1000.0)
    async with open_stage() as stage:
        stage.grant("n1", "n2", "n3")
        await stage.warm("n1", "n2", "n3")
        await stage.trains_on("n1", "n2", "n3")
        assert stage.backend.calls == [["n1", "n2", "n3"]]
        stage.grant("n4", "n5")
        await stage.warm("n4", "n5")
        await stage.trains_on("n1", "n2", "n3", "n4", "n5")
        assert len(stage.backend.calls) == 2


async def test_regression_nodes_that_joined_while_the_disk_was_full_threw_training_back_to_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(trainers, "STORE_RETRY_S", 0.02)
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1", "n2")
        await stage.trains_on("n1", "n2")
        stage.trainer._saves_together = True
        stage.run.store._saving.came("no space is left")
        stage.grant("n3", "n4")
        await stage.warm("n3", "n4")
        await asyncio.sleep(0.1)
        assert stage.backend.calls == [["n1", "n2"]]
        assert [line for line in stage.lines if says_message(line, "elastic.trainer.new_nodes_wait")] != []
        # One that goes takes the others along anyway.
        stage.revoke("n2")
        await stage.trains_on("n1", "n3", "n4")
        stage.grant("n5")
        await stage.warm("n5")
        await asyncio.sleep(0.05)
        assert len(stage.backend.calls) == 2
        stage.run.store._saving.went()
        await stage.trains_on("n1", "n3", "n4", "n5")


async def test_a_newcomer_does_not_wait_for_ever_for_one_that_is_slow(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(trainers, "COALESCE_S", 0.02)
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1")
        await stage.trains_on("n1")


async def test_a_leave_is_not_held_back_by_newcomers(monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage) -> None:
    monkeypatch.setattr(trainers, "COALESCE_S", 1000.0)
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1", "n2")
        await stage.trains_on("n1", "n2")
        stage.grant("n3", "n4")
        await stage.warm("n3")
        stage.revoke("n2")
        await stage.trains_on("n1")


# -- suspension ---


async def test_below_the_minimum_the_trainer_is_suspended_and_resumes_on_other_nodes(open_stage: OpenStage) -> None:
    async with open_stage("2-4") as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1", "n2")
        await stage.trains_on("n1", "n2")
        await stage.step("n1", 5, first=True)
        stage.revoke("n2")
        await until("suspended", lambda: stage.reports(SuspendReport))
        assert stage.backend.suspended == 1
        assert stage.pilot("n1").state == "ready"
        stage.grant("n3")
        await stage.warm("n3")
        await stage.trains_on("n1", "n3")
        await until("resumed", lambda: stage.reports(ResumeReport))


async def test_a_revoked_node_is_given_back_once_training_has_left_it(stage: Stage) -> None:
    stage.grant("n1", "n2")
    await stage.warm("n1", "n2")
    await stage.trains_on("n1", "n2")
    agent = stage.pilot("n1").agent
    assert agent
    stage.revoke("n1")
    await until("told to end", lambda: ops(agent)[-1] == "end")
    assert [pilot.node for pilot in stage.backend.members] == ["n2"]


async def test_a_pilot_leaves_in_order_before_its_time_limit(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(timers, "LIMIT_MARGIN_S", 3600.0)
    monkeypatch.setattr(timers, "BEAT_S", 0.01)
    async with open_stage() as stage:
        stage.grant("n1")
        agent = await stage.connect("n1")
        await until("told to end", lambda: ops(agent)[-1] == "end")


# -- Slurm's notice ---


async def test_slurms_notice_is_answered_at_once_and_told_with_its_time(stage: Stage) -> None:
    stage.grant("n1", "n2")
    await stage.warm("n1", "n2")
    await stage.worker("n1")
    await stage.worker("n2")
    agent = stage.pilot("n1").agent
    assert agent
    noticed_s = time.time()
    await stage.says(agent, {"op": "leaving", "at_s": noticed_s})
    await until("let go", lambda: ops(agent)[-1] == "go")
    [report] = stage.reports(LeaseReport, state="leaving")
    assert (report.id, report.at_s) == ("n1.1", noticed_s)
    assert ops(stage.pilot("n2").workers[0]) == []
    await stage.trains_on("n2")


@pytest.mark.parametrize("by_s", [-3600.0, 3600.0])
async def test_regression_a_nodes_wrong_clock_made_a_give_back_look_longer_or_shorter(
    stage: Stage, by_s: float
) -> None:
    began_s = time.time()
    stage.grant("n1")
    await stage.warm("n1")
    agent = stage.pilot("n1").agent
    assert agent
    await stage.says(agent, {"op": "beat"})
    await stage.says(agent, {"op": "leaving", "at_s": time.time() + by_s})
    [report] = stage.reports(LeaseReport, state="leaving")
    assert began_s - BEAT_S <= report.at_s <= time.time()


async def test_regression_the_agents_of_a_cancelled_job_were_taken_for_preempted_ones(stage: Stage) -> None:
    stage.grant("n1", "n2")
    await stage.warm("n1", "n2")
    agents = [pilot.agent for pilot in stage.trainer.pilot_manager.all if pilot.agent]
    stage.run.cancel()
    for agent in agents:
        await stage.says(agent, {"op": "leaving", "at_s": 1.0})
    await until("let go", lambda: all(ops(agent)[-1] == "go" for agent in agents))
    assert stage.reports(LeaseReport, state="leaving") == []
    assert [pilot.reason for pilot in stage.trainer.pilot_manager.all] == [wording("elastic.run.cancelled")] * 2
    assert stage.ended == (143, wording("elastic.run.cancelled"))


async def test_slurms_notice_after_training_is_complete_is_still_one(stage: Stage) -> None:
    stage.grant("n1")
    await stage.warm("n1")
    [pilot] = stage.trainer.pilot_manager.all
    assert pilot.agent
    stage.run.finish(0, "training is complete")
    await stage.says(pilot.agent, {"op": "leaving", "at_s": 1.0})
    assert [report.id for report in stage.reports(LeaseReport, state="leaving")] == ["n1.1"]


async def test_the_last_node_ships_the_state_before_it_is_let_go(stage: Stage) -> None:
    stage.grant("n1")
    await stage.warm("n1")
    worker = await stage.worker("n1")
    agent = stage.pilot("n1").agent
    assert agent
    await stage.says(agent, {"op": "leaving", "at_s": 1.0})
    await until("asked for its checkpoint", lambda: ops(worker) == ["ship"])
    assert "go" not in ops(agent)
    await stage.says(worker, {"op": "shipped", "step": 0})
    await until("let go", lambda: ops(agent)[-1] == "go")


# -- the end ---


async def test_the_first_end_counts(stage: Stage) -> None:
    stage.run.finish(0, "training is complete")
    stage.run.finish(143, "cancelled")
    assert stage.ended == (0, "training is complete")


async def test_training_that_ended_well_waits_for_the_state_that_is_on_its_way(stage: Stage) -> None:
    stage.grant("n1")
    await stage.warm("n1")
    await stage.worker("n1")
    stage.run.store.receiving = 1
    hearing = asyncio.ensure_future(stage.trainer._hear_farewells())
    await asyncio.sleep(0.1)
    assert not hearing.done()
    stage.run.store.receiving = 0
    await asyncio.wait_for(hearing, 30)


# -- connections ---


async def test_an_agent_of_no_present_lease_or_a_second_one_is_sent_away(stage: Stage) -> None:
    stage.grant("n1")
    await stage.connect("n1")
    for name in ("n1.1", "n9.9"):
        stranger = peer(role="agent", lease=name)
        assert not stage.connections.connected(stranger)
        assert ops(stranger) == ["end"]


async def test_a_worker_of_an_incarnation_before_is_turned_away(stage: Stage) -> None:
    stage.grant("n1")
    await stage.warm("n1")
    pilot = stage.pilot("n1")
    old, new = (peer(role="worker", lease=pilot.lease, incarnation=number, local_rank=0) for number in (0, 1))
    pilot.incarnation += 1
    assert not stage.connections.connected(old)
    assert stage.connections.connected(new)


async def test_an_agent_that_hangs_up_is_a_node_that_is_lost(stage: Stage) -> None:
    stage.grant("n1", "n2")
    await stage.warm("n1", "n2")
    await stage.trains_on("n1", "n2")
    agent = stage.pilot("n1").agent
    assert agent
    stage.connections.disconnected(agent)
    await stage.trains_on("n2")
    assert says_message(stage.lines, "elastic.connections.agent_gone", node="n1")


async def test_a_worker_that_does_not_answer_is_looked_at_by_its_agent_and_one_that_does_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(timers, "PING_S", 0.01)
    monkeypatch.setattr(timers, "BEAT_S", 0.01)
    monkeypatch.setattr(livenesses, "PING_S", 0.1)
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1", "n2")
        await stage.trains_on("n1", "n2")
        silent, alive = await stage.worker("n1"), await stage.worker("n2")
        agents = [stage.pilot(node).agent for node in ("n1", "n2")]
        assert agents[0]
        assert agents[1]
        await stage.step("n1", 1, first=True)

        async def answer() -> None:
            while True:
                await stage.says(alive, {"op": "pong"})
                await asyncio.sleep(0.01)

        answering = asyncio.create_task(answer())
        await until("looked at", lambda: "look" in ops(agents[0]))  # type: ignore[arg-type]
        answering.cancel()
        look = next(message for message in sent(agents[0]) if message["op"] == "look")
        assert (look["pid"], look["stepped"]) == (silent.hello["pid"], True)
        assert look["silent_s"] > 0.2
        assert "look" not in ops(agents[1])
        assert "kill" not in ops(agents[0]), "whether it is frozen is the node's to say"


async def test_a_node_whose_agent_answers_no_beat_is_lost_reported_and_given_back_though_nobody_hung_up(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(timers, "BEAT_S", 0.01)
    monkeypatch.setattr(livenesses, "DRIVER_LOST_S", 0.2)
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1", "n2")
        await stage.trains_on("n1", "n2")
        dead, alive = stage.pilot("n1"), stage.pilot("n2")
        assert alive.agent
        agents = dead.agent, alive.agent
        for agent in agents:
            assert agent
            await stage.says(agent, {"op": "node", "workers_per_node": 1})
        worker = await stage.worker("n1")

        async def answer() -> None:
            while True:
                await stage.says(agents[1], {"op": "beat"})
                await asyncio.sleep(0.01)

        answering = asyncio.create_task(answer())
        await stage.trains_on("n2")
        await until("its lease is over", lambda: stage.reports(LeaseReport, id="n1.1", state="ended"))
        answering.cancel()
        [crash] = stage.reports(CrashReport)
        assert crash.node == "n1"
        assert "job-n1.1" in stage.starter.cancelled
        assert agents[0]
        assert all(peer.writer.is_closing() for peer in (agents[0], worker))
        assert alive.state == "ready"


@pytest.mark.parametrize("hours", [1, -1])
async def test_regression_a_clock_that_was_set_ended_every_pilot_or_held_newcomers_back(
    monkeypatch: pytest.MonkeyPatch, hours: int, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(timers, "BEAT_S", 0.01)
    monkeypatch.setattr(trainers, "COALESCE_S", 0.05)
    really = time.time
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        await stage.warm("n1")
        monkeypatch.setattr(time, "time", lambda: really() + hours * 3600)
        # n2 is about to be warm, which holds n1 back for a moment only
        await stage.trains_on("n1")
        await stage.warm("n2")
        await stage.trains_on("n1", "n2")
        await asyncio.sleep(0.1)
        assert not any(pilot.expiring for pilot in stage.trainer.pilot_manager.all)
        assert [report.state for report in stage.reports(LeaseReport)] == ["placed", "placed", "ready", "ready"]
        assert stage.ended is None


async def test_what_workers_print_is_in_the_trainers_log_with_the_node_before_it(
    capsys: pytest.CaptureFixture[str], open_stage: OpenStage
) -> None:
    async with open_stage() as stage:
        stage.grant("n1")
        agent = await stage.connect("n1")
        await stage.says(agent, {"op": "out", "line": "loss 0.5"})
    assert "n1: loss 0.5\n" in capsys.readouterr().out


async def test_how_horovod_ends_a_removed_worker_alarms_nobody_but_the_same_words_of_a_kept_one_are_shown(
    capsys: pytest.CaptureFixture[str], open_stage: OpenStage
) -> None:
    words = "terminate called after throwing an instance of 'gloo::EnforceNotMet'"
    async with open_stage() as stage:
        stage.grant("n1", "n2")
        agents = [await stage.connect("n1"), await stage.connect("n2")]
        stage.pilot("n1").revoked = True
        for agent in agents:
            await stage.says(agent, {"op": "out", "line": words})
    assert capsys.readouterr().out == f"n2: {words}\n"


async def test_regression_the_log_of_a_cancelled_job_ended_with_how_its_last_workers_lost_the_others(
    capsys: pytest.CaptureFixture[str], stage: Stage
) -> None:
    stage.grant("n1")
    agent = await stage.connect("n1")
    await stage.says(agent, {"op": "out", "line": "loss 0.5"})
    stage.run.cancel()
    await stage.says(agent, {"op": "out", "line": "Traceback (most recent call last):"})
    assert stage.ended == (143, wording("elastic.run.cancelled"))
    assert capsys.readouterr().out == "n1: loss 0.5\n"


async def test_regression_a_trainer_that_was_over_began_anew_for_ever_where_its_end_met_what_was_waited_for(
    open_stage: OpenStage,
) -> None:
    """`asyncio.wait_for` of Python 3.10 and 3.11 may return in place of being cancelled."""
    calls: list[str] = []
    async with open_stage() as stage:

        async def set_members(_: Sequence[Pilot]) -> None:
            calls.append("begun")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        stage.backend.set_members = set_members  # type: ignore[method-assign]
        stage.grant("n1")
        await stage.warm("n1")
        await until("training is to begin", lambda: calls)
        stage.run.finish(3, "the script failed")
        assert stage.ended == (3, "the script failed")
    assert calls == ["begun"]
