"""Shadow mode: the live core on the live cluster, with imaginary trainers and simulated time."""

from __future__ import annotations

import io
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bftd.base.errors import LedgerError
from bftd.config.keys import Config, DaemonConfig, DecideConfig, LimitsConfig, SlurmConfig
from bftd.core.invariants import validate_state
from bftd.core.model.domain import Action, Decided, State
from bftd.core.model.events import Configured, Event, Finished, Heard, PoolObserved, Registered, Tick
from bftd.core.model.pause import Pause
from bftd.daemon.process import ledger_path
from bftd.ledger.file import Ledger
from bftd.pool import membership
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import nodes_of
from bftd.pool.synthetic import PREFIX, idle_nodes
from bftd.protocol.registration import Held
from bftd.service.service import Service
from bftd.shadow import trace_recorder, trainers
from bftd.shadow.read_only_client import ReadingClient
from bftd.shadow.service import SENTENCE, ShadowService
from bftd.shadow.trace_recorder import TraceRecorder
from bftd.shadow.trainers import ImaginaryTrainers
from bftd.simulation import trace
from bftd.simulation.drivers.resize_costs import WARM_UP_S
from bftd.simulation.trace.recording.session import RecordingClock
from bftd.ui.status import render
from slurm_plugin.clients.slow_settings import READINGS, Background
from slurm_plugin.errors import CommandError, SnapshotError
from slurm_plugin.read.types import NO_SCHEDULER, Job, Node, Scheduler, Snapshot
from tests.bftd.builders import PARTITION, job, node, of, pilot, registration
from tests.bftd.daemon.test_process import environment, running, write_config
from tests.support.messages import fragment, pattern, says, wording
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

# By throughput: what is recovered is told in samples, and by efficiency networks of any size are worth the same.
CONFIG = Config(daemon=DaemonConfig(mode="shadow"), decide=DecideConfig(objective="throughput"))
BEGIN_S = 1_000_000.0
NAMES = [f"n{number}" for number in range(1, 9)]


class Site:
    """A shadow daemon that is shown snapshots."""

    def __init__(self, path: Path | str, config: Config = CONFIG, now_s: float = BEGIN_S) -> None:
        self.now_s = now_s
        self.calls = 0
        self.service = ShadowService(config, Ledger(path, "shadow"), lambda: self.calls, now=lambda: self.now_s)

    def see(
        self,
        nodes: Iterable[Node],
        jobs: Iterable[Job] = (),
        after_s: float = 1.0,
        scheduler: Scheduler = NO_SCHEDULER,
    ) -> None:
        """One poll, two calls of Slurm."""
        self.now_s += after_s
        self.calls += 2
        shown = {item.name: item for item in nodes}
        self.service.observe(Snapshot(self.now_s, shown, tuple(jobs), (), scheduler=scheduler))
        validate_state(self.service.core)

    def idle(self, *busy: str, polls: int = 1, after_s: float = 1.0) -> None:
        """Polls of the eight nodes, all idle but those that a regular job has."""
        jobs = [job(f"5{name[1:]}", "RUNNING", nodes=(name,)) for name in busy]
        for _ in range(polls):
            self.see([node(name, "ALLOCATED" if name in busy else "IDLE") for name in NAMES], jobs, after_s)

    @property
    def lent(self) -> dict[str, str]:
        """Node to imaginary trainer."""
        return {lease.node: lease.trainer for lease in self.service.core.leases.values()}

    @property
    def status(self) -> dict[str, Any]:
        """What `bft status --json` prints."""
        return self.service.overview("1.0")

    @property
    def shadow(self) -> dict[str, Any]:
        """The part of it that only shadow mode has."""
        return self.status["shadow"]

    def sentences(self) -> list[str]:
        """All decisions."""
        return [item["text"] for item in self.service.ledger.decisions(None, 10_000)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Eight nodes that are idle and lent."""
    made = Site(tmp_path / "ledger")
    with closing(made.service.ledger):
        made.idle(polls=3)
        assert set(made.lent) == set(NAMES)
        yield made


class Telling(Service):
    """A live service that remembers its decisions."""

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self.decided: list[Decided] = []
        super().__init__(config, ledger, lambda _: None, now=lambda: BEGIN_S)

    def apply(self, *events: Event) -> None:
        """Take in events; the drivers are simulated, as those of shadow mode are."""
        trusted = [
            replace(event, settings=replace(event.settings.changed(first_node_within_s=0.0), trusting=True))
            if isinstance(event, Configured)
            else event
            for event in events
        ]
        super().apply(*trusted)

    def _settle(self, before: State, after: State, actions: Sequence[Action], owed: bool = False) -> None:
        self.decided += of(actions, Decided)
        super()._settle(before, after, actions, owed)


@contextmanager
def live(path: Path, config: Config) -> Iterator[Telling]:
    """A live service, for comparison."""
    ledger = Ledger(path)
    with closing(ledger):
        yield Telling(config, ledger)


class LiveSite:
    """The live service with drivers that do what they are told, and a Slurm that shows their pilots."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.imaginary = ImaginaryTrainers(service.core, BEGIN_S)

    def see(self, snapshot: Snapshot) -> None:
        """One poll; regular jobs have preempted the pilots on their nodes."""
        service, now_s = self.service, snapshot.time_s
        self.imaginary.advance(now_s, now_s - service.core.pool.time_s <= service.core.settings.pool.stale_after_s)
        told = self.imaginary.events(now_s, service.core.leases.values(), CONFIG.daemon.shadow_trainers)
        busy = {name for item in snapshot.jobs for name in item.nodes}
        free = {name for name, item in snapshot.nodes.items() if item.state == "IDLE" and name not in busy}
        placed = [lease for lease in service.core.leases.values() if lease.job_id and lease.node in free]
        pilots = [
            pilot(lease.job_id or "", lease.node, user=lease.trainer, comment=f"bft {lease.trainer} {lease.id}")
            for lease in placed
        ]
        drivers = [job(id_, "RUNNING", user=id_, partition=("bft-driver",)) for id_ in self.imaginary.ids]
        held = {lease.node: replace(snapshot.nodes[lease.node], state="ALLOCATED") for lease in placed}
        seen = replace(snapshot, nodes=snapshot.nodes | held, jobs=(*snapshot.jobs, *drivers, *pilots))
        service._memory, view = membership.observe(
            service._memory,
            seen,
            service.config.pool,
            Harvest.of(PARTITION),
            {lease.node: lease.job_id for lease in placed},
            {},
        )
        service.apply(*told, PoolObserved(now_s, view))
        for event in self.imaginary.obey(now_s, service.core.leases.values()):
            service.apply(event)


# Of more nodes than there are: no earmark can be made for such a job.
LARGE = 9


def random_week(seed: int, polls: int) -> Iterator[Snapshot]:
    """Regular jobs that come and go, are planned ahead, or wait without a plan; drained nodes; late polls."""
    rng, time_s = random.Random(seed), BEGIN_S
    busy: dict[str, str] = {}
    drained: set[str] = set()
    planned: dict[str, float] = {}
    for poll in range(polls):
        time_s += rng.choice((1.0, 1.0, 1.0, 1.3, 4.0, 25.0))
        for name in NAMES:
            if rng.random() < 0.05:
                busy[name] = f"5{poll}{name[1:]}"
                planned.pop(name, None)
            elif rng.random() < 0.2:
                busy.pop(name, None)
        drained ^= {name for name in NAMES if rng.random() < 0.02}
        if rng.random() < 0.1:
            planned[rng.choice(NAMES)] = time_s + rng.uniform(0.0, 60.0)
        planned = {name: start_s for name, start_s in planned.items() if name not in busy and start_s > time_s - 5.0}
        nodes = {
            name: node(name, "ALLOCATED" if name in busy else "IDLE", *(["DRAIN"] if name in drained else []))
            for name in NAMES
        }
        jobs = [job(id_, "RUNNING", nodes=(name,)) for name, id_ in busy.items()]
        jobs += [job(f"9{n[1:]}", sched_nodes=(n,), start_s=start_s) for n, start_s in planned.items()]
        if rng.random() < 0.1:
            jobs.append(job("99"))
        yield Snapshot(time_s, nodes, tuple(jobs), ())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_same_snapshots_give_the_decisions_of_a_live_core_whose_pilots_do_what_they_are_told(
    tmp_path_factory, seed: int
) -> None:
    root = tmp_path_factory.mktemp("both")
    with live(root / "live", CONFIG) as service:
        shown, real = Site(root / "shadow"), LiveSite(service)
        with closing(shown.service.ledger):
            for snapshot in random_week(seed, polls=60):
                shown.service.observe(snapshot)
                real.see(snapshot)
                leases = [(lease.id, lease.trainer, lease.phase) for lease in service.core.leases.values()]
                assert [(item.id, item.trainer, item.phase) for item in shown.service.core.leases.values()] == leases
            decided = [replace(item, mood="conditional").text for item in service.decided]
            assert shown.sentences() == decided
            assert any("would start" in text for text in decided)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_figures_add_up_and_only_idle_nodes_are_ever_lent(tmp_path_factory, seed: int) -> None:
    site = Site(tmp_path_factory.mktemp("week") / "ledger")
    with closing(site.service.ledger):
        idle_s, last_s, idle = 0.0, None, 0
        for snapshot in random_week(seed, polls=80):
            before = site.service._totals.to_json()
            site.service.observe(snapshot)
            validate_state(site.service.core)
            fit, pool = idle_nodes(snapshot, (PARTITION,)), site.service.core.pool
            strange = set(site.lent) - fit  # pilots are kept where Slurm waits for a word, or is not believed at once
            assert pool.hold or all(pool.nodes[name].unheard for name in strange)
            assert not strange.intersection(name for each in snapshot.jobs for name in nodes_of(each))
            if last_s is not None and snapshot.time_s - last_s <= CONFIG.pool.stale_after_s:
                idle_s += idle * (snapshot.time_s - last_s)
            kept = {name for name, item in pool.nodes.items() if item.in_pool and item.pilot is not None}
            last_s, idle = snapshot.time_s, len(fit | kept)
            after = site.service._totals.to_json()
            assert all(after[name] >= before[name] for name in ("observed_s", "idle_node_seconds", "polls"))
        usage, shadow = site.service.core.usage, site.shadow
        assert 0 < usage.training_node_seconds <= usage.used_node_seconds <= usage.pool_node_seconds
        assert usage.pool_node_seconds <= shadow["idle_node_seconds"] + 1e-6
        assert shadow["idle_node_seconds"] == pytest.approx(idle_s)
        assert shadow["samples"] >= 0
        assert shadow["preemptions"] <= shadow["nodes_taken"]
        assert all(" would " in text for text in site.sentences())


def test_a_node_that_a_regular_job_gets_leaves_its_imaginary_trainer_at_once(site: Site) -> None:
    site.idle(polls=15)
    samples_per_s = site.service._imaginary.rate
    owner = site.lent["n2"]
    site.idle("n2")
    assert "n2" not in site.lent
    assert site.service._imaginary.rate < samples_per_s
    shadow = site.shadow
    assert (shadow["preemptions"], shadow["nodes_taken"], shadow["nodes_vacated"]) == (1, 1, 0)
    name = site.service.core.trainers[owner].name
    assert any(text.startswith(f"{name} would give back n2") and "n2 runs a job" in text for text in site.sentences())


def test_a_job_that_has_come_and_gone_between_two_polls_took_the_node_too(site: Site) -> None:
    site.see([node(name, "IDLE", *(["COMPLETING"] if name == "n3" else [])) for name in NAMES])
    assert "n3" not in site.lent
    site.see([node(name) for name in NAMES], [job("7", "RUNNING", nodes=("n4",))])  # it started between two answers
    assert "n4" not in site.lent
    assert site.shadow["nodes_taken"] == 2


def test_a_node_planned_for_a_job_is_left_ahead_of_it_and_not_lent_again_before(site: Site) -> None:
    planned = job("7", start_s=site.now_s + 8.0, sched_nodes=("n1",), node_count=LARGE)
    site.see([node(name) for name in NAMES], [planned])
    assert "n1" in site.lent
    for _ in range(3):
        site.see([node(name) for name in NAMES], [planned])
    assert "n1" not in site.lent
    assert (site.shadow["nodes_vacated"], site.shadow["preemptions"]) == (1, 0)


def test_regression_a_node_that_is_left_for_an_earmark_by_a_deadline_counts_as_left(site: Site) -> None:
    site.idle("n1", polls=3)
    nodes = [node(name, "ALLOCATED" if name == "n1" else "IDLE") for name in NAMES]
    scheduler = replace(NO_SCHEDULER, read=True, cycled_s=site.now_s, cycle_s=0.1)
    runs = job("51", "RUNNING", nodes=("n1",), start_s=site.now_s - 60.0)
    first, behind = job("7", node_count=8, priority=9), job("8", time_limit_s=600.0)
    before = site.shadow["nodes_vacated"]
    for _ in range(21):  # until shortly before the cycle
        site.see(nodes, [runs, first, behind], scheduler=scheduler)
    assert any(
        re.search("would " + pattern("core.sentences.would_leave", nodes=fragment("n"), to="job 8"), text)
        for text in site.sentences()
    )
    assert len(site.lent) == 6
    assert site.shadow["nodes_vacated"] == before + 1


def test_a_restart_of_slurmctld_takes_no_imaginary_pilot_either(site: Site) -> None:
    before = dict(site.lent)
    site.see([node(name, "UNKNOWN") for name in NAMES])
    assert site.lent == before
    site.see([node(name, "IDLE", "NOT_RESPONDING") for name in NAMES])
    assert site.lent == before


@pytest.mark.parametrize("flag", ["DRAIN", "RESERVED", "MAINT"])
def test_a_node_that_is_no_longer_fit_is_given_back_without_a_preemption(site: Site, flag: str) -> None:
    site.see([node(name, "IDLE", *([flag] if name == "n5" else [])) for name in NAMES])
    assert "n5" not in site.lent
    assert (site.shadow["preemptions"], site.shadow["nodes_vacated"]) == (0, 0)
    site.see([node(name, "DOWN" if name == "n6" else "IDLE") for name in NAMES if name != "n7"])
    assert not {"n6", "n7"} & set(site.lent)


def test_a_kept_node_is_shown_as_slurm_shows_it(site: Site) -> None:
    site.idle()
    assert {item["state"] for item in site.status["nodes"]} == {"IDLE"}
    assert {item["why"] for item in site.status["nodes"]} == {wording("shadow.service.would_run_pilot")}


def test_S9_nothing_grows_without_a_fresh_snapshot_and_a_gap_counts_for_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger")
    with closing(site.service.ledger):
        site.idle("n1", "n2", polls=20)
        before, lent = site.status, dict(site.lent)
        for _ in range(100):
            site.now_s += 1.0
            site.service.apply(Tick(site.now_s))
        assert site.lent == lent
        site.service.observe(Snapshot(site.now_s - 50.0, {}, (), ()))  # not complete, but younger than the last
        site.service.observe(Snapshot(site.now_s - 60.0, {name: node(name) for name in NAMES}, (), ()))
        assert "n1" not in site.lent
        after = site.status
        assert after["shadow"]["observed_s"] == before["shadow"]["observed_s"]
        assert after["shadow"]["samples"] <= before["shadow"]["samples"]


def test_nodes_train_only_when_warm(site: Site) -> None:
    assert site.service._imaginary.rate == 0
    site.idle(polls=int(WARM_UP_S) - 1)
    assert site.service._imaginary.rate == 0
    site.idle(polls=2)
    assert site.service._imaginary.rate > 0
    assert {lease.phase for lease in site.service.core.leases.values()} == {"working"}


def test_the_resizes_of_imaginary_trainers_are_counted_and_neither_starts_nor_ends(site: Site) -> None:
    def resizes() -> list[int]:
        return [shown["resizes"] for shown in site.status["trainers"] if shown["id"] == loser]

    loser = site.lent["n1"]
    learned = site.service.core.trainers[loser].knowledge
    site.idle(polls=20)
    assert resizes() == [0], "a start is no resize"
    site.idle("n1")
    assert resizes() == [1], "it goes on with one node less"
    site.idle(polls=40)
    assert site.lent["n1"] == loser
    assert resizes() == [2], "the node is warm again and takes part"
    site.idle(*NAMES, polls=2)
    assert resizes() == [2], "a suspension is no resize"
    now = site.service.core.trainers[loser].knowledge
    assert (now.up_cost_s(2), now.down_cost_s(2)) == (learned.up_cost_s(2), learned.down_cost_s(2))


def test_on_a_pool_that_never_changes_nearly_all_of_dedicated_nodes_is_recovered(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger")
    with closing(site.service.ledger):
        site.idle(polls=1200, after_s=8.0)
        shadow, status = site.shadow, site.status
        assert 0.97 < shadow["efficiency"] <= 1.001
        assert shadow["recovered_node_seconds"] == shadow["efficiency"] * status["pool_node_seconds"]
        assert shadow["preemptions"] == 0
        assert shadow["slurm_calls_per_poll"] == 2.0


def test_a_trainer_whose_work_is_done_leaves_its_place_to_the_next(tmp_path: Path, monkeypatch) -> None:
    small = tuple(replace(spec, work_samples=1e5) for spec in trainers.NETWORKS)
    monkeypatch.setattr(trainers, "NETWORKS", small)
    site = Site(tmp_path / "ledger")
    with closing(site.service.ledger):
        site.idle(polls=60)
        active = [item for item in site.service.core.trainers.values() if item.active]
        done = [item for item in site.service.core.trainers.values() if not item.active]
        assert len(active) == CONFIG.daemon.shadow_trainers
        assert len(done) == site.shadow["completed"] > 3
        assert all(item.samples == 1e5 and item.exit_code == 0 for item in done)
        assert site.shadow["samples"] >= 1e5 * len(done)
        assert [item.id for item in active][-1] == f"{PREFIX}{len(active) + len(done)}"


def test_a_cap_of_one_user_does_not_hold_for_all_imaginary_trainers_together(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger", replace(CONFIG, limits=LimitsConfig(nodes_per_user=2)))
    with closing(site.service.ledger):
        site.idle(polls=3)
        assert len(site.lent) == 8
        assert max(list(site.lent.values()).count(id_) for id_ in site.lent.values()) <= 2


def test_a_restart_goes_on_with_totals_trainers_and_leases(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger")
    site.idle(polls=30)
    site.idle("n1", polls=70)  # the progress that is told every minute is what survives
    before, lent, order = site.status, site.lent, list(site.service.core.trainers)
    rate = site.service._imaginary.rate
    site.service.ledger.close()

    again = Site(tmp_path / "ledger", now_s=site.now_s + 500.0)
    with closing(again.service.ledger):
        assert list(again.service.core.trainers) == order
        again.idle("n1")
        assert again.lent == lent
        assert again.service._imaginary.rate == rate
        assert again.shadow["samples"] == pytest.approx(before["shadow"]["samples"])
        assert again.shadow["observed_s"] == before["shadow"]["observed_s"], "nobody looked while it was down"
        again.idle("n1", polls=10)
        assert again.shadow["samples"] == pytest.approx(before["shadow"]["samples"] + 10 * rate)
        assert again.status["used_node_seconds"] > before["used_node_seconds"]
        assert again.shadow["since_s"] == before["shadow"]["since_s"]


def test_the_ledgers_of_the_two_modes_are_never_taken_for_each_other(tmp_path: Path) -> None:
    Ledger(tmp_path / "live").close()
    Ledger(tmp_path / "shadow", "shadow").close()
    Ledger(tmp_path / "shadow", "shadow").close()
    for path, mode, other in (("live", "shadow", "live"), ("shadow", "live", "shadow")):
        with pytest.raises(LedgerError) as refused:
            Ledger(tmp_path / path, mode)
        told = wording("service.ledger.other_mode", path=tmp_path / path, written=other, mode=mode)
        assert str(refused.value) == told
    Ledger(tmp_path / "live").close()  # the refused daemon has let it go


def test_a_real_driver_is_answered_waits_and_changes_nothing(site: Site) -> None:
    twin = dict(site.lent)
    unknown = Held("n1.77", "n1", "4711")
    site.service.apply(Registered(site.now_s, registration("12", held=(unknown,))))
    guest = site.service.state.trainers["12"]
    assert guest.state == "waiting"
    assert [lease.live for lease in guest.unknown_leases] == [False], "the pilots that it still has are to be ended"
    site.idle(polls=5)
    assert site.lent == twin
    assert "12" not in site.service.core.trainers
    assert [who["text"] for who in site.shadow["waiting"]] == [SENTENCE]
    assert next(item for item in site.status["trainers"] if item["id"] == "12")["requested"] == 0
    assert site.service.ledger.decisions("12", 10)[0]["text"] == f"train-12 of ann waits: {SENTENCE}"
    assert SENTENCE in site.service.greeting

    site.service.apply(Finished(site.now_s, "12", 0, ""))
    assert not site.shadow["waiting"]


def test_a_driver_that_is_silent_and_gone_is_forgotten(site: Site) -> None:
    site.service.apply(Registered(site.now_s, registration("12")))
    nodes, running = [node(name) for name in NAMES], job("12", "RUNNING", partition=("bft-driver",))
    site.see(nodes, [running], after_s=100.0)
    assert "12" in site.service.state.trainers
    site.see(nodes)
    assert "12" not in site.service.state.trainers


def test_nobody_can_speak_for_an_imaginary_trainer(site: Site) -> None:
    before = site.service.core
    id_ = next(iter(before.trainers))
    site.service.apply(Heard(site.now_s, id_), Finished(site.now_s, id_, 1, "enough"))
    assert site.service.core is before


def test_operator_rights_are_not_used(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger", replace(CONFIG, slurm=SlurmConfig(operator=True)))
    with closing(site.service.ledger):
        assert not site.service.core.settings.slurm.operator
        for _ in range(200):
            site.see([node(name) for name in NAMES[1:]], [pilot("66", "n1", user="mallory")])
        assert not [event for event in site.service.ledger.events(0, 10_000) if event["kind"] == "cancel"]


def test_a_partition_that_regular_jobs_use_can_be_watched_before_there_is_one_for_pilots(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger", replace(CONFIG, slurm=SlurmConfig(partition="batch")))
    nodes = [node(name, partitions=("batch",)) for name in NAMES]
    with closing(site.service.ledger):
        for _ in range(4):
            site.see(nodes, [job("6", start_s=site.now_s + 3000.0, sched_nodes=("n8",), node_count=LARGE)])
        assert len(site.lent) == 8
        busy = [*nodes[:-1], node("n8", "ALLOCATED", partitions=("batch",))]
        site.see(busy, [job("6", "RUNNING", nodes=("n8",))])
        assert "n8" not in site.lent
        soon = job("7", start_s=site.now_s + 2.0, sched_nodes=("n7",), node_count=LARGE)
        site.see(busy, [job("6", "RUNNING", nodes=("n8",)), soon])
        assert len(site.lent) >= 5
        assert "n7" not in site.lent


def test_only_reading_commands_are_run(tmp_path: Path) -> None:
    for name in ("scontrol", "squeue", "sacctmgr", "sdiag"):
        shell_script(tmp_path / name, "echo fine")
    client = ReadingClient(commands_dir=tmp_path)
    assert client.run("scontrol", "show", "nodes").out == "fine\n"
    assert client.run("squeue").out == "fine\n"
    assert client.run("sacctmgr", "show", "user").out == "fine\n"
    assert client.calls == 3
    for command in (
        ("sacctmgr", "add"),
        ("scancel", "1"),
        ("salloc",),
        ("sbatch",),
        ("srun",),
        ("scontrol", "update"),
        ("scontrol",),
        ("sdiag", "--reset"),
        ("sdiag", "-r"),
    ):
        with pytest.raises(CommandError, match=pattern("shadow.read_only_client.not_run")):
            client.run(*command)
    with pytest.raises(CommandError):
        client.cancel(["1"])
    assert client.calls == 3


def test_regression_all_that_a_snapshot_reads_may_be_read_in_shadow_mode(tmp_path: Path) -> None:
    """sdiag was refused: shadow mode did not know when Slurm's next cycle comes, and how long cycles take."""
    for name in ("scontrol", "squeue", "sdiag"):
        shell_script(tmp_path / name, "echo fine")
    client = ReadingClient(commands_dir=tmp_path)
    asked = []

    def ask(command: str, *arguments: str, timeout_s: float | None = None) -> str:
        assert client.run(command, *arguments, timeout_s=timeout_s).out == "fine\n"
        asked.append(command)
        if arguments[:2] == ("show", "reservation"):
            return wording("slurm_plugin.parse.no_reservations") + "\n"
        raise SnapshotError("nothing of it matters here")

    slow = Background(ask, ("--all",))
    turns = set()
    for second in range(900):
        if (turn := slow.turn(float(second), (job("7"),))) is not None:
            slow.read(turn, float(second))
            turns.add(turn)
    assert turns == READINGS.keys()
    assert len(asked) == client.calls


def test_the_week_is_recorded_as_a_trace_that_goes_on_after_a_restart(tmp_path: Path) -> None:
    path, passed_s = tmp_path / "shadow-trace.csv.gz", [0.0]

    def watch(polls: int, *busy: str) -> None:
        clock = RecordingClock(lambda _: False, lambda: BEGIN_S + passed_s[0], lambda: passed_s[0])
        recorder = TraceRecorder(path, CONFIG, clock)
        for _ in range(polls):
            nodes = {name: node(name, "ALLOCATED" if name in busy else "IDLE") for name in NAMES}
            jobs = tuple(job(f"5{name[1:]}", "RUNNING", nodes=(name,)) for name in busy)
            recorder.see(Snapshot(BEGIN_S + passed_s[0], nodes, jobs, ()))
            passed_s[0] += 1.0
        assert recorder.recording_path == str(path)
        recorder.close()

    watch(100)
    watch(200, "n1", "n2")
    recorded = trace.read(path)
    assert recorded.nodes == tuple(NAMES)
    assert recorded.duration_s == pytest.approx(290.0, abs=10.0)
    assert recorded.notes["resumed"] == 1
    watch(10)


def test_regression_what_months_have_recorded_is_read_back_while_the_daemon_goes_on(
    tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "shadow-trace.csv.gz"
    monkeypatch.setattr(trace_recorder, "_READ_AT_ONCE_BYTES", 0)
    passed_s, may_read, opened = 0.0, threading.Event(), trace_recorder.RecordingFile

    def slow(path: Path) -> Any:
        assert may_read.wait(30)
        return opened(path)

    def see(recorder: TraceRecorder, polls: int) -> None:
        nonlocal passed_s
        for _ in range(polls):
            recorder.see(Snapshot(BEGIN_S + passed_s, {name: node(name) for name in NAMES}, (), ()))
            passed_s += 10.0

    clock = RecordingClock(lambda _: False, lambda: BEGIN_S + passed_s, lambda: passed_s)
    first = TraceRecorder(path, CONFIG, clock)
    see(first, 10)
    first.close()
    monkeypatch.setattr(trace_recorder, "RecordingFile", slow)
    second = TraceRecorder(path, CONFIG, clock)  # nothing here waits for the file
    see(second, 3)
    assert second.recording_path == str(path)
    may_read.set()
    assert second._opened is not None
    second._opened.result(30)
    see(second, 10)
    second.close()
    recorded = trace.read(path)
    assert recorded.notes["resumed"] == 1
    assert recorded.duration_s > 180


def test_a_trace_that_cannot_be_written_does_not_end_the_daemon(tmp_path: Path, caplog) -> None:
    path = tmp_path / "missing" / "shadow-trace.csv.gz"
    recorder = TraceRecorder(path, CONFIG)
    recorder.see(Snapshot(BEGIN_S, {"n1": node("n1")}, (), ()))
    recorder.close()
    assert recorder.recording_path == ""
    assert says(caplog.text, "shadow.trace_recorder.no_trace")


def drawn(status: Mapping[str, Any]) -> list[str]:
    """The lines of `bft status`."""
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(render(status))
    return out.getvalue().splitlines()


def test_the_first_line_of_the_view_says_that_nothing_is_touched(site: Site) -> None:
    site.service.apply(Registered(site.now_s, registration("12")))
    site.idle(polls=20)
    site.idle("n1")
    lines = drawn(site.status)
    assert "SHADOW MODE" + wording("shadow.view.nothing_touched") in lines[0]
    text = "\n".join(lines)
    assert f"train-12 12 of ann waits: {SENTENCE}" in text
    assert says(text, "shadow.view.preemptions", preemptions="preemptions         1", taken="1 node")
    assert ["AlexNet-1", "shadow:1"] in [line.split()[:2] for line in lines]


def test_an_empty_shadow_can_be_shown(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger")
    with closing(site.service.ledger):
        assert "SHADOW MODE" in drawn(site.status)[0]


def test_a_live_daemon_refuses_the_ledger_of_a_shadow_in_one_line(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger", "shadow").close()
    command = [sys.executable, "-m", "bftd.daemon.process", "--config", str(write_config(tmp_path))]
    run = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=STILL_S)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert says(run.stderr, "service.ledger.other_mode", written="shadow", mode="live")


def test_the_shadow_has_a_ledger_beside_the_live_one() -> None:
    assert ledger_path(CONFIG) == Path("/var/lib/bftd/ledger.shadow.sqlite")
    assert ledger_path(Config()) == Path("/var/lib/bftd/ledger.sqlite")


def test_a_change_of_mode_needs_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        write_config(tmp_path, '[daemon]\nmode = "shadow"\n')
        daemon.process.send_signal(signal.SIGHUP)
        daemon.told("READY=1")
        assert daemon.client.status()["mode"] == "live"
        daemon.process.terminate()
        _, errors = daemon.process.communicate(timeout=STILL_S)
        assert says(errors, "bftd.daemon.need_restart", fixed="daemon")


def test_a_pause_is_obeyed_by_imaginary_trainers_too(site: Site) -> None:
    everything = Pause("all", "", "root", site.now_s, "power test", True)
    assert site.service.pause([everything]) == len(NAMES)
    site.idle(polls=3)
    assert site.lent == {}
    assert says(
        site.sentences(),
        "core.sentences.paused_and_asked_back",
        by="(shadow) root",
        what="everything",
        why="power test",
    )
    site.service.resume("root", [everything.key])
    site.idle(polls=3)
    assert set(site.lent) == set(NAMES)
