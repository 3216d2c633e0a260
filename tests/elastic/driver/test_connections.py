"""Whose connection it is: found by its name, however many pilots there are and whatever their nodes are called."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from elastic.driver.connections import PeerConnections
from elastic.driver.context import TrainerContext
from elastic.driver.failures.liveness import Liveness
from elastic.driver.failures.policy import FailurePolicy
from elastic.driver.pilots.launcher import Pilot
from elastic.link.peer import Peer
from tests.elastic.fakes import ops, peer, settings_for, until

pytestmark = pytest.mark.slow


class FakePilotManager:
    """The pilots; looking at all of them for one connection is counted."""

    def __init__(self, *nodes: str) -> None:
        self.pilots = {f"{node}.1": Pilot(f"{node}.1", node, 3600.0, "", state="ready") for node in nodes}
        self.looked_at_all = 0
        self.gone: list[str] = []

    @property
    def all(self) -> list[Pilot]:
        self.looked_at_all += 1
        return list(self.pilots.values())

    def lost(self, pilot: Pilot) -> None:
        self.gone.append(pilot.node)


def connections(folder: Path, pilot_manager: FakePilotManager) -> PeerConnections:
    run = TrainerContext(settings_for(folder), lambda line: None, lambda report: None)
    policy = FailurePolicy(run, lambda: list(pilot_manager.pilots.values()))
    liveness = Liveness(run, pilot_manager, time.monotonic)  # type: ignore[arg-type]
    return PeerConnections(run, None, pilot_manager, policy, None, liveness)  # type: ignore[arg-type]


def play(folder: Path, pilot_manager: FakePilotManager, body: Any) -> None:
    async def run() -> None:
        body(connections(folder, pilot_manager))

    asyncio.run(run())


def worker(lease_id: str, local_rank: int = 0, incarnation: int = 0) -> Peer:
    return peer(role="worker", lease=lease_id, incarnation=incarnation, local_rank=local_rank)


def test_connections_of_256_nodes_come_and_go_without_a_search_through_all_pilots_each(tmp_path: Path) -> None:
    pilot_manager = FakePilotManager(*(f"n{number}" for number in range(256)))

    def body(hub: PeerConnections) -> None:
        for pilot in pilot_manager.pilots.values():
            pilot.agent = peer(role="agent", lease=pilot.lease)
            workers = [worker(pilot.lease, rank) for rank in range(4)]
            assert all(hub.connected(one) for one in workers)
            for one in (*workers, pilot.agent):
                hub.disconnected(one)
            assert (pilot.agent, pilot.workers, pilot.over.is_set()) == (None, {}, True)
        assert pilot_manager.gone == [f"n{number}" for number in range(256)]
        assert pilot_manager.looked_at_all == 0

    play(tmp_path, pilot_manager, body)


@pytest.mark.parametrize("node", ["n1", "n1.example.org", "10.0.0.7"])
def test_a_worker_belongs_to_its_lease_in_its_present_incarnation_alone(tmp_path: Path, node: str) -> None:
    pilot_manager = FakePilotManager(node, "n2")
    pilot = pilot_manager.pilots[f"{node}.1"]
    pilot.incarnation = 3

    def body(hub: PeerConnections) -> None:
        assert hub.connected(worker(f"{node}.1", incarnation=3))
        assert sorted(pilot.workers) == [0]
        for other in (worker(f"{node}.1", incarnation=2), worker(f"{node}.1")):
            assert not hub.connected(other)
        for name in (f"{node}.1.3", f"{node}.2", node, ""):
            assert not hub.connected(worker(name, incarnation=3)), name

    play(tmp_path, pilot_manager, body)


def test_the_end_of_an_earlier_worker_does_not_disconnect_the_one_that_took_its_place(tmp_path: Path) -> None:
    pilot_manager = FakePilotManager("n1")
    pilot = pilot_manager.pilots["n1.1"]

    def body(hub: PeerConnections) -> None:
        first = worker(pilot.lease)
        assert hub.connected(first)
        pilot.incarnation += 1
        second = worker(pilot.lease, incarnation=1)
        assert hub.connected(second)
        hub.disconnected(first)
        assert pilot.workers == {0: second}
        pilot.incarnation += 1
        hub.disconnected(second)
        assert pilot.workers == {}

    play(tmp_path, pilot_manager, body)


def test_a_connection_for_a_checkpoint_is_that_of_the_present_worker_or_nobodys(tmp_path: Path) -> None:
    pilot_manager = FakePilotManager("n1", "n2")
    pilot = pilot_manager.pilots["n1.1"]

    def body(hub: PeerConnections) -> None:
        one = peer(role="worker", lease="n1.1", incarnation=0, local_rank=1, pid=7)
        about = {"role": "state", "lease": "n1.1", "incarnation": 0, "local_rank": 1, "pid": 7}
        assert hub._worker_of(about) is None, "nobody is there yet"
        assert hub.connected(one)
        assert hub._worker_of(about) is one
        for odd in (
            {"pid": 8},
            {"local_rank": 0},
            {"local_rank": "1"},
            {"lease": "n2.1"},
            {"lease": "n1.1.2"},
            {"lease": 1},
            {"incarnation": 2},
        ):
            assert hub._worker_of({**about, **odd}) is None, odd
        pilot.incarnation += 1
        hub.disconnected(one)
        assert hub._worker_of(about) is None

    play(tmp_path, pilot_manager, body)


async def test_rank_0_is_known_by_its_steps_and_asked_first(tmp_path: Path) -> None:
    pilot_manager = FakePilotManager("n1")
    hub = connections(tmp_path, pilot_manager)
    workers = [worker("n1.1", rank) for rank in range(3)]
    for one in workers:
        assert hub.connected(one)
    step = {"op": "step", "step": 1, "samples": 1, "size": 3, "first": False, "saved_step": 0, "saved_samples": 0}
    for one, rank in zip(workers, (2, 1, 0), strict=True):
        with suppress(AttributeError):  # of a pilot manager that is none
            await hub.received(one, {**step, "rank": rank, "at_s": 0.0, "loss": None, "steps_lost": 0})
    saving = asyncio.create_task(hub._run.saver.save(workers, graceful=False))
    await until("rank 0 is asked", lambda: ops(workers[2]) == ["ship"])
    assert [ops(one) for one in workers[:2]] == [[], []]
    saving.cancel()


async def test_what_an_agent_tells_of_a_want_of_memory_reaches_the_pilot_manager(tmp_path: Path) -> None:
    pilot_manager = FakePilotManager("n1")
    short: list[str] = []
    pilot_manager.short_of_memory = lambda pilot: short.append(pilot.node)  # type: ignore[attr-defined]
    hub = connections(tmp_path, pilot_manager)
    await hub.received(peer(role="agent", lease="n1.1"), {"op": "memory"})
    assert short == ["n1"]
