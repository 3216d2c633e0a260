"""The service on a host whose clock is set, or that sleeps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bftd.base.errors import LedgerError
from bftd.config.keys import Config, DaemonConfig, SlurmConfig
from bftd.core.model.events import Registered, Reported, Tick
from bftd.ledger.file import Ledger
from bftd.ledger.history.quota import BYTES_A_DAY
from bftd.pool import membership
from bftd.service.clock import LONGEST_PAUSE_S, WallClock
from bftd.service.service import UNWRITTEN, Service
from bftd.shadow.service import ShadowService
from slurm_plugin.read.types import Job, Snapshot
from tests.bftd.builders import job, lease, node, registration

HOUR_S = 3600.0
ALL = tuple(f"n{number}" for number in range(1, 9))


class Host:
    """A daemon's host: time passes, and its wall clock may be set."""

    def __init__(self, root: Path) -> None:
        self.wall_s = 1_700_000_000.0
        self.elapsed_s = 50.0
        self.cancelled: list[str] = []
        self.pilots: dict[str, str] = {}
        self.service = Service(Config(), Ledger(root / "ledger"), self.cancelled.extend, self.wall, self.elapsed)

    def wall(self) -> float:
        """What the clock shows."""
        return self.wall_s

    def elapsed(self) -> float:
        """What passed since the host started."""
        return self.elapsed_s

    def poll(self, busy: Sequence[str] = (), after_s: float = 1.0, jobs: Sequence[Job] = ()) -> None:
        """Time passes, and the daemon looks."""
        self.wall_s += after_s
        self.elapsed_s += after_s
        self.service.observe(self.snapshot(busy, jobs))

    def snapshot(self, busy: Sequence[str] = (), jobs: Sequence[Job] = ()) -> Snapshot:
        """What Slurm shows now."""
        taken = {*busy, *self.pilots.values()}
        nodes = {name: node(name, "ALLOCATED" if name in taken else "IDLE") for name in ALL}
        running = [job(f"10{number}", "RUNNING", nodes=(name,)) for number, name in enumerate(busy)]
        pilots = [job(id_, "RUNNING", nodes=(name,), partition=("elastic",)) for id_, name in self.pilots.items()]
        return Snapshot(self.wall_s, nodes, (*running, *pilots, *jobs), ())

    def train(self, id_: str) -> None:
        """A trainer comes, and places what it is lent."""
        self.service.apply(Registered(self.service.now(), registration(id_, nodes_max=8)))
        for item in list(self.service.core.leases.values()):
            job_id = f"7{item.id.rpartition('.')[2]}"
            self.pilots[job_id] = item.node
            reports = tuple(lease(item.id, state, self.wall_s, job_id=job_id) for state in ("placed", "working"))
            self.service.apply(Reported(self.service.now(), id_, reports))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host whose daemon has seen eight idle nodes."""
    found = Host(tmp_path)
    for _ in range(4):
        found.poll()
    assert sum(item.in_pool for item in found.service.core.pool.nodes.values()) == 8
    return found


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_regression_after_a_step_of_the_clock_the_frozen_pool_counted_as_fresh(
    host: Host, by_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    host.wall_s += by_s
    with caplog.at_level(logging.WARNING, "bftd"):
        host.service.apply(Registered(host.service.now(), registration("77", nodes_max=8)))
    assert not host.service.core.leases, "granted before anything was seen by the new clock"
    for _ in range(5):
        host.poll(busy=ALL)
    shown = host.service.overview("1")
    assert shown["snapshot_age_s"] == 0.0
    assert not any(item["in_pool"] for item in shown["nodes"])
    assert not host.service.core.leases
    assert [record.getMessage().split(" by ")[0] for record in caplog.records] == [
        f"the clock went {'back' if by_s < 0 else 'forward'}"
    ]


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_regression_a_step_forward_of_the_clock_ended_trainers_that_no_queue_shows(host: Host, by_s: float) -> None:
    host.train("run-a-1")
    held = dict(host.service.core.leases)
    assert len(held) == 8
    host.poll()
    host.wall_s += by_s
    for _ in range(90):  # far beyond every grace but the driver's own silence
        host.service.apply(Registered(host.service.now(), registration("run-b-2", nodes_min=9, nodes_max=9)))
        host.poll(after_s=0.5)
    assert host.service.core.trainers["run-a-1"].active
    assert host.service.core.leases.keys() == held.keys()
    assert all(item.live for item in host.service.core.leases.values())
    assert not host.cancelled
    host.poll(busy=ALL[:1])
    host.pilots = {id_: name for id_, name in host.pilots.items() if name != ALL[0]}
    host.poll(busy=ALL[:1])
    host.poll(busy=ALL[:1])
    assert ALL[0] not in {item.node for item in host.service.core.leases.values()}, "time stands still"


@pytest.mark.parametrize("by_s", [0.0, -HOUR_S])
def test_S8_regression_each_restart_let_as_many_pilots_be_asked_for_again_as_a_minute_may(
    tmp_path: Path, by_s: float
) -> None:
    wall_s = 1_700_000_000.0
    config = Config(slurm=SlurmConfig(submit_rate_per_min=2))

    def looks(service: Service, polls: int = 4) -> int:
        nonlocal wall_s
        for _ in range(polls):
            wall_s += 1.0
            service.observe(Snapshot(wall_s, {name: node(name) for name in ALL}, (), ()))
        service.ledger.close()
        return len([item for item in service.core.grants if wall_s - item < 60.0])

    service = Service(config, Ledger(tmp_path / "ledger"), lambda _: None, lambda: wall_s)
    service.apply(Registered(wall_s, registration("1", nodes_max=8)))
    assert looks(service) == 2
    wall_s += by_s
    again = Service(config, Ledger(tmp_path / "ledger"), lambda _: None, lambda: wall_s)
    assert (looks(again), again.core.sequence) == (2, 2)
    later = Service(config, Ledger(tmp_path / "ledger"), lambda _: None, lambda: wall_s)
    looks(later, 70)
    assert later.core.grants == (), "a minute later more may be asked for"


def test_windows_are_those_of_the_wall_clock_after_a_step(host: Host) -> None:
    host.wall_s += HOUR_S
    waits = job("900", sched_nodes=("n1",), start_s=host.wall_s + 101.0)
    host.poll(jobs=(waits,))
    assert host.service.core.pool.nodes["n1"].window_s == pytest.approx(100.0)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_regression_after_a_step_of_the_clock_growth_seemed_held_for_as_long_as_that(host: Host, by_s: float) -> None:
    host.service.objection = "the partition must not be harvested"
    for _ in range(5):
        host.poll()
    assert host.service.overview("1")["held_s"] == 4.0
    host.wall_s += by_s
    host.poll()
    assert host.service.overview("1")["held_s"] == 5.0


@pytest.mark.parametrize("by_s", [-720 * HOUR_S, 720 * HOUR_S])
def test_regression_after_a_step_of_the_clock_a_users_history_was_lost_for_as_long_as_that(
    host: Host, by_s: float
) -> None:
    history = host.service._quota
    history.spend("ann", BYTES_A_DAY + 1, host.service.now())
    host.wall_s += by_s
    assert history.is_spent("ann", host.service.now())
    assert not history.is_spent("ann", host.service.now() + HOUR_S)


@pytest.mark.parametrize("by_s", [0.0, -HOUR_S, HOUR_S])
def test_regression_with_a_full_disk_and_no_snapshot_yet_growth_seemed_held_for_ever(
    tmp_path: Path, by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    host = Host(tmp_path)
    monkeypatch.setattr(host.service.ledger, "save", full)
    host.wall_s += by_s
    host.service.apply(Tick(host.service.now()))
    for _ in range(3):
        host.poll()
    shown = host.service.overview("1")
    assert (shown["hold"], shown["held_s"]) == (UNWRITTEN, 3.0)


def test_a_snapshot_that_was_taken_before_the_step_is_left_out(host: Host) -> None:
    for by_s in (-HOUR_S, HOUR_S):
        old = host.snapshot(busy=ALL)
        host.wall_s += by_s
        host.service.observe(old)
        assert not host.service.core.pool.seen
        host.poll()
        assert host.service.core.pool.seen


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_regression_a_clock_set_while_a_snapshot_was_judged_left_the_pool_ahead_of_it(
    host: Host, by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = membership.observe

    def slowly(*known: Any) -> Any:
        host.wall_s += by_s
        return judge(*known)

    with monkeypatch.context() as patch:
        patch.setattr(membership, "observe", slowly)
        host.poll()
    assert not host.service.core.pool.seen
    assert host.service.core.time_s == host.wall_s
    host.poll(busy=ALL)
    assert not any(item.in_pool for item in host.service.core.pool.nodes.values())


def test_a_host_that_slept_for_an_hour_takes_nobody_for_silent(host: Host) -> None:
    host.train("run-a-1")
    host.poll()
    host.wall_s += HOUR_S  # suspended, with a clock that stands still meanwhile
    host.poll()
    assert host.service.core.trainers["run-a-1"].active
    host.poll(after_s=HOUR_S)  # stopped, with one that does not
    assert host.service.core.trainers["run-a-1"].active
    assert len([item for item in host.service.core.leases.values() if item.live]) == 8


def test_small_differences_are_followed_and_never_add_up() -> None:
    wall_s, elapsed_s = [0.0], [0.0]
    clock = WallClock(lambda: wall_s[0], lambda: elapsed_s[0])
    for _ in range(1000):
        elapsed_s[0] += 1.0
        wall_s[0] += 1.9
        assert clock.look() == (wall_s[0], 0.0)
    elapsed_s[0] += LONGEST_PAUSE_S + 100.0
    wall_s[0] += LONGEST_PAUSE_S + 100.0
    assert clock.look()[1] == pytest.approx(100.0)


def test_shadow_mode_goes_on_after_a_step_too(tmp_path: Path) -> None:
    wall_s, elapsed_s = [1_700_000_000.0], [5.0]
    config = Config(daemon=DaemonConfig(mode="shadow"))
    service = ShadowService(
        config, Ledger(tmp_path / "ledger", "shadow"), now=lambda: wall_s[0], elapsed=lambda: elapsed_s[0]
    )

    def poll(times: int) -> float:
        for _ in range(times):
            wall_s[0] += 1.0
            elapsed_s[0] += 1.0
            service.observe(Snapshot(wall_s[0], {name: node(name) for name in ALL}, (), ()))
        return float(service.overview("1")["shadow"]["samples"])

    poll(4)
    wall_s[0] -= HOUR_S  # while all nodes warm up
    earned = poll(30)
    assert earned > 0
    leased = service.core.leases.keys()
    for by_s in (-HOUR_S, HOUR_S):
        wall_s[0] += by_s
        after = poll(30)
        assert earned < after < 4.0 * earned + 1e6
        assert service.core.leases.keys() == leased
        earned = after
