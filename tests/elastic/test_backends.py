"""How the two back-ends follow the driver's will, with the helper processes beside the driver played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from elastic.driver import horovod as horovods
from elastic.driver import torchrun as torchruns
from elastic.driver.backend import Backend
from elastic.driver.horovod import HorovodBackend
from elastic.driver.pilots import Peer, Pilot
from elastic.driver.settings import DriverSettings
from elastic.driver.torchrun import TorchrunBackend
from elastic.wire import Message
from tests.elastic.fakes import ops, peer, sent, settings_for, until


class FakeCompanion:
    """A helper process: keeps its commands; the store answers at once."""

    made: ClassVar[list[FakeCompanion]] = []

    def __init__(self, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> None:
        self.on_message, self.on_exit = on_message, on_exit
        self.commands: list[Message] = []
        self.argv: list[str] = []
        self.stopped = False
        FakeCompanion.made.append(self)

    async def start(self, interpreter: str, module: str, *args: str) -> None:
        self.argv = [interpreter, module, *args]

    def send(self, message: Message) -> None:
        self.commands.append(message)
        if message["op"] == "open":
            self.on_message({"op": "opened", "generation": message["generation"], "port": 4000})

    async def stop(self) -> None:
        self.stopped = True

    @property
    def hosts(self) -> list[str]:
        """The hosts of the last list."""
        return list(next(m for m in reversed(self.commands) if m["op"] == "hosts")["hosts"])


class Host:
    """The trainer, as a back-end sees it."""

    def __init__(self, settings: DriverSettings) -> None:
        self.settings = settings
        self.crashes: list[tuple[str, int]] = []
        self.broken_at: int | None = None
        self.failures: list[str] = []
        self.saves: list[bool] = []
        self.ended: tuple[int, str] | None = None

    def log(self, text: str) -> None:
        pass

    def wake(self) -> None:
        pass

    def broke(self, step: int, at_s: float) -> None:
        self.broken_at = step

    def crashed(self, pilot: Pilot, rc: int) -> None:
        self.crashes.append((pilot.node, rc))

    def life_failed(self, reason: str) -> None:
        self.failures.append(reason)

    def finish(self, exit_code: int, reason: str) -> None:
        self.ended = self.ended or (exit_code, reason)

    async def save_state(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        self.saves.append(graceful)


def pilot(node: str, workers: int = 1) -> Pilot:
    made = Pilot(f"{node}.1", node, 3600.0, "", state="ready", workers_per_node=workers)
    made.agent = peer(role="agent", host=made.lease)
    return made


def told(to: Pilot) -> list[Message]:
    assert to.agent
    return [message for message in sent(to.agent) if message["op"] != "beat"]


@pytest.fixture(autouse=True)
def companions(monkeypatch: pytest.MonkeyPatch) -> list[FakeCompanion]:
    monkeypatch.setattr(FakeCompanion, "made", [])
    for module in (horovods, torchruns):
        monkeypatch.setattr(module, "Companion", FakeCompanion)
    monkeypatch.setattr(horovods, "_WORKER_END_S", 0.02)
    return FakeCompanion.made


def play(kind: type[Backend], folder: Path, body: Callable[[Any, Host], Awaitable[None]]) -> Host:
    async def run() -> Host:
        host = Host(settings_for(folder, "1-8"))
        backend = kind(host)
        await backend.start()
        await asyncio.wait_for(body(backend, host), 30)
        return host

    return asyncio.run(run())


# -- Horovod ---


def start_worker(life: FakeCompanion, member: Pilot, local_rank: int = 0, host: str | None = None) -> None:
    """Horovod's driver asks for a worker, and it connects."""
    life.on_message(
        {"op": "start", "host": host or member.host, "local_rank": local_rank, "env": {"HOROVOD_RANK": "0"}}
    )
    member.workers[local_rank] = peer(role="worker", host=member.host)


def exit_of(member: Pilot, rc: int, local_rank: int = 0, host: str | None = None) -> Message:
    where = host or member.host
    return {"op": "exit", "host": where, "local_rank": local_rank, "rc": rc, "step": 3, "at_s": 1.0}


def test_horovod_gets_the_wanted_hosts_in_one_life_that_grows_and_shrinks(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1, n2, n3 = pilot("n1", 2), pilot("n2", 2), pilot("n3", 2)
        await backend.set_members([n1, n2])
        await backend.set_members([n1, n2, n3])
        await backend.set_members([n2, n3])
        await backend.set_members([n2, n3])
        [life] = companions
        assert life.argv[1:] == ["elastic.node.horovod_life", "2", "16", "127.0.0.1"]
        assert [list(m["hosts"]) for m in life.commands] == [
            ["n1.1.0", "n2.1.0"],
            ["n1.1.0", "n2.1.0", "n3.1.0"],
            ["n2.1.0", "n3.1.0"],
        ]
        assert host.saves == []

    play(HorovodBackend, tmp_path, body)


def test_when_every_old_node_goes_at_once_the_state_goes_by_way_of_the_disk(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await backend.set_members([n1])
        start_worker(companions[0], n1)
        await backend.set_members([n2])
        assert host.saves == [True]
        assert companions[0].stopped
        assert companions[1].hosts == ["n2.1.0"]
        assert ops(n1.agent)[-1] == "kill"  # type: ignore[arg-type]

    play(HorovodBackend, tmp_path, body)


def test_a_crashed_workers_host_comes_back_under_another_name(tmp_path: Path, companions: list[FakeCompanion]) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await backend.set_members([n1, n2])
        [life] = companions
        start_worker(life, n1)
        start_worker(life, n2)
        survivor = n2.workers[0]
        backend.received(n1, exit_of(n1, -9))
        assert host.crashes == [("n1", -9)]
        assert ops(survivor) == ["abort"]
        assert life.commands[-1] == {"op": "exit", "host": "n1.1.0", "local_rank": 0, "rc": -9}
        await backend.set_members([n1, n2])
        assert life.hosts == ["n1.1.1", "n2.1.0"]

    play(HorovodBackend, tmp_path, body)


def test_one_crash_on_a_node_of_four_workers_is_one_crash(tmp_path: Path, companions: list[FakeCompanion]) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1 = pilot("n1", 4)
        await backend.set_members([n1])
        for local_rank in range(4):
            start_worker(companions[0], n1, local_rank)
        # One ended by itself; the others of its node are ended by the driver.
        name = n1.host
        for local_rank, rc in ((2, 5), (0, -9), (1, -9), (3, -9)):
            backend.received(n1, exit_of(n1, rc, local_rank, name))
        assert host.crashes == [("n1", 5)]
        assert not backend.uses(n1)

    play(HorovodBackend, tmp_path, body)


@pytest.mark.parametrize("rc", [-6, 1, 134])
def test_the_abort_of_a_removed_worker_is_success(tmp_path: Path, companions: list[FakeCompanion], rc: int) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await backend.set_members([n1, n2])
        [life] = companions
        start_worker(life, n1)
        start_worker(life, n2)
        survivor = n2.workers[0]
        n1.revoked = True
        await backend.set_members([n2])
        backend.received(n1, exit_of(n1, rc))
        assert host.crashes == []
        assert ops(survivor) == []
        assert not backend.uses(n1)

    play(HorovodBackend, tmp_path, body)


def test_a_lost_node_aborts_the_collective_of_the_survivors(tmp_path: Path, companions: list[FakeCompanion]) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await backend.set_members([n1, n2])
        start_worker(companions[0], n1)
        start_worker(companions[0], n2)
        survivor = n2.workers[0]
        n1.leaving = True
        backend.lost(n1)
        assert ops(survivor) == ["abort"]
        assert companions[0].commands[-1]["rc"] == 137
        assert host.crashes == []

    play(HorovodBackend, tmp_path, body)


def test_a_worker_asked_for_on_a_node_that_is_leaving_is_told_to_have_ended(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1 = pilot("n1")
        await backend.set_members([n1])
        n1.leaving = True
        start_worker(companions[0], n1)
        assert companions[0].commands[-1]["op"] == "exit"
        assert told(n1) == []

    play(HorovodBackend, tmp_path, body)


@pytest.mark.parametrize(("codes", "ended"), [([0, 0], True), ([0, 1], False), ([], False)])
def test_training_is_complete_when_every_rank_ended_well(
    tmp_path: Path, companions: list[FakeCompanion], codes: list[int], ended: bool
) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        await backend.set_members([pilot("n1")])
        companions[0].on_message({"op": "done", "ok": bool(codes), "error": "", "codes": codes})
        await until("judged", lambda: host.ended or host.failures)
        assert (host.ended is not None) == ended
        assert not backend.running

    play(HorovodBackend, tmp_path, body)


def test_a_life_that_ends_by_itself_is_a_failure_and_the_next_uses_new_names(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1 = pilot("n1")
        await backend.set_members([n1])
        companions[0].on_exit(-11)
        assert host.failures
        await until("over", lambda: n1.incarnation == 1)
        await backend.set_members([n1])
        assert companions[1].hosts == ["n1.1.1"]

    play(HorovodBackend, tmp_path, body)


def test_a_suspension_after_a_crash_does_not_wait_for_a_step_boundary(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: HorovodBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await backend.set_members([n1, n2])
        start_worker(companions[0], n1)
        start_worker(companions[0], n2)
        backend.received(n1, exit_of(n1, 1))
        await backend.suspend()
        assert host.saves == [False]
        assert not backend.running

    play(HorovodBackend, tmp_path, body)


# -- torchrun ---


async def gathered(backend: TorchrunBackend, *members: Pilot) -> None:
    """Forms a generation of these pilots: each comes to the rendezvous once it is asked to."""
    forming = asyncio.create_task(backend.set_members(members))
    seen = {member.lease: len(told(member)) for member in members if member.lease in backend._invited}
    await until("they are called", lambda: all(len(told(one)) > seen.get(one.lease, 0) for one in members))
    for member in members:
        backend.received(member, {"op": "join", "generation": -1})
    await forming


def ranks(*members: Pilot) -> list[tuple[int, int]]:
    return [(told(member)[-1]["rank"], told(member)[-1]["nodes"]) for member in members]


def test_torchruns_ranks_are_the_drivers_and_each_generation_has_a_store_of_its_own(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: TorchrunBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await gathered(backend, n1, n2)
        assert ranks(n1, n2) == [(0, 2), (1, 2)]
        await gathered(backend, n2)
        assert ranks(n2) == [(0, 1)]
        assert [m["generation"] for m in companions[0].commands] == [1, 2]
        assert host.saves == [True]
        assert ops(n1.agent)[-1] == "regroup"  # type: ignore[arg-type]
        assert not backend.uses(n1)

    play(TorchrunBackend, tmp_path, body)


def test_after_a_crash_the_same_members_form_a_new_generation_without_waiting_for_a_boundary(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: TorchrunBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await gathered(backend, n1, n2)
        # The peer of a killed worker fails as well, and may be heard of first.
        backend.received(n2, {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0})
        backend.received(n1, {"op": "exit", "local_rank": 0, "rc": -9, "step": 4, "at_s": 1.0})
        backend.received(n1, {"op": "join", "generation": 1})
        # The next group may take its first step before anybody is blamed.
        assert host.broken_at == 4
        await until("one is blamed", lambda: host.crashes)
        assert host.crashes == [("n1", -9)]
        forming = asyncio.create_task(backend.set_members([n1, n2]))
        await until("the other is called", lambda: told(n2)[-1]["op"] == "regroup")
        backend.received(n2, {"op": "join", "generation": 1})
        await forming
        assert ranks(n1, n2) == [(0, 2), (1, 2)]
        assert host.saves == [False]

    play(TorchrunBackend, tmp_path, body)


def test_a_script_that_fails_everywhere_counts_against_every_node_once(tmp_path: Path) -> None:
    async def body(backend: TorchrunBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await gathered(backend, n1, n2)
        for failed in (n2, n1):
            backend.received(failed, {"op": "exit", "local_rank": 0, "rc": 3, "step": -1, "at_s": 0.0})
        await until("they are counted", lambda: host.crashes)
        assert sorted(host.crashes) == [("n1", 3), ("n2", 3)]

    play(TorchrunBackend, tmp_path, body)


def test_a_node_lost_on_its_way_to_the_rendezvous_is_not_waited_for(tmp_path: Path) -> None:
    async def body(backend: TorchrunBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        forming = asyncio.create_task(backend.set_members([n1, n2]))
        await until("called", lambda: told(n2))
        backend.received(n1, {"op": "join", "generation": -1})
        n2.leaving = True
        backend.lost(n2)
        await forming
        assert not backend.running
        await gathered_one(backend, n1)
        assert ranks(n1) == [(0, 1)]

    async def gathered_one(backend: TorchrunBackend, member: Pilot) -> None:
        await backend.set_members([member])

    play(TorchrunBackend, tmp_path, body)


def test_a_node_that_does_not_come_to_the_rendezvous_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchruns, "_JOIN_S", 0.02)

    async def body(backend: TorchrunBackend, host: Host) -> None:
        n1 = pilot("n1")
        await backend.set_members([n1])
        assert n1.expiring
        assert not backend.running

    play(TorchrunBackend, tmp_path, body)


def test_training_is_complete_when_all_are_done_or_the_rest_is_lost_at_the_end(tmp_path: Path) -> None:
    async def body(backend: TorchrunBackend, host: Host) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await gathered(backend, n1, n2)
        backend.received(n1, {"op": "done"})
        assert host.ended is None
        n2.leaving = True
        backend.lost(n2)
        assert host.ended == (0, "training is complete")

    play(TorchrunBackend, tmp_path, body)


def test_a_store_that_cannot_run_ends_the_trainer_with_one_line_that_names_the_interpreter(
    tmp_path: Path, companions: list[FakeCompanion]
) -> None:
    async def body(backend: TorchrunBackend, host: Host) -> None:
        companions[0].on_exit(1)
        assert host.ended
        assert host.ended[0] == 1
        assert "is torch installed for /usr/bin/python3?" in host.ended[1]

    play(TorchrunBackend, tmp_path, body)
