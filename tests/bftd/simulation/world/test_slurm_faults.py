"""What the faults of the simulated Slurm, of nodes and of stopped processes really do, and that trainers end well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

import pytest

from bftd.pool.backfill.model import Component
from bftd.simulation.slurm.model import SimulatedJob
from bftd.simulation.world import world
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.commands import SimulatedClient
from bftd.simulation.world.faults.slurm_faults import SLURM_KINDS, mangled
from bftd.simulation.world.machine.loop import BEGIN_S, SimulatedLoop, simulated
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.slurmctld import PilotJob
from bftd.simulation.world.world import WorldSettings
from slurm_plugin.errors import NoAnswer, SnapshotError
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.read.types import Snapshot
from slurm_plugin.submission.submission import Leftover, PilotLauncher, PilotRequest, Placed, Refused

pytestmark = pytest.mark.slow

T = TypeVar("T")


@dataclass
class Site:
    """A cluster of three nodes, and one user's commands."""

    loop: SimulatedLoop
    cluster: SimulatedCluster
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = SimulatedClient(self.loop, self.cluster, "alice")
        self.shell = Process("shell", "login")

    async def call(self, work: Callable[..., T], *arguments: object) -> T:
        return await self.shell.run(self.loop.run_in_executor, None, work, *arguments)

    async def look(self) -> Snapshot:
        return await self.call(self.client.snapshot)

    async def place(self, node: str) -> Placed | Refused:
        launcher = PilotLauncher(self.client, Rules(0.0, self.loop.wall(), 0.0), clock=self.loop.wall)
        return await self.call(launcher.place, pilot_on(node))

    async def serve(self, job_id: str) -> asyncio.Task[bool]:
        """Run an agent that goes at Slurm's notice."""
        step = asyncio.ensure_future(self.cluster.step(job_id, _agent))
        await asyncio.sleep(2.0)
        return step


async def _agent(process: Process, pilot: PilotJob) -> None:
    over = asyncio.Event()
    process.at_sigterm = over.set
    await over.wait()


def pilot_on(node: str) -> PilotRequest:
    return PilotRequest(node, "elastic", 600.0, "bft-pilot", "bft 9 n1.1")


def on_a_site(act: Callable[[Site], Awaitable[None]], *jobs: SimulatedJob) -> None:
    loop = SimulatedLoop(Random(1))
    with simulated(loop):
        log: list[str] = []
        site = Site(loop, SimulatedCluster(loop, 3, jobs, log.append), log)
        loop.run_until_complete(act(site))  # type: ignore[arg-type]
        loop.shut()


def job(number: int, at_s: float, nodes: int, run_s: float = 50.0) -> SimulatedJob:
    return SimulatedJob(number, BEGIN_S + at_s, run_s, 600.0, Component(7, nodes))


def test_answers_are_text_that_the_real_parsers_read() -> None:
    async def act(site: Site) -> None:
        await asyncio.sleep(20.0)
        assert isinstance(await site.place("n3"), Placed)
        snapshot = await site.look()
        assert [(one.id, one.state, one.nodes, one.node_count) for one in snapshot.jobs] == [
            ("1", "RUNNING", ("n1", "n2"), 2),
            ("2", "PENDING", (), 3),
            ("5000001", "RUNNING", ("n3",), 1),
        ]
        assert snapshot.jobs[2].comment == "bft 9 n1.1"
        assert {name: node.state for name, node in snapshot.nodes.items() if name != "login1"} == {
            "n1": "ALLOCATED",
            "n2": "ALLOCATED",
            "n3": "ALLOCATED",
        }
        for _ in range(60):
            await asyncio.sleep(1.0)
            snapshot = await site.look()
        assert set(snapshot.partitions) == {"batch", "elastic", "service"}
        assert snapshot.scheduler.read
        assert snapshot.scheduler.cycled_s is not None

    on_a_site(act, job(1, 1.0, 2, 500.0), job(2, 10.0, 3))


def test_others_act_between_a_command_and_its_answer() -> None:
    async def act(site: Site) -> None:
        site.cluster.late_s = 5.0
        placing = asyncio.ensure_future(site.place("n1"))
        while not site.cluster.pilots:
            await asyncio.sleep(0.0001)
        site.cluster.cancel("5000001")
        while site.cluster.pilots:
            await asyncio.sleep(0.0001)
        assert not placing.done()
        await placing

    on_a_site(act)


def test_a_frozen_slurmctld_carries_out_later_what_nobody_waits_for_any_more() -> None:
    async def act(site: Site) -> None:
        site.cluster.halt(refuses=False)
        refused = await site.place("n1")
        assert isinstance(refused, Refused)
        with pytest.raises(SnapshotError):
            await site.look()
        await asyncio.sleep(100.0)
        assert not site.cluster.regular_nodes()
        site.cluster.come_back()
        await asyncio.sleep(5.0)
        assert len(site.cluster.regular_nodes()) == 2

    on_a_site(act, job(1, 30.0, 2))


def test_what_ends_while_slurmctld_is_frozen_is_learnt_afterwards() -> None:
    async def act(site: Site) -> None:
        placed = await site.place("n1")
        assert isinstance(placed, Placed)
        await site.serve(placed.job_id)
        await asyncio.sleep(20.0)
        site.cluster.halt(refuses=False)
        site.cluster.kill_step(placed.job_id)
        await asyncio.sleep(200.0)
        assert set(site.cluster.regular_nodes()) == {"n2", "n3"}
        assert site.cluster.pilots
        site.cluster.come_back()
        await asyncio.sleep(5.0)
        assert not site.cluster.regular_nodes()
        await site.call(site.client.cancel, [placed.job_id])
        await asyncio.sleep(1.0)
        assert not site.cluster.pilots

    on_a_site(act, job(1, 10.0, 2))


def test_a_restarted_slurmctld_knows_jobs_but_no_plans_and_hears_of_its_nodes_later() -> None:
    async def act(site: Site) -> None:
        await asyncio.sleep(60.0)
        assert (await site.look()).jobs[1].start_s is not None
        site.cluster.halt(refuses=True)
        with pytest.raises(SnapshotError):
            await site.look()
        site.cluster.start_again()
        snapshot = await site.look()
        assert {node.state for name, node in snapshot.nodes.items() if name != "login1"} == {"UNKNOWN"}
        assert [one.state for one in snapshot.jobs] == ["RUNNING", "PENDING"]
        assert snapshot.jobs[1].start_s is None
        await asyncio.sleep(110.0)
        states = [(await site.look()).nodes[name].state for name in site.cluster.nodes]
        assert "UNKNOWN" not in states

    on_a_site(act, job(1, 1.0, 2, 500.0), job(2, 10.0, 3))


def test_a_backup_forgets_the_last_seconds_and_slurmd_ends_what_it_does_not_know() -> None:
    async def act(site: Site) -> None:
        await asyncio.sleep(30.0)
        placed = await site.place("n3")
        assert isinstance(placed, Placed)
        step = await site.serve(placed.job_id)
        site.cluster.halt(refuses=True)
        await asyncio.sleep(3.0)
        site.cluster.start_again(lost_s=10.0)
        assert [one.id for one in (await site.look()).jobs] == ["1"]
        await asyncio.wait_for(step, 120.0)

    on_a_site(act, job(1, 1.0, 2, 500.0))


def test_a_start_that_a_backup_does_not_know_is_made_again() -> None:
    async def act(site: Site) -> None:
        while not site.cluster.regular_nodes():
            await asyncio.sleep(0.1)
        site.cluster.halt(refuses=True)
        site.cluster.start_again(lost_s=10.0)
        assert not site.cluster.regular_nodes()
        await asyncio.sleep(200.0)
        assert set(site.cluster.regular_nodes()) == {"n1", "n2", "n3"}

    on_a_site(act, job(1, 1.0, 3, 500.0))


def test_a_late_slurmctld_has_done_what_it_did_not_answer_for() -> None:
    async def act(site: Site) -> None:
        site.cluster.late_s = 1e9
        with pytest.raises(NoAnswer):
            await site.call(site.client.run, "salloc", *["--nodelist=n1", "--job-name=j", "--comment=c", "--time=9"])
        assert list(site.cluster.pilots) == ["5000001"]
        with pytest.raises(NoAnswer):
            await site.call(site.client.cancel, ["5000001"])
        await asyncio.sleep(1.0)
        assert not site.cluster.pilots

    on_a_site(act)


def test_a_leftover_of_a_late_answer_is_found_by_its_comment() -> None:
    async def act(site: Site) -> None:
        site.cluster.late_s = 1e9
        refused = await site.place("n1")
        assert isinstance(refused, Refused)  # the queue could not be read
        site.cluster.late_s = 0.0
        site.cluster.allocate("n1", "alice", "bft-pilot", pilot_on("n1").comment, 600.0)
        launcher = PilotLauncher(site.client, Rules(0.0, 0.0, 0.0))
        await site.call(launcher.clear, Leftover(pilot_on("n1")))
        await asyncio.sleep(1.0)
        assert not site.cluster.pilots

    on_a_site(act)


def test_a_mangled_answer_shows_no_node_idle_that_has_a_job() -> None:
    """Half of the jobs may be missing: nodes are a second answer, and say that they are busy."""

    async def act(site: Site) -> None:
        await asyncio.sleep(20.0)
        await site.look()
        random, read, refused = Random(2), 0, 0
        site.cluster.mangle = lambda text: mangled(text, random)
        for _ in range(200):
            try:
                snapshot = await site.look()
            except SnapshotError:
                refused += 1
                continue
            read += 1
            shown = [node.state for name, node in snapshot.nodes.items() if name in ("n1", "n2")]
            assert "IDLE" not in shown
        assert read
        assert refused > read

    on_a_site(act, job(1, 1.0, 2, 5000.0))


def test_nodes_show_what_they_are_like_and_take_no_pilot_then() -> None:
    async def act(site: Site) -> None:
        for changes, state, flag in (
            ({"drained": "new memory"}, "IDLE", "DRAIN"),
            ({"noticed": True}, "IDLE", "NOT_RESPONDING"),
            ({"down": True}, "DOWN", ""),
            ({"unheard": True}, "UNKNOWN", ""),
        ):
            before = {name: getattr(site.cluster.conditions["n1"], name) for name in changes}
            site.cluster.set_condition("n1", **changes)
            node = (await site.look()).nodes["n1"]
            assert (node.state, flag in node.flags or not flag) == (state, True)
            assert isinstance(await site.place("n1"), Refused)
            site.cluster.set_condition("n1", **before)
        site.cluster.set_condition("n1", held=True)
        assert (await site.look()).nodes["n1"].state == "IDLE"
        assert isinstance(await site.place("n1"), Refused)
        site.cluster.set_condition("n1", held=False, outsider=True)
        assert "elastic" not in (await site.look()).nodes["n1"].partitions
        assert isinstance(await site.place("n1"), Refused)
        site.cluster.set_condition("n1", outsider=False)
        assert isinstance(await site.place("n1"), Placed)

    on_a_site(act)


def test_a_node_is_completing_for_as_long_as_its_epilog_takes() -> None:
    async def act(site: Site) -> None:
        placed = await site.place("n1")
        assert isinstance(placed, Placed)
        site.cluster.set_condition("n1", epilog_s=100.0)
        await site.call(site.client.cancel, [placed.job_id])
        await asyncio.sleep(50.0)
        assert [one.state for one in (await site.look()).jobs] == ["COMPLETING"]
        assert isinstance(await site.place("n1"), Refused)
        await asyncio.sleep(60.0)
        assert isinstance(await site.place("n1"), Placed)

    on_a_site(act)


def test_a_silent_node_keeps_its_processes_until_it_is_heard_again() -> None:
    async def act(site: Site) -> None:
        placed = await site.place("n1")
        assert isinstance(placed, Placed)
        step = await site.serve(placed.job_id)
        site.cluster.set_condition("n1", silent=True, noticed=True)
        await site.call(site.client.cancel, [placed.job_id], "KILL")
        await asyncio.sleep(60.0)
        assert site.cluster.has_step(placed.job_id)
        site.cluster.fail_node("n1")
        assert not (await site.look()).jobs
        assert not step.done()
        site.cluster.return_node("n1")
        assert await step
        await asyncio.sleep(1.0)
        assert isinstance(await site.place("n1"), Placed)

    on_a_site(act)


def test_jobs_of_a_node_that_is_down_wait_again() -> None:
    async def act(site: Site) -> None:
        await asyncio.sleep(20.0)
        assert set(site.cluster.regular_nodes()) == {"n1", "n2", "n3"}
        site.cluster.fail_node("n1")
        assert not site.cluster.regular_nodes()
        await asyncio.sleep(150.0)
        site.cluster.return_node("n1")
        await asyncio.sleep(100.0)
        assert set(site.cluster.regular_nodes()) == {"n1", "n2", "n3"}
        assert site.cluster.requeue_one(Random(1)) == "1"
        assert not site.cluster.regular_nodes()

    on_a_site(act, job(1, 1.0, 3, 5000.0))


def test_a_stopped_process_sees_all_that_has_come_late_and_a_cancelled_timer_never() -> None:
    loop, seen = SimulatedLoop(Random(1)), list[str]()
    process = Process("p", "n1")

    async def work() -> None:
        running = asyncio.get_running_loop()
        running.call_later(1.0, lambda: (seen.append("a"), late.cancel()))
        late = running.call_later(2.0, seen.append, "b")
        running.call_later(3.0, seen.append, "c")
        await asyncio.sleep(10.0)
        seen.append(f"end at {running.time() - begun_s:g}")

    async def main() -> None:
        task = process.start(work)
        await asyncio.sleep(0.5)
        process.stop()
        await asyncio.sleep(4.0)
        assert seen == []
        process.go_on()
        await task

    with simulated(loop):
        begun_s = loop.time()
        loop.run_until_complete(main())
        loop.shut()
    assert seen == ["a", "c", "end at 10"]


def test_a_process_that_hangs_ends_only_when_it_is_let_go() -> None:
    loop, seen = SimulatedLoop(Random(1)), list[str]()
    process = Process("p", "n1")

    async def main() -> None:
        process.run(loop.call_later, 1.0, seen.append, "late")
        process.stop(clings=True)
        process.kill()
        await asyncio.sleep(5.0)
        assert not process.dead
        process.go_on()
        assert process.dead
        await asyncio.sleep(5.0)

    with simulated(loop):
        loop.run_until_complete(main())
        loop.shut()
    assert seen == []


def test_a_pilot_is_not_over_while_its_worker_hangs() -> None:
    async def act(site: Site) -> None:
        placed = await site.place("n1")
        assert isinstance(placed, Placed)
        await site.serve(placed.job_id)
        worker = site.cluster.pilots[placed.job_id].worker = Process("worker", "n1")
        worker.stop(clings=True)
        worker.kill()
        await site.call(site.client.cancel, [placed.job_id], "KILL")
        await asyncio.sleep(30.0)
        assert [one.state for one in (await site.look()).jobs] == ["COMPLETING"]
        worker.go_on()
        await asyncio.sleep(2.0)
        assert not site.cluster.pilots

    on_a_site(act)


@pytest.mark.parametrize("kind", sorted(SLURM_KINDS))
def test_every_trainer_ends_well_through_faults_of_one_kind(kind: str) -> None:
    small = WorldSettings(seed=0, hours=0.04, nodes=2, trainers=1, steps=16, step_s=6.0, faults=(kind,), apart_s=20.0)
    for seed in range(4, 12):
        result = world.run(replace(small, seed=seed))
        assert not result.violation
        if any(" fault: " in line for line in result.log):
            return
    pytest.fail("nothing was there to strike")
