"""Notifications to workers, of whom one may never answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from elastic.backends.horovod.notifier import WorkerNotifier
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow


class Client:
    """A worker that answers when it is let."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.alive = threading.Event()

    def notify_hosts_updated(self, timestamp: int, _: Any) -> None:
        self.told.append(timestamp)
        assert self.alive.wait(STILL_S)
        if timestamp == 13:
            raise ConnectionResetError


def test_regression_a_rank_0_that_was_stopped_kept_horovod_from_ever_starting_another_worker() -> None:
    client = Client()
    notifier = WorkerNotifier(client)
    threads = threading.active_count()
    for timestamp in range(1, 101):
        notifier.notify_hosts_updated(timestamp, "mixed")  # returns, though nobody answers
    until("it is told", lambda: client.told == [1])
    assert threading.active_count() <= threads + 1
    client.alive.set()
    until("it is told", lambda: client.told == [1, 100])


def test_a_worker_that_is_gone_is_none_of_the_notifiers_business_and_the_next_one_is_sent() -> None:
    client = Client()
    client.alive.set()
    notifier = WorkerNotifier(client)
    for timestamp in (13, 14):
        notifier.notify_hosts_updated(timestamp, "mixed")
        until("it is told", lambda timestamp=timestamp: client.told[-1:] == [timestamp])  # type: ignore[misc]


@pytest.mark.horovod
def test_every_worker_of_an_elastic_run_is_notified_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import horovod.runner.elastic.driver as upstream

    from elastic.backends.horovod.elastic_run import _Driver

    monkeypatch.setattr(upstream, "WorkerNotificationClient", lambda *_: Client())
    driver = _Driver.__new__(_Driver)
    driver._worker_clients, driver._verbose = {}, 0
    driver.register_worker_server("n1.1.0", 0, {}, b"")
    assert isinstance(driver._worker_clients["n1.1.0", 0], WorkerNotifier)
