"""How the torchrun back-end follows the driver's will, with the helper process beside the driver played by the test."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from elastic.backends.torchrun import blame
from elastic.backends.torchrun import driver as torchruns
from elastic.backends.torchrun.driver import TorchrunBackend
from elastic.driver.pilots.launcher import Pilot
from tests.elastic.backends.stage import FakeCompanion, FakeServices, pilot, started, told
from tests.elastic.fakes import ops, settings_for, until
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def companions(monkeypatch: pytest.MonkeyPatch) -> list[FakeCompanion]:
    monkeypatch.setattr(FakeCompanion, "made", [])
    monkeypatch.setattr(torchruns, "Companion", FakeCompanion)
    return FakeCompanion.made


@pytest.fixture
def services(tmp_path: Path) -> FakeServices:
    return FakeServices(settings_for(tmp_path, "1-8"))


@pytest.fixture
def backend(services: FakeServices) -> AbstractAsyncContextManager[TorchrunBackend]:
    return started(services, TorchrunBackend)


async def gathered(backend: TorchrunBackend, *members: Pilot) -> None:
    """Forms a generation of these pilots: each comes to the rendezvous once it is asked to."""
    forming = asyncio.create_task(backend.set_members(members))
    seen = {member.lease: len(told(member)) for member in members if member.lease in backend._invited}
    await until("they are called", lambda: all(len(told(one)) > seen.get(one.lease, 0) for one in members))
    for member in members:
        backend.received(member, {"op": "join", "generation": -1})
    await forming


async def again(backend: TorchrunBackend, *members: Pilot) -> None:
    """Forms a generation of nodes that were in one before: each comes once it is told to stop what it does."""
    forming = asyncio.create_task(backend.set_members(members))
    for member in members:
        if member.lease not in backend._waiting:
            await until("it is called", lambda member=member: told(member)[-1]["op"] == "regroup")  # type: ignore[misc]
            backend.received(member, {"op": "join", "generation": 1})
    await forming


def ranks(*members: Pilot) -> list[tuple[int, int]]:
    return [(told(member)[-1]["rank"], told(member)[-1]["nodes"]) for member in members]


async def test_torchruns_ranks_are_the_drivers_and_each_generation_has_a_store_of_its_own(
    companions: list[FakeCompanion], backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    assert ranks(n1, n2) == [(0, 2), (1, 2)]
    await gathered(backend, n2)
    assert ranks(n2) == [(0, 1)]
    assert services.starts == [{n1.lease, n2.lease}, {n2.lease}]
    assert [m["generation"] for m in companions[0].commands] == [1, 2]
    assert services.saves == [True]
    assert ops(n1.agent)[-1] == "regroup"  # type: ignore[arg-type]
    assert not backend.uses(n1)


async def test_after_a_crash_the_same_members_form_a_new_generation_without_waiting_for_a_boundary(
    companions: list[FakeCompanion], backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    # The peer of a killed worker fails as well, and may be heard of first: the trainer is told of both at once.
    backend.received(n2, {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0})
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": -9, "step": 4, "at_s": 1.0})
    backend.received(n1, {"op": "join", "generation": 1})
    # The next group may take its first step before anybody is blamed.
    assert services.broken_at == 4
    await until("both are told", lambda: services.crashes)
    assert services.crashes == [("n2", 1), ("n1", -9)]
    forming = asyncio.create_task(backend.set_members([n1, n2]))
    await until("the other is called", lambda: told(n2)[-1]["op"] == "regroup")
    backend.received(n2, {"op": "join", "generation": 1})
    await forming
    assert ranks(n1, n2) == [(0, 2), (1, 2)]
    assert services.saves == [False]


async def test_a_script_that_fails_everywhere_counts_against_every_node_once(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    for failed in (n2, n1):
        backend.received(failed, {"op": "exit", "local_rank": 0, "rc": 3, "step": -1, "at_s": 0.0})
    await until("they are counted", lambda: services.crashes)
    assert sorted(services.crashes) == [("n1", 3), ("n2", 3)]


async def test_regression_the_worker_that_failed_was_stopped_before_it_could_say_so(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    """It had taken the group down first, so its peers' ends were heard before its own."""
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2, n3)
    for failed in (n2, n3):
        backend.received(failed, {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0})
        backend.received(failed, {"op": "join", "generation": 1})
    forming = asyncio.create_task(backend.set_members([n1, n2, n3]))
    await asyncio.sleep(blame._BLAME_S / 4)
    assert told(n1)[-1]["op"] == "rendezvous"
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 5, "step": 4, "at_s": 1.0})
    backend.received(n1, {"op": "join", "generation": 1})
    await forming
    assert services.crashes == [("n2", 1), ("n3", 1), ("n1", 5)]
    assert [m["op"] for m in told(n1)][-2:] == ["rendezvous", "rendezvous"]


async def test_a_node_lost_on_its_way_to_the_rendezvous_is_not_waited_for(backend: TorchrunBackend) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    forming = asyncio.create_task(backend.set_members([n1, n2]))
    await until("called", lambda: told(n2))
    backend.received(n1, {"op": "join", "generation": -1})
    n2.leaving = True
    backend.lost(n2)
    await forming
    assert not backend.running
    await backend.set_members([n1])
    assert ranks(n1) == [(0, 1)]


async def test_a_node_that_does_not_come_to_the_rendezvous_is_given_back(
    monkeypatch: pytest.MonkeyPatch, services: FakeServices
) -> None:
    monkeypatch.setattr(torchruns, "_JOIN_S", 0.02)
    async with started(services, TorchrunBackend) as backend:
        n1 = pilot("n1")
        await backend.set_members([n1])
        assert n1.expiring
        assert not backend.running


async def test_a_crash_after_others_are_done_is_no_success_and_all_begin_anew(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    backend.received(n2, {"op": "done"})
    # Rank 0 fails in its final evaluation.
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 3, "step": 9, "at_s": 1.0})
    await until("it is blamed", lambda: services.crashes)
    assert services.crashes == [("n1", 3)]
    assert services.ended is None
    await again(backend, n1, n2)
    assert ranks(n1, n2) == [(0, 2), (1, 2)]
    for member in (n1, n2):
        assert services.ended is None
        backend.received(member, {"op": "done"})
    assert services.ended == (0, "training is complete")


@pytest.mark.parametrize("heard_first", ["the end", "a failure"])
async def test_regression_who_failed_since_another_rank_had_ended_with_0_was_blamed(
    heard_first: str, backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1", workers=2), pilot("n2", workers=2), pilot("n3")
    await gathered(backend, n1, n2, n3)
    said = {n2: {"op": "done", "step": 40}, n3: {"op": "exit", "local_rank": 0, "rc": 1, "step": 40, "at_s": 1.0}}
    for one in (n2, n3) if heard_first == "the end" else (n3, n2):
        backend.received(one, said[one])
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 1, "step": 40, "at_s": 1.0})
    await until("they are told", lambda: services.crashes)
    assert set(services.early) == {wording("elastic.driver.ended_with_0", rank=2, at=" at step 40")}
    # Nothing of it is left in the next group.
    services.early.clear()
    await again(backend, n1, n2, n3)
    backend.received(n1, {"op": "exit", "local_rank": 1, "rc": 1, "step": 41, "at_s": 1.0, "ended": 0})
    backend.received(n2, {"op": "done", "step": 41})
    await until("it is told", lambda: services.early)
    assert services.early == [wording("elastic.driver.ended_with_0", rank=0, at=" at step 41")]
    await again(backend, n1, n2, n3)
    backend.received(n1, {"op": "exit", "local_rank": 1, "rc": 1, "step": 42, "at_s": 1.0})
    await until("it is told", lambda: len(services.early) == 2)
    assert services.early[-1] == ""
    assert services.ended is None


async def test_a_node_taken_after_others_are_done_is_no_success_and_the_rest_begins_anew(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    backend.received(n2, {"op": "done"})
    # Rank 0's node goes while it writes the final model.
    n1.leaving = True
    backend.lost(n1)
    assert services.ended is None
    await again(backend, n2)
    assert ranks(n2) == [(0, 1)]
    backend.received(n2, {"op": "done"})
    assert services.ended == (0, "training is complete")
    assert services.crashes == []


async def test_who_is_done_may_go_and_the_others_end_undisturbed(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2, n3)
    backend.received(n2, {"op": "done"})
    backend.received(n3, {"op": "done"})
    before = told(n1)
    # Slurm takes one, the daemon another.
    n2.leaving = True
    backend.lost(n2)
    await backend.set_members([n1])
    assert not backend.uses(n2)
    assert not backend.uses(n3)
    assert told(n1) == before
    assert services.saves == []
    backend.received(n1, {"op": "done"})
    assert services.ended == (0, "training is complete")


async def test_regression_a_failure_after_the_node_of_a_done_member_had_gone_was_nobodys(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    """A pilot is told lost when its agent goes and when its allocation ends; the second one excused all others."""
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2, n3)
    for done in (n2, n3):
        backend.received(done, {"op": "done"})
    n2.leaving = True
    backend.lost(n2)
    backend.lost(n2)
    await backend.set_members([n1])
    backend.lost(n3)
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 3, "step": 9, "at_s": 1.0})
    assert services.broken_at == 9
    await until("it is counted", lambda: services.crashes)
    assert services.crashes == [("n1", 3)]


async def test_who_was_done_and_left_out_comes_to_a_later_rendezvous(backend: TorchrunBackend) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    backend.received(n2, {"op": "done"})
    await backend.set_members([n1])
    assert told(n2)[-1]["op"] == "regroup"
    backend.received(n2, {"op": "join", "generation": 1})
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 1, "step": 9, "at_s": 1.0})
    await again(backend, n1, n2)
    assert ranks(n1, n2) == [(0, 2), (1, 2)]


async def test_regression_a_group_that_ended_well_while_it_was_to_be_stopped_did_its_last_steps_again(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2)
    forming = asyncio.create_task(backend.set_members([n1, n2, n3]))
    await until("the newcomer is called", lambda: told(n3))
    backend.received(n1, {"op": "done"})
    assert services.ends == []
    backend.received(n2, {"op": "done"})
    assert [code for code, _ in services.ends] == [0]
    forming.cancel()


@pytest.mark.parametrize("fate", ["taken", "failed", "stopped"])
async def test_a_group_of_which_one_did_not_end_well_while_it_was_stopped_is_not_complete(
    fate: str, backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2)
    forming = asyncio.create_task(backend.set_members([n1, n2, n3]))
    await until("the newcomer is called", lambda: told(n3))
    if fate == "taken":
        backend.lost(n2)
    elif fate == "failed":
        backend.received(n2, {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0})
    else:
        backend.received(n2, {"op": "join", "generation": 1})
    backend.received(n1, {"op": "done"})
    assert services.ends == []
    forming.cancel()


async def test_regression_scripts_that_ended_with_0_in_their_sigterm_handlers_as_all_nodes_were_taken_were_a_success(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2)
    for taken in (n1, n2):
        taken.leaving = True
        backend.received(taken, {"op": "done"})
    assert list(backend.finishing) == []
    for taken in (n1, n2):
        backend.lost(taken)
    assert (services.ends, services.crashes) == ([], [])
    await gathered(backend, n3)
    backend.received(n3, {"op": "done"})
    assert services.ended == (0, "training is complete")


async def test_newcomers_do_not_have_the_last_steps_done_again(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2)
    backend.received(n2, {"op": "done"})
    await backend.set_members([n1, n2, n3])
    assert not backend.uses(n3)
    assert told(n3) == []
    assert services.saves == []


async def test_regression_a_newcomer_in_the_place_of_one_that_was_done_had_the_last_steps_done_again(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2)
    assert list(backend.finishing) == []
    backend.received(n2, {"op": "done"})
    n2.leaving = True
    backend.lost(n2)
    assert list(backend.finishing) == [n1]
    await backend.set_members([n1, n3])
    assert told(n3) == []
    assert services.saves == []
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 3, "step": 9, "at_s": 1.0})
    assert list(backend.finishing) == []
    await gathered(backend, n1, n3)
    assert ranks(n1, n3) == [(0, 2), (1, 2)]


async def test_ranks_are_counted_by_each_nodes_own_number_of_workers(backend: TorchrunBackend) -> None:
    members = [pilot("n1", workers=2), pilot("n2", workers=1), pilot("n3", workers=4)]
    await gathered(backend, *members)
    assert [(told(one)[-1]["first_rank"], told(one)[-1]["world"]) for one in members] == [(0, 7), (2, 7), (3, 7)]


async def test_workers_that_a_lost_node_takes_along_are_no_crash_whichever_is_heard_first(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
    await gathered(backend, n1, n2, n3)
    exit_of_a_peer = {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0}
    backend.received(n1, exit_of_a_peer)
    n2.leaving = True
    backend.lost(n2)
    backend.received(n3, exit_of_a_peer)
    await asyncio.sleep(2 * blame._BLAME_S)
    assert services.crashes == []


async def test_workers_that_end_because_others_were_stopped_for_a_resize_are_no_crash(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    forming = asyncio.create_task(backend.set_members([n1]))
    await until("stopped", lambda: told(n2)[-1]["op"] == "regroup")
    # Said before it was heard that all are to stop.
    backend.received(n1, {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0})
    backend.received(n1, {"op": "join", "generation": 1})
    await forming
    await asyncio.sleep(2 * blame._BLAME_S)
    assert services.crashes == []
    assert services.broken_at is None


async def test_a_member_whose_workers_could_not_be_started_is_not_taken_for_one_that_trains(
    backend: TorchrunBackend, services: FakeServices
) -> None:
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    woken = services.wakes
    backend.received(n1, {"op": "join", "generation": 1})
    assert services.wakes > woken
    forming = asyncio.create_task(backend.set_members([n1, n2]))
    await until("the other is called", lambda: told(n2)[-1]["op"] == "regroup")
    backend.received(n2, {"op": "join", "generation": 1})
    await forming
    assert ranks(n1, n2) == [(0, 2), (1, 2)]


async def test_the_stores_secret_goes_to_no_node(
    companions: list[FakeCompanion], backend: TorchrunBackend, services: FakeServices
) -> None:
    n1 = pilot("n1")
    await gathered(backend, n1)
    secret = services.settings.secret
    assert len(secret) == 64
    assert [message["secret"] for message in companions[0].commands] == [secret]
    assert secret not in repr(told(n1))
    assert secret not in repr(services.settings)
    assert secret not in repr(companions[0].argv)


async def test_a_store_that_does_not_start_ends_the_trainer_with_one_line(
    companions: list[FakeCompanion], monkeypatch: pytest.MonkeyPatch, services: FakeServices
) -> None:
    monkeypatch.setattr(torchruns, "_STORE_S", 0.02)
    monkeypatch.setattr(FakeCompanion, "send", lambda self, message: None)
    async with started(services, TorchrunBackend) as backend:
        n1 = pilot("n1")
        backend.received(n1, {"op": "join", "generation": -1})
        await backend.set_members([n1])
        assert not backend.running
        assert services.ended
        assert services.ended[0] == 1
        assert says(services.ended[1], "elastic.driver.store_late", limit_s=0.02)


async def test_a_store_that_cannot_be_opened_ends_the_trainer_with_what_is_wrong(
    companions: list[FakeCompanion], backend: TorchrunBackend, services: FakeServices
) -> None:
    companions[0].on_message({"op": "failed", "text": "Too many open files"})
    assert services.ended == (1, wording("elastic.driver.store_unreachable", text="Too many open files"))


async def test_a_store_that_cannot_run_ends_the_trainer_with_one_line_that_names_the_interpreter(
    companions: list[FakeCompanion], backend: TorchrunBackend, services: FakeServices
) -> None:
    companions[0].on_exit(1)
    assert services.ended
    assert services.ended[0] == 1
    assert says(services.ended[1], "elastic.driver.store_ended", python="/usr/bin/python3")


async def test_regression_the_next_group_was_formed_with_the_node_that_was_about_to_be_given_back(
    tmp_path: Path,
) -> None:
    """Its workers failed again meanwhile, and the peers of theirs were taken for the next ones to fail."""

    class Strict(FakeServices):
        def crashed(self, pilot: Pilot, rc: int, early: str = "") -> None:
            super().crashed(pilot, rc, early)
            pilot.expiring = True

    services = Strict(settings_for(tmp_path, "1-8"))
    backend = TorchrunBackend(services)
    await backend.start()
    n1, n2 = pilot("n1"), pilot("n2")
    await gathered(backend, n1, n2)
    backend.received(n2, {"op": "exit", "local_rank": 0, "rc": 1, "step": 4, "at_s": 1.0})
    before = [len(told(one)) for one in (n1, n2)]
    await gathered(backend, n1, n2)
    assert services.crashes == [("n2", 1)]
    said = [message["op"] for one, seen in zip((n1, n2), before, strict=True) for message in told(one)[seen:]]
    assert "rendezvous" not in said
    assert services.wakes
