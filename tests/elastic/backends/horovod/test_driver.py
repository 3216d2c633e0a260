"""How the Horovod back-end follows the driver's will, with the helper process beside the driver played by the test."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from elastic.backends.horovod import driver as horovods
from elastic.backends.horovod.driver import HorovodBackend
from elastic.driver.pilots.launcher import Pilot
from elastic.link.wire import Message
from tests.elastic.backends.stage import FakeCompanion, FakeServices, pilot, started, told
from tests.elastic.fakes import ops, peer, settings_for, until
from tests.support.messages import wording

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def companions(monkeypatch: pytest.MonkeyPatch) -> list[FakeCompanion]:
    monkeypatch.setattr(FakeCompanion, "made", [])
    monkeypatch.setattr(horovods, "Companion", FakeCompanion)
    monkeypatch.setattr(horovods, "_WORKER_END_S", 0.02)
    return FakeCompanion.made


@pytest.fixture
def services(tmp_path: Path) -> FakeServices:
    return FakeServices(settings_for(tmp_path, "1-8"))


@pytest.fixture
def backend(services: FakeServices) -> AbstractAsyncContextManager[HorovodBackend]:
    return started(services, HorovodBackend)


def start_worker(run: FakeCompanion, member: Pilot, local_rank: int = 0, host: str | None = None) -> None:
    """Horovod's driver asks for a worker, and it connects."""
    run.on_message(
        {"op": "start", "host": host or member.horovod_host, "local_rank": local_rank, "env": {"HOROVOD_RANK": "0"}}
    )
    member.workers[local_rank] = peer(role="worker", lease=member.lease)


def exit_of(member: Pilot, rc: int, local_rank: int = 0, host: str | None = None) -> Message:
    where = host or member.horovod_host
    return {"op": "exit", "host": where, "local_rank": local_rank, "rc": rc, "step": 3, "at_s": 1.0}


async def test_horovod_gets_the_wanted_hosts_in_one_run_that_grows_and_shrinks(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1", 2), pilot("n2", 2), pilot("n3", 2)
    await backend.set_members([n1, n2])
    await backend.set_members([n1, n2, n3])
    await backend.set_members([n2, n3])
    await backend.set_members([n2, n3])
    [run] = companions
    assert run.argv[1:] == ["elastic.backends.horovod.elastic_run"]
    assert run.commands[0] == {"op": "begin", "ranks": 16}
    assert [list(m["hosts"]) for m in run.commands if m["op"] == "hosts"] == [
        ["n1.1.0", "n2.1.0"],
        ["n1.1.0", "n2.1.0", "n3.1.0"],
        ["n2.1.0", "n3.1.0"],
    ]
    assert services.saves == []


async def test_when_every_old_node_goes_at_once_the_state_goes_by_way_of_the_disk(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1])
    start_worker(companions[0], n1)
    await backend.set_members([n2])
    assert services.saves == [True]
    assert companions[0].stopped
    assert companions[1].hosts == ["n2.1.0"]
    assert ops(n1.agent)[-1] == "kill"  # type: ignore[arg-type]


async def test_who_is_in_a_group_that_horovod_forms_is_told_by_lease(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1, n2])
    companions[0].on_message({"op": "formed", "hosts": [n1.horovod_host, n2.horovod_host]})
    assert services.groups == [[n1.lease, n2.lease]]


async def test_a_crashed_workers_host_comes_back_under_another_name(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1, n2])
    [run] = companions
    start_worker(run, n1)
    start_worker(run, n2)
    survivor = n2.workers[0]
    backend.received(n1, exit_of(n1, -9))
    assert services.crashes == [("n1", -9)]
    await until("told", lambda: ops(survivor))
    assert ops(survivor) == ["abort"]
    assert run.commands[-1] == {"op": "exit", "host": "n1.1.0", "local_rank": 0, "rc": -9}
    await backend.set_members([n1, n2])
    assert run.hosts == ["n1.1.1", "n2.1.0"]


async def test_one_crash_on_a_node_of_four_workers_is_one_crash(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1 = pilot("n1", 4)
    await backend.set_members([n1])
    for local_rank in range(4):
        start_worker(companions[0], n1, local_rank)
    # One ended by itself; the others of its node are ended by the driver.
    name = n1.horovod_host
    for local_rank, rc in ((2, 5), (0, -9), (1, -9), (3, -9)):
        backend.received(n1, exit_of(n1, rc, local_rank, name))
    assert services.crashes == [("n1", 5)]
    assert not backend.uses(n1)


@pytest.mark.parametrize("rc", [-6, 1, 134])
async def test_the_abort_of_a_removed_worker_is_success(
    companions: list[FakeCompanion], rc: int, backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1, n2])
    [run] = companions
    start_worker(run, n1)
    start_worker(run, n2)
    survivor = n2.workers[0]
    n1.revoked = True
    await backend.set_members([n2])
    backend.received(n1, exit_of(n1, rc))
    assert services.crashes == []
    assert ops(survivor) == []
    assert not backend.uses(n1)


async def test_a_lost_node_aborts_the_collective_of_the_survivors(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1, n2])
    start_worker(companions[0], n1)
    start_worker(companions[0], n2)
    survivor = n2.workers[0]
    n1.leaving = True
    backend.lost(n1)
    await until("told", lambda: ops(survivor))
    assert ops(survivor) == ["abort"]
    assert companions[0].commands[-1]["rc"] == 137
    assert services.crashes == []


async def test_a_worker_asked_for_on_a_node_that_is_leaving_is_told_to_have_ended(
    companions: list[FakeCompanion], backend: HorovodBackend
) -> None:
    n1 = pilot("n1")
    await backend.set_members([n1])
    n1.leaving = True
    start_worker(companions[0], n1)
    assert companions[0].commands[-1]["op"] == "exit"
    assert told(n1) == []


@pytest.mark.parametrize(("codes", "ended"), [([0, 0], True), ([0, 1], False), ([], False)])
async def test_training_is_complete_when_every_rank_ended_well(
    companions: list[FakeCompanion], codes: list[int], ended: bool, backend: HorovodBackend, services: FakeServices
) -> None:
    await backend.set_members([pilot("n1")])
    companions[0].on_message({"op": "done", "ok": bool(codes), "error": "", "codes": codes})
    await until("judged", lambda: services.ended or services.failures)
    assert (services.ended is not None) == ended
    assert not backend.running


async def test_a_run_in_which_one_worker_ended_with_0_before_the_others_is_a_failure_that_names_it(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1, n2])
    for one in (n1, n2):
        start_worker(companions[0], one)
    backend.received(n1, exit_of(n1, 0))
    companions[0].on_message({"op": "done", "ok": True, "error": "", "codes": [0, 137]})
    await until("judged", lambda: services.failures)
    assert services.failures == [wording("elastic.driver.ended_while_others_trained", node="n1", step=3)]


async def test_regression_a_script_that_ended_with_0_in_its_sigterm_handler_was_one_that_had_trained_to_the_end(
    companions: list[FakeCompanion], backend: HorovodBackend
) -> None:
    n1 = pilot("n1")
    await backend.set_members([n1])
    start_worker(companions[0], n1)
    n1.leaving = True
    backend.received(n1, exit_of(n1, 0))
    backend.lost(n1)
    await until("told", lambda: companions[0].commands[-1]["op"] == "exit")
    assert [m["rc"] for m in companions[0].commands if m["op"] == "exit"] == [137]


async def test_a_run_that_ends_by_itself_is_a_failure_and_the_next_uses_new_names(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1 = pilot("n1")
    await backend.set_members([n1])
    companions[0].on_exit(-11)
    assert services.failures
    await until("over", lambda: n1.incarnation == 1)
    await backend.set_members([n1])
    assert companions[1].hosts == ["n1.1.1"]


async def test_a_suspension_after_a_crash_does_not_wait_for_a_step_boundary(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await backend.set_members([n1, n2])
    start_worker(companions[0], n1)
    start_worker(companions[0], n2)
    backend.received(n1, exit_of(n1, 1))
    await backend.suspend()
    assert services.saves == [False]
    assert not backend.running


def start_all(run: FakeCompanion, *members: Pilot) -> None:
    for member in members:
        for local_rank in range(member.workers_per_node):
            start_worker(run, member, local_rank)


def of(run: FakeCompanion, op: str) -> list[Message]:
    return [message for message in run.commands if message["op"] == op]


async def test_half_of_256_nodes_lost_in_one_moment_is_one_abort_for_each_survivor_and_one_new_list(
    companions: list[FakeCompanion], monkeypatch: pytest.MonkeyPatch, backend: HorovodBackend
) -> None:
    pilots = [pilot(f"n{number}", 4) for number in range(256)]
    await backend.set_members(pilots)
    [run] = companions
    start_all(run, *pilots)
    lost, left = pilots[::2], pilots[1::2]
    survivors = [worker for one in left for worker in one.workers.values()]
    for one in lost:
        one.leaving = True
        one.workers.clear()
        backend.lost(one)
    # What the trainer wanted before the last of them was lost is not carried out any more.
    await backend.set_members([*left, lost[-1]])
    assert [ops(worker) for worker in survivors] == [["abort"]] * 512
    assert len(of(run, "exit")) == 512
    assert len(of(run, "hosts")) == 1
    await backend.set_members(left)
    assert run.hosts == [one.horovod_host for one in left]
    assert [ops(worker) for worker in survivors] == [["abort"]] * 512


async def test_what_is_lost_after_a_burst_was_told_is_told_too(
    companions: list[FakeCompanion], backend: HorovodBackend
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await backend.set_members([n1, n2, n3])
    start_all(companions[0], n1, n2, n3)
    survivor = n3.workers[0]
    for count, one in enumerate((n1, n2), start=1):
        one.leaving = True
        backend.lost(one)
        await until("told", lambda count=count: ops(survivor) == ["abort"] * count)  # type: ignore[misc]
    assert [message["host"] for message in of(companions[0], "exit")] == [n1.horovod_host, n2.horovod_host]


async def test_survivors_are_told_before_horovods_driver_whose_new_sockets_an_abort_would_shut(
    companions: list[FakeCompanion], monkeypatch: pytest.MonkeyPatch, services: FakeServices
) -> None:
    order: list[str] = []
    async with started(services, HorovodBackend) as backend:
        n1, n2 = pilot("n1"), pilot("n2")
        await backend.set_members([n1, n2])
        start_all(companions[0], n1, n2)
        monkeypatch.setattr(n2.workers[0], "send", lambda message: order.append(message["op"]))
        monkeypatch.setattr(companions[0], "send", lambda message: order.append(message["op"]))
        n1.leaving = True
        backend.lost(n1)
        await until("told", lambda: len(order) == 2)
        assert order == ["abort", "exit"]


@pytest.mark.parametrize(
    ("spec", "workers", "least"),
    [("2-8", [8, 4], 12), ("2-8", [8, 4, 1], 5), ("1-8", [1, 8], 1), ("2-8", [4, 4, 4], 8)],
)
async def test_horovod_never_waits_for_more_slots_than_an_allowed_number_of_unequal_nodes_has(
    tmp_path: Path, companions: list[FakeCompanion], spec: str, workers: list[int], least: int
) -> None:
    backend = HorovodBackend(FakeServices(settings_for(tmp_path, spec)))
    members = [pilot(f"n{number}", count) for number, count in enumerate(workers)]
    await backend.set_members(members)
    [listed] = of(companions[0], "hosts")
    assert listed == {
        "op": "hosts",
        "hosts": {one.horovod_host: one.workers_per_node for one in members},
        "least": least,
    }


async def test_a_node_given_back_is_no_guest_of_the_rendezvous_once_its_last_worker_has_ended(
    companions: list[FakeCompanion], backend: HorovodBackend
) -> None:
    n1, n2 = pilot("n1", 2), pilot("n2", 2)
    for one, address in ((n1, "10.0.0.1"), (n2, "10.0.0.2")):
        one.agent.writer.get_extra_info = lambda _, address=address: (address, 1)  # type: ignore
    await backend.set_members([n1, n2])
    [run] = companions
    start_all(run, n1, n2)
    await backend.set_members([n2])
    # A worker that leaves in order asks the rendezvous once more.
    backend.received(n1, exit_of(n1, 0, 0))
    assert [told["addresses"] for told in of(run, "guests")] == [["10.0.0.1", "10.0.0.2"]]
    n1.agent = None
    backend.received(n1, exit_of(n1, -6, 1))
    assert [told["addresses"] for told in of(run, "guests")][1:] == [["10.0.0.2"]]


async def test_the_rendezvous_knows_its_guests_before_horovod_starts_workers_there(
    companions: list[FakeCompanion], backend: HorovodBackend
) -> None:
    await backend.set_members([pilot("n1")])
    assert [message["op"] for message in companions[0].commands] == ["begin", "guests", "hosts"]


async def test_the_process_of_an_elastic_run_is_there_before_its_nodes_and_again_after_a_suspension(
    companions: list[FakeCompanion], backend: HorovodBackend
) -> None:
    assert [run.commands for run in companions] == [[]]
    n1 = pilot("n1")
    await backend.set_members([n1])
    assert len(companions) == 1
    await backend.suspend()
    first, second = companions
    assert (first.stopped, second.commands) == (True, [])
    assert not backend.running
    await backend.set_members([n1])
    assert second.hosts == [n1.horovod_host]
    await backend.suspend()
    await backend.close()
    assert all(run.stopped for run in companions)


async def test_a_process_that_ended_before_its_run_began_is_replaced_and_fails_nothing(
    companions: list[FakeCompanion], backend: HorovodBackend, services: FakeServices
) -> None:
    assert companions[0].on_line is not None
    companions[0].on_line("Traceback")
    companions[0].on_exit(1)
    assert (services.failures, services.logged) == ([], [])
    await backend.set_members([pilot("n1")])
    assert (companions[0].commands, companions[1].hosts) == ([], ["n1.1.0"])
    assert companions[1].on_line is not None
    companions[1].on_line("Traceback")
    companions[1].on_exit(1)
    assert (len(services.failures), services.logged) == (1, ["Traceback"])
