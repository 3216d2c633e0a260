"""Leases in, pilots out: each lease is carried out once, and whatever becomes of it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bftd.protocol.registration import Held
from bftd.protocol.reports import CrashReport, LeaseReport
from elastic.driver.pilots import manager
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.pilots.manager import PilotManager
from tests.elastic.fakes import FakeDaemon, FakeStarter, lease, ops, peer, until
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "FAULT_SHOWN_S", 0.0)


class Owner:
    """The trainer, as far as a pilot manager asks for it."""

    def __init__(self) -> None:
        self.lost_nodes: list[str] = []
        self.vacated: list[str] = []
        self.saved = asyncio.Event()
        self.saved.set()
        self.lines: list[str] = []
        self.errors: list[BaseException] = []
        self.grows = False

    def log(self, text: str) -> None:
        self.lines.append(text)

    def wake(self) -> None:
        pass

    def lost(self, pilot: Pilot) -> None:
        self.lost_nodes.append(pilot.node)

    async def rescue(self, pilot: Pilot, others: Sequence[Pilot]) -> None:
        self.vacated.append(pilot.node)
        await self.saved.wait()

    def saving(self) -> bool:
        return self.grows

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)


class Stage:
    """A pilot manager between a fake Slurm and a fake daemon."""

    def __init__(self) -> None:
        self.owner, self.starter, self.daemon = Owner(), FakeStarter(), FakeDaemon()
        self.pilot_manager = PilotManager(self.owner, self.starter, self.daemon.report, library="torch")  # type: ignore[arg-type]

    def states(self, name: str) -> list[str]:
        return [report.state for report in self.daemon.of(LeaseReport, id=name)]

    async def placed(self, node: str) -> Pilot:
        self.pilot_manager.on_leases(
            [lease(other.node) for other in self.pilot_manager.pilots.values()] + [lease(node)]
        )
        pilot = self.pilot_manager.pilots[f"{node}.1"]
        await until("placed", lambda: pilot.state == "placed")
        return pilot


def never_back(stage: Stage) -> None:
    """Cancelling an allocation does not bring its srun back: the node is dead."""

    async def cancel(jobs: list[str]) -> None:
        stage.starter.cancelled += jobs

    stage.starter.cancel = cancel  # type: ignore[method-assign]


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.pilot_manager.close()
    assert stage.owner.errors == []


@pytest.fixture
def stage() -> AbstractAsyncContextManager[Stage]:
    return staged()


async def test_a_lease_is_placed_once_however_often_it_is_listed(stage: Stage) -> None:
    for _ in range(3):
        stage.pilot_manager.on_leases([lease("n1")])
    await until("placed", lambda: stage.states("n1.1") == ["placed"])
    assert stage.starter.placed == ["n1.1"]
    assert stage.pilot_manager.held() == (Held("n1.1", "n1", "job-n1.1"),)


async def test_a_node_that_slurm_refuses_is_reported_refused_and_the_lease_is_over(stage: Stage) -> None:
    stage.starter.refuse["n1"] = "a regular job wants it"
    stage.pilot_manager.on_leases([lease("n1")])
    [report] = await until("refused", lambda: stage.daemon.of(LeaseReport, state="refused"))
    assert report.reason == "a regular job wants it"
    assert (stage.pilot_manager.pilots, stage.owner.lost_nodes, stage.pilot_manager.held()) == ({}, [], ())


async def test_a_lease_that_has_ended_is_never_carried_out_again(stage: Stage) -> None:
    pilot = await stage.placed("n1")
    assert pilot.job_id
    stage.starter.end(pilot.job_id)
    await until("ended", lambda: stage.states("n1.1") == ["placed", "ended"])
    stage.pilot_manager.on_leases([lease("n1")])
    assert stage.pilot_manager.pilots == {}
    assert stage.states("n1.1") == ["placed", "ended", "ended"]
    stage.pilot_manager.on_leases([lease("n1", 2)])
    await until("the node's next lease is", lambda: stage.states("n1.2") == ["placed"])


async def test_regression_a_daemon_that_had_lost_its_last_steps_had_an_ended_lease_carried_out_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_ENDED_MOST", 5)
    for number in range(1, 20):
        stage.pilot_manager.on_leases([lease("n1", number)])
        pilot = stage.pilot_manager.pilots[f"n1.{number}"]
        await until("placed", lambda pilot=pilot: pilot.state == "placed")
        assert pilot.job_id
        stage.starter.end(pilot.job_id)
        await until("ended", lambda: not stage.pilot_manager.pilots)
        stage.pilot_manager.on_leases([])
        stage.pilot_manager.on_leases([lease("n1", number)])
        assert stage.pilot_manager.pilots == {}
    assert list(stage.pilot_manager._ended) == [f"n1.{number}" for number in range(15, 20)]
    assert stage.starter.known == [], "nor does Slurm's side remember its job"


async def test_an_allocation_whose_agent_ended_is_cancelled_so_that_it_holds_no_node(stage: Stage) -> None:
    pilot = await stage.placed("n1")
    assert pilot.job_id
    stage.starter.end(pilot.job_id)
    await until("ended", lambda: not stage.pilot_manager.pilots)
    assert stage.starter.cancelled == [pilot.job_id]
    assert stage.owner.lost_nodes == ["n1"]


async def test_a_lease_that_is_revoked_before_it_began_is_reported_ended_and_not_placed(stage: Stage) -> None:
    stage.pilot_manager.on_leases([lease("n1", state="revoked")])
    assert stage.states("n1.1") == ["ended"]
    assert stage.starter.placed == []


async def test_a_lease_revoked_while_slurm_places_it_gives_the_node_back_without_an_agent(stage: Stage) -> None:
    stage.starter.hold.clear()
    stage.pilot_manager.on_leases([lease("n1")])
    await until("asked", lambda: stage.starter.placed)
    stage.pilot_manager.on_leases([lease("n1", state="revoked")])
    stage.starter.hold.set()
    await until("ended", lambda: stage.states("n1.1") == ["placed", "ended"])
    assert stage.starter.cancelled == ["job-n1.1"]


async def test_a_lease_the_daemon_no_longer_lists_is_given_back(stage: Stage) -> None:
    pilot = await stage.placed("n1")
    stage.pilot_manager.on_leases([])
    assert pilot.revoked
    assert not pilot.vacate


async def test_a_node_that_a_regular_job_needs_is_left_at_once_even_if_it_was_leaving_gracefully(stage: Stage) -> None:
    pilot = await stage.placed("n1")
    stage.owner.saved.clear()
    stage.pilot_manager.on_leases([lease("n1", state="revoked")])
    await asyncio.sleep(0)
    assert stage.owner.vacated == []
    assert not pilot.leaving
    stage.pilot_manager.on_leases([lease("n1", state="revoked", vacate=True)])
    assert pilot.leaving
    stage.pilot_manager.on_leases([lease("n1", state="revoked", vacate=True)])
    stage.pilot_manager.on_leases([lease("n1", state="revoked")])
    await asyncio.sleep(0)
    assert stage.owner.vacated == ["n1"]
    assert pilot.vacate
    assert stage.starter.cancelled == [], "the last copy of the checkpoint comes first"
    stage.owner.saved.set()
    await until("given back", lambda: "job-n1.1" in stage.starter.cancelled)


async def test_a_graceful_leave_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "GRACEFUL_LEAVE_S", 0.01)
    async with staged() as stage:
        pilot = await stage.placed("n1")
        pilot.agent = agent = peer(role="agent")
        stage.pilot_manager.on_leases([lease("n1", state="revoked")])
        await until("told to end", lambda: ops(agent) == ["end"])
        assert "did not leave" in stage.owner.lines[0]


async def test_a_pilot_has_longer_for_its_step_where_nobody_needs_the_node_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "GRACEFUL_LEAVE_S", 0.01)
    async with staged() as stage:
        patient, other = await stage.placed("n1"), await stage.placed("n2")
        patient.agent, other.agent = agent, gone = peer(role="agent"), peer(role="agent")
        first = replace(lease("n1", state="revoked"), leave_in_s=30.0)
        stage.pilot_manager.on_leases([first, replace(lease("n2", state="revoked"), leave_in_s=0.0)])
        await until("told to end", lambda: ops(gone) == ["end"])
        assert ops(agent) == []
        stage.pilot_manager.on_leases([lease("n1", state="revoked", vacate=True)])
        assert patient.leaving, "the daemon may want it sooner"


async def test_a_pilot_without_an_agent_is_given_back_and_told_as_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "CONNECT_S", 0.01)
    async with staged() as stage:
        await stage.placed("n1")
        await until("ended", lambda: stage.states("n1.1") == ["placed", "ended"])
        [crash] = stage.daemon.of(CrashReport)
        assert (crash.node, stage.starter.cancelled[0]) == ("n1", "job-n1.1")
        assert says(crash.text, "elastic.pilot_manager.no_agent_came", node="n1")


async def test_a_pilot_that_does_not_get_warm_is_given_back_and_one_that_does_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "CONNECT_S", 0.05)
    monkeypatch.setattr(manager, "WARM_S", 0.05)
    async with staged() as stage:
        warm = await stage.placed("n1")
        warm.agent, warm.state = peer(role="agent"), "ready"  # before time passes, which others' work may take
        cold = await stage.placed("n2")
        cold.agent = peer(role="agent")
        await until("given back", lambda: stage.daemon.of(CrashReport))
        assert [report.node for report in stage.daemon.of(CrashReport)] == ["n2"]
        await until("told to end", lambda: ops(cold.agent) == ["end"])  # type: ignore[arg-type]
        assert says(stage.owner.lines[0], "elastic.pilot_manager.no_import", node="n2", library="torch")
        stage.starter.end("job-n2.1")
        await until("ended", lambda: list(stage.pilot_manager.pilots) == ["n1.1"])
        assert ops(warm.agent) == []


async def test_regression_an_agent_that_came_before_slurms_answer_was_given_back_as_one_that_never_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "CONNECT_S", 0.01)
    async with staged() as stage:
        stage.starter.hold.clear()
        stage.pilot_manager.on_leases([lease("n1")])
        await until("asked", lambda: stage.starter.placed)
        # In sbatch mode Slurm starts it, and may take longer to answer.
        pilot = stage.pilot_manager.pilots["n1.1"]
        pilot.agent = peer(role="agent")
        assert pilot.warming
        stage.starter.hold.set()
        await until("placed", lambda: pilot.state == "placed")
        await asyncio.sleep(0.1)
        assert stage.daemon.of(CrashReport) == []
        assert stage.starter.cancelled == []
        assert pilot.job_id
        stage.starter.end(pilot.job_id)


async def test_regression_an_agent_that_was_ready_before_slurms_answer_left_training_when_the_answer_came(
    stage: Stage,
) -> None:
    stage.starter.hold.clear()
    stage.pilot_manager.on_leases([lease("n1")])
    await until("asked", lambda: stage.starter.placed)
    pilot = stage.pilot_manager.pilots["n1.1"]
    pilot.agent = peer(role="agent")
    stage.pilot_manager.ready(pilot)
    assert (stage.states("n1.1"), pilot.wanted) == ([], False), "the guard may still withdraw it"
    stage.starter.hold.set()
    await until("ready", lambda: stage.states("n1.1") == ["placed", "ready"])
    assert (pilot.state, pilot.wanted) == ("ready", True)
    assert pilot.ready_s > 0
    assert [report.job_id for report in stage.daemon.of(LeaseReport)] == ["job-n1.1"] * 2
    assert pilot.job_id
    stage.starter.end(pilot.job_id)


async def test_what_an_agent_says_before_slurms_answer_is_told_after_the_placing_in_its_order(stage: Stage) -> None:
    stage.starter.hold.clear()
    stage.pilot_manager.on_leases([lease("n1")])
    await until("asked", lambda: stage.starter.placed)
    pilot = stage.pilot_manager.pilots["n1.1"]
    pilot.agent = peer(role="agent")
    stage.pilot_manager.ready(pilot)
    stage.pilot_manager.report_state(pilot, "leaving", at_s=12.0)
    stage.pilot_manager.leave_at_once(pilot)
    pilot.agent = None  # and it hangs up
    stage.starter.hold.set()
    await until("told", lambda: stage.states("n1.1") == ["placed", "ready", "leaving"])
    assert not pilot.wanted
    [leaving] = stage.daemon.of(LeaseReport, state="leaving")
    assert leaving.at_s == 12.0
    stage.starter.end("job-n1.1")
    await until("ended", lambda: not stage.pilot_manager.pilots)
    assert stage.pilot_manager._early == {}


async def test_a_pilot_withdrawn_after_its_agent_came_is_told_refused_alone_and_its_agent_is_ended(
    stage: Stage,
) -> None:
    stage.starter.hold.clear()
    stage.starter.refuse["n1"] = "withdrawn: " + wording("slurm_plugin.guard.planned", id=7, node="n1", max=1)
    stage.pilot_manager.on_leases([lease("n1")])
    await until("asked", lambda: stage.starter.placed)
    pilot = stage.pilot_manager.pilots["n1.1"]
    pilot.agent = agent = peer(role="agent")
    stage.pilot_manager.ready(pilot)
    stage.starter.hold.set()
    await until("refused", lambda: not stage.pilot_manager.pilots)
    assert stage.states("n1.1") == ["refused"]
    assert ops(agent) == ["end"]
    assert stage.owner.lost_nodes == ["n1"]
    assert stage.pilot_manager._early == {}


async def test_regression_a_node_that_could_not_reach_the_driver_was_a_bare_exit_code_and_nobodys_fault(
    stage: Stage,
) -> None:
    why = "node n1 cannot reach the driver at 10.0.0.1:5 (connection refused); set BFT_DRIVER_ADDRESS to ..."
    stage.starter.complaints["n1"] = why
    await stage.placed("n1")
    stage.starter.end("job-n1.1")
    await until("ended", lambda: not stage.pilot_manager.pilots)
    [crash] = stage.daemon.of(CrashReport)
    assert (crash.node, crash.text) == ("n1", why)
    [ended] = stage.daemon.of(LeaseReport, state="ended")
    assert ended.reason == why
    assert stage.owner.lines == [f"{why}; n1 is given back"]


async def test_regression_a_node_whose_agent_failed_at_once_counted_as_refused_and_made_its_trainer_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon believes nothing of a pilot that Slurm has not shown it."""
    monkeypatch.setattr(manager, "FAULT_SHOWN_S", 0.2)
    async with staged() as stage:
        stage.starter.complaints["n1"] = "n1 cannot run /opt/bftd/bin/python"
        await stage.placed("n1")
        stage.starter.end("job-n1.1")
        await asyncio.sleep(0.05)
        assert stage.daemon.of(CrashReport) == []
        assert stage.starter.cancelled == []
        await until("ended", lambda: not stage.pilot_manager.pilots)
        assert [report.node for report in stage.daemon.of(CrashReport)] == ["n1"]
        assert stage.states("n1.1") == ["placed", "ended"]


async def test_a_node_whose_agent_failed_is_held_no_longer_once_the_daemon_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "FAULT_SHOWN_S", 3600.0)
    async with staged() as stage:
        stage.starter.complaints["n1"] = "n1 cannot run /opt/bftd/bin/python"
        await stage.placed("n1")
        stage.starter.end("job-n1.1")
        await asyncio.sleep(0.05)
        stage.pilot_manager.on_leases([lease("n1", state="revoked", vacate=True)])
        await until("ended", lambda: not stage.pilot_manager.pilots)


async def test_regression_a_dead_nodes_srun_held_its_lease_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "_FAREWELL_S", 0.01)
    async with staged() as stage:
        pilot = await stage.placed("n1")
        pilot.agent, pilot.workers[0] = agent, worker = peer(role="agent"), peer(role="worker")
        never_back(stage)
        stage.pilot_manager.abandon(pilot, "n1 has not answered for 5 s")
        stage.pilot_manager.abandon(pilot, "nor does it later")
        await until("ended", lambda: stage.states("n1.1") == ["placed", "ended"])
        [crash] = stage.daemon.of(CrashReport)
        assert (crash.node, crash.text) == ("n1", wording("elastic.liveness.node_silent", node="n1", DRIVER_LOST_S=5))
        [ended] = stage.daemon.of(LeaseReport, state="ended")
        assert ended.reason == crash.text
        assert stage.starter.cancelled == ["job-n1.1"]
        assert stage.owner.lost_nodes[0] == "n1"
        assert stage.owner.lines == [
            wording(
                "elastic.pilot_manager.given_back_because",
                why=wording("elastic.liveness.node_silent", node="n1", DRIVER_LOST_S=5),
            )
        ]
        assert agent.writer.is_closing()
        assert worker.writer.is_closing()


async def test_regression_an_srun_that_does_not_come_back_after_its_agent_has_held_the_lease_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "GONE_S", 0.05)
    async with staged() as stage:
        pilot = await stage.placed("n1")
        never_back(stage)
        pilot.over.set()  # its connection ended
        await until("ended", lambda: stage.states("n1.1") == ["placed", "ended"])
        assert stage.starter.cancelled == ["job-n1.1"]


async def test_regression_an_srun_that_does_not_come_back_kept_a_driver_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "_FAREWELL_S", 0.01)
    async with staged() as stage:
        await stage.placed("n1")
        never_back(stage)
        await stage.pilot_manager.close()
        assert stage.states("n1.1") == ["placed", "ended"]


async def test_an_srun_that_fails_in_a_way_that_nobody_expects_is_told_and_not_swallowed(stage: Stage) -> None:
    async def broken(_: Pilot) -> None:
        raise KeyError("a fault")

    stage.starter.run_agent = broken  # type: ignore[method-assign]
    stage.pilot_manager.on_leases([lease("n1")])
    await until("told", lambda: stage.owner.errors)
    stage.owner.errors.clear()


async def test_at_the_end_an_agent_may_tidy_up_before_its_allocation_is_cancelled(stage: Stage) -> None:
    pilot = await stage.placed("n1")
    pilot.agent = agent = peer(role="agent")
    closing = asyncio.create_task(stage.pilot_manager.close())
    await until("told to end", lambda: ops(agent) == ["end"])
    assert stage.starter.cancelled == []
    assert pilot.job_id
    stage.starter.end(pilot.job_id)
    await closing


async def test_regression_a_step_that_its_srun_was_ending_got_a_second_order_and_slurm_drained_its_node(
    stage: Stage,
) -> None:
    """The driver's own job is cancelled a moment after its pilots have started: no agent has connected yet."""
    pilot = await stage.placed("n1")
    closing = asyncio.create_task(stage.pilot_manager.close())
    await until("closing", pilot.over.is_set)
    await asyncio.sleep(0.05)
    assert stage.starter.cancelled == []
    stage.starter.end("job-n1.1")
    await closing
    assert "job-n1.1" in stage.starter.cancelled


async def test_closing_ends_every_pilot_and_no_lease_is_carried_out_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "_FAREWELL_S", 0.01)
    async with staged() as stage:
        await stage.placed("n1")
        pilot = await stage.placed("n2")
        pilot.agent = agent = peer(role="agent")
        await stage.pilot_manager.close()
        assert stage.pilot_manager.pilots == {}
        assert {"job-n1.1", "job-n2.1"} <= set(stage.starter.cancelled)
        assert stage.starter.closed, "what Slurm has not taken is tried a last time"
        assert ops(agent) == ["end"]
        stage.pilot_manager.on_leases([lease("n3")])
        assert stage.starter.placed == ["n1.1", "n2.1"]
        assert stage.states("n3.1") == ["ended"]


async def test_closing_does_not_wait_for_ever_for_an_agent_that_slurm_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "_ENDED_S", 0.01)
    async with staged() as stage:

        async def away(jobs: list[str]) -> None:
            pass

        await stage.placed("n1")
        stage.starter.cancel = away  # type: ignore[method-assign]
        await asyncio.wait_for(stage.pilot_manager.close(), 10)
        assert stage.starter.closed


async def test_closing_while_slurm_places_a_pilot_leaves_no_allocation(stage: Stage) -> None:
    stage.starter.hold.clear()
    stage.pilot_manager.on_leases([lease("n1")])
    await until("asked", lambda: stage.starter.placed)
    closing = asyncio.create_task(stage.pilot_manager.close())
    await asyncio.sleep(0)
    stage.starter.hold.set()
    await closing
    assert stage.starter.cancelled == ["job-n1.1"]


async def test_a_fault_of_the_drivers_own_is_told_and_not_swallowed(stage: Stage) -> None:
    async def broken(_: Any) -> str | None:
        raise KeyError("a fault")

    stage.starter.place = broken  # type: ignore[method-assign, assignment]
    stage.pilot_manager.on_leases([lease("n1")])
    await until("told", lambda: stage.owner.errors)
    stage.owner.errors.clear()


async def test_a_pilot_is_asked_for_in_its_leases_partition(stage: Stage) -> None:
    given = replace(lease("n1"), partition="elastic-cpu", gres="gpu:2")
    stage.pilot_manager.on_leases([given])
    await until("placed", lambda: stage.states("n1.1") == ["placed"])
    pilot = stage.pilot_manager.pilots["n1.1"]
    assert (pilot.partition, pilot.gres) == ("elastic-cpu", "gpu:2")


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
async def test_regression_one_srun_that_could_not_be_started_ended_the_trainer(error: Exception, stage: Stage) -> None:
    run_agent = stage.starter.run_agent

    async def short(pilot: Pilot) -> None:
        if pilot.node == "n2":
            raise error
        await run_agent(pilot)

    stage.starter.run_agent = short  # type: ignore[method-assign]
    stage.pilot_manager.on_leases([lease("n1"), lease("n2")])
    await until("n2 is over", lambda: stage.states("n2.1") == ["placed", "ended"])
    assert "job-n2.1" in stage.starter.cancelled, "its allocation is not left behind"
    [report] = stage.daemon.of(LeaseReport, id="n2.1", state="ended")
    assert report.reason == wording("elastic.pilot_manager.not_started", error=error)
    assert stage.owner.lines == [wording("elastic.pilot_manager.given_back", node="n2", reason=report.reason)]
    assert stage.states("n1.1") == ["placed"]
    assert stage.owner.errors == []


@pytest.mark.parametrize("grows", [False, True])
async def test_a_node_that_leaves_gracefully_has_longer_as_long_as_a_checkpoint_grows_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    monkeypatch.setattr(manager, "GRACEFUL_LEAVE_S", 0.02)
    monkeypatch.setattr(manager, "SAVING_LEAVE_S", 3600.0)
    monkeypatch.setattr(manager, "_LOOK_S", 0.01)
    stage = Stage()
    pilot = await stage.placed("n1")
    stage.owner.grows = grows
    stage.pilot_manager.on_leases([lease("n1", state="revoked")])
    await asyncio.sleep(0.15)
    assert pilot.over.is_set() != grows
    monkeypatch.setattr(manager, "SAVING_LEAVE_S", 0.0)
    await until("it is given back", pilot.over.is_set)
    await until("it has ended", lambda: stage.states("n1.1")[-1] == "ended")
