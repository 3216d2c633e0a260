"""What Elastic Horovod gets wrong and bftd engineers around, on a real cluster and at its own seams."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import Any

import pytest

from bftd.protocol.reports import CrashReport, LeaseReport, SuspendReport
from tests.elastic.cluster import EVERY, TrainerJob
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.horovod]


class Hosts:
    """Horovod's current hosts, as its driver hands them to a notification."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def count_available_slots(self) -> int:
        return self._slots

    @property
    def host_assignment_order(self) -> list[str]:
        return ["n1.1.0"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The subclass of Horovod's driver, with a list in place of the workers that it would notify."""
    import horovod.runner.elastic.driver as upstream

    from elastic.backends.horovod import elastic_run as module

    told: list[Any] = []
    monkeypatch.setattr(
        upstream.ElasticDriver, "_notify_workers_host_changes", lambda self, hosts, result: told.append(result)
    )
    monkeypatch.setattr(module, "_RECONCILE_S", 0.01)
    driver = module._Driver.__new__(module._Driver)
    driver._least = 2
    driver.told = told
    return driver


def test_a_removal_is_told_as_a_mixed_change_because_survivors_skip_the_synchronization_after_a_pure_one(
    driver: Any,
) -> None:
    from horovod.runner.elastic.worker import HostUpdateResult

    driver._notify_workers_host_changes(Hosts(2), HostUpdateResult.removed)
    driver._notify_workers_host_changes(Hosts(3), HostUpdateResult.added)
    assert driver.told == [HostUpdateResult.mixed, HostUpdateResult.mixed]


def test_workers_are_not_sent_into_a_reset_that_has_too_few_of_them(driver: Any) -> None:
    from horovod.runner.elastic.worker import HostUpdateResult

    driver._notify_workers_host_changes(Hosts(1), HostUpdateResult.removed)
    assert driver.told == []


def test_a_notification_is_repeated_because_one_that_meets_a_reset_is_lost(driver: Any) -> None:
    class Manager:
        current_hosts = Hosts(2)

    driver._host_manager, driver._shutdown, driver._listed = Manager(), threading.Event(), threading.Event()
    repeating = threading.Thread(target=driver._discover_hosts)
    repeating.start()
    until("it is told three times", lambda: len(driver.told) >= 3)
    driver._shutdown.set()
    repeating.join()


@pytest.mark.cluster
def test_additions_right_after_removals_and_during_resets_end_at_the_wanted_size(trainer: TrainerJob) -> None:
    trainer.count("horovod", "n1", "n2", "n3")
    # A removal-only update, then an addition: the newcomer must not wait alone in a synchronization.
    trainer.daemon.revoke("n3")
    trainer.trains_on(2)
    trainer.wait("n3 is back", lambda: trainer.state("n3") == "ended")
    trainer.daemon.grant("n3")
    trainer.trains_on(3)
    # Changes in the middle of the reset that an earlier one causes.
    trainer.daemon.grant("n4")
    trainer.wait("n4 is warm", lambda: trainer.state("n4") == "ready")
    trainer.daemon.revoke("n3")
    trainer.daemon.revoke("n2")
    trainer.trains_on(2, steps=2 * EVERY)
    assert {trainer.state("n1"), trainer.state("n4")} == {"working"}
    trainer.wait("given back", lambda: trainer.state("n2") == trainer.state("n3") == "ended")
    assert trainer.daemon.of(CrashReport) == []
    assert trainer.daemon.of(SuspendReport) == []
    rows = trainer.rows  # read once: training goes on
    assert [row["weight"] for row in rows] == [float(row["step"]) for row in rows]
    assert trainer.again == 0


@pytest.mark.cluster
def test_a_host_is_usable_again_after_its_worker_has_crashed(trainer: TrainerJob) -> None:
    trainer.count("horovod", "n1", "n2")
    for count, node in enumerate(("n2", "n1"), 1):
        [worker] = trainer.workers(node)
        worker.send_signal(signal.SIGKILL)
        trainer.crashed(count)
        trainer.trains_on(2)
    assert trainer.again <= 2 * EVERY
    assert trainer.daemon.finished is None
    assert {report.state for report in trainer.daemon.of(LeaseReport)} == {"placed", "ready", "working"}


def test_no_rank_waits_for_the_kernel_to_try_again_when_all_of_them_ask_the_rendezvous_at_once() -> None:
    from horovod.runner.http.http_server import RendezvousHandler

    from elastic.backends.horovod.rendezvous import QuickServer

    # It listens, but does not serve: what is accepted now is what the backlog holds.
    with QuickServer(("127.0.0.1", 0), RendezvousHandler, False) as server, contextlib.ExitStack() as stack:
        for _ in range(64):
            client = stack.enter_context(socket.socket())
            client.settimeout(0.5)
            client.connect(server.server_address)
