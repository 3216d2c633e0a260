"""One run of Horovod's own driver, beside bftd's: what it waits for, and that waiting costs nothing."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from elastic.link.wire import Message, decode
from tests.support.messages import wording
from tests.support.waiting import STILL_S, until

pytestmark = [pytest.mark.slow, pytest.mark.horovod]


class Slot:
    """Where Horovod wants a worker."""

    rank = cross_rank = 0
    size = local_size = cross_size = 1

    def __init__(self, hostname: str, local_rank: int) -> None:
        self.hostname, self.local_rank = hostname, local_rank


class Out(io.BytesIO):
    """The pipe to bftd's driver."""

    def messages(self) -> list[Message]:
        return [decode(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def out() -> Out:
    return Out()


@pytest.fixture
def run(out: Out, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from elastic.backends.horovod import elastic_run as module

    monkeypatch.setattr(module, "_KILL_AFTER_S", 0.01)
    made = module.ElasticRun(1024, out)
    yield made
    made._driver.stop()


def hosts(run: Any, least: int, **slots: int) -> None:
    run.command({"op": "hosts", "hosts": slots, "least": least})


def test_who_waits_for_slots_goes_by_the_present_list_and_not_by_that_of_when_it_began(run: Any) -> None:
    hosts(run, 16, large=8, broken=8)
    run._driver._host_manager.blacklist("broken")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run._driver.wait_for_available_slots, 0)
        time.sleep(0.05)
        assert not waiting.done(), "one node of two is not allowed"
        hosts(run, 12, large=8, small=4)
        assert waiting.result(STILL_S).count_available_slots() == 12


def test_a_larger_node_than_the_first_ones_is_used_whole(run: Any) -> None:
    hosts(run, 1, small=1)
    hosts(run, 1, small=1, large=8, larger=2000)
    _, slots = run._driver._get_host_assignments(run._driver.wait_for_available_slots(0))
    assert len(slots) == 2009


def test_a_run_that_is_left_without_slots_ends_with_a_sentence_and_not_in_an_hour(run: Any, out: Out) -> None:
    run._driver._timeout = 0.05
    run.start()
    until("told", out.messages)
    [done] = out.messages()
    assert (done["op"], done["ok"], done["error"]) == (
        "done",
        False,
        wording("elastic.elastic_run.too_few_slots", least=0),
    )


def test_waiting_for_a_workers_end_is_one_wait_and_not_fifty_a_second(
    run: Any, out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastic.backends.horovod import elastic_run as module

    waits: list[float | None] = []

    class Counting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(timeout)

    class Worker(module._Worker):
        def __init__(self) -> None:
            super().__init__()
            self.ended = Counting()

    monkeypatch.setattr(module, "_Worker", Worker)
    with ThreadPoolExecutor() as pool:
        working = pool.submit(run._create_worker, Slot("n1.1.0", 0), [threading.Event(), threading.Event()])
        until("asked for", out.messages)
        time.sleep(0.1)
        run.command({"op": "exit", "host": "n1.1.0", "local_rank": 0, "rc": 3})
        assert working.result(STILL_S)[0] == 3
    assert waits == [None]
    assert run._workers == {}


def test_workers_of_a_host_that_horovod_gave_up_are_ended_and_no_others(run: Any, out: Out) -> None:
    with ThreadPoolExecutor() as pool:
        working = [
            pool.submit(run._create_worker, Slot(host, rank), [threading.Event()])
            for host, rank in (("n1.1.0", 0), ("n1.1.0", 1), ("n2.1.0", 0))
        ]
        until("asked for", lambda: len(out.messages()) == 3)
        run._driver._host_manager.blacklist("n1.1.0")
        until("killed", lambda: len(out.messages()) == 4)
        assert out.messages()[3] == {"op": "kill", "host": "n1.1.0"}
        # At the end all go, one order a host.
        run._driver.stop()
        until("killed", lambda: len(out.messages()) == 6)
        assert {message["host"] for message in out.messages()[4:]} == {"n1.1.0", "n2.1.0"}
        for host, rank in (("n1.1.0", 0), ("n1.1.0", 1), ("n2.1.0", 0)):
            run.command({"op": "exit", "host": host, "local_rank": rank, "rc": 0})
        assert all(one.result(STILL_S)[0] == 0 for one in working)


def test_a_worker_that_horovod_asks_for_as_it_stops_is_ended_too(run: Any, out: Out) -> None:
    stopped = threading.Event()
    stopped.set()
    with ThreadPoolExecutor() as pool:
        working = pool.submit(run._create_worker, Slot("n1.1.0", 0), [stopped])
        until("killed", lambda: len(out.messages()) == 2)
        run.command({"op": "exit", "host": "n1.1.0", "local_rank": 0, "rc": -9})
        assert working.result(STILL_S)[0] == -9


def test_gloos_time_out_grows_with_the_ranks_and_stays_what_the_user_may_replace(run: Any, out: Out) -> None:
    from elastic.backends.horovod.elastic_run import gloo_timeout_s
    from elastic.base.timing import GLOO_TIMEOUT_S

    assert gloo_timeout_s(1) == gloo_timeout_s(64) == GLOO_TIMEOUT_S
    # Each rank asks twice for each other one; a server that answers ten thousand times a second is not late.
    assert gloo_timeout_s(256) > 2 * 256 * 255 / 10_000
    with ThreadPoolExecutor() as pool:
        pool.submit(run._create_worker, Slot("n1.1.0", 0), [])
        until("asked for", out.messages)
        run.command({"op": "exit", "host": "n1.1.0", "local_rank": 0, "rc": 0})
    [asked] = out.messages()
    assert asked["defaults"] == {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout_s(1024))}
    assert asked["env"].keys().isdisjoint({"HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_GLOO_IFACE"})


@pytest.mark.parametrize("asked_before", [False, True])
def test_regression_a_lost_worker_that_asked_once_more_left_a_survivor_waiting_for_ever(
    run: Any, out: Out, asked_before: bool
) -> None:
    hosts(run, 1, n1=1, n2=1, n3=1)
    run.start()
    until("asked for", lambda: len(out.messages()) == 4)
    rounds = run._driver._worker_registry
    with ThreadPoolExecutor() as pool:
        if asked_before:
            overridden = pool.submit(rounds.record_ready, "n1", 0)
            until("recorded", lambda: ("n1", 0) in rounds.get("READY"))
        lost = pool.submit(rounds.record_failure, "n1", 0)
        until("recorded", lambda: ("n1", 0) in rounds.get("FAILURE"))
        with pytest.raises(RuntimeError):
            rounds.record_ready("n1", 0)
        if asked_before:
            with pytest.raises(RuntimeError):
                overridden.result(STILL_S)
        second = pool.submit(rounds.record_ready, "n2", 0)
        until("recorded", lambda: ("n2", 0) in rounds.get("READY"))
        assert {lost.done(), second.done()} == {False}, "a worker of three has not asked"
        rounds.record_ready("n3", 0)
        assert second.result(STILL_S) == lost.result(STILL_S)
        assert sorted(run._driver.host_assignments) == ["n2", "n3"]
        assert rounds.record_ready("n1", 0) == rounds.last_rendezvous(), "who is out is not waited for"
        pool.submit(run._driver.stop).result(STILL_S)
        until("killed", lambda: any(message["op"] == "kill" for message in out.messages()))
        for host in ("n1", "n2", "n3"):
            run.command({"op": "exit", "host": host, "local_rank": 0, "rc": 0})


def test_regression_a_worker_that_woke_while_its_round_ended_got_no_rank(
    run: Any, out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts(run, 1, n1=1, n2=1)
    run.start()
    until("asked for", lambda: len(out.messages()) == 3)
    rounds = run._driver._worker_registry
    original, woken, go_on = rounds.reset, threading.Event(), threading.Event()

    def slow_reset(size: int) -> None:
        original(size)
        with rounds._changed:
            rounds._changed.notify_all()
        woken.set()
        go_on.wait(STILL_S)

    monkeypatch.setattr(rounds, "reset", slow_reset)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rounds.record_ready, "n1", 0)
        until("recorded", lambda: ("n1", 0) in rounds.get("READY"))
        second = pool.submit(rounds.record_ready, "n2", 0)
        assert woken.wait(STILL_S)
        wait([first], 0.2)
        assert not first.done(), "the round has not ended"
        go_on.set()
        assert first.result(STILL_S) == second.result(STILL_S) == rounds.last_rendezvous() - 1
        pool.submit(run._driver.stop).result(STILL_S)
        for host in ("n1", "n2"):
            run.command({"op": "exit", "host": host, "local_rank": 0, "rc": 0})


def test_a_round_of_which_all_workers_failed_ends_the_run(run: Any, out: Out) -> None:
    hosts(run, 1, n1=1, n2=1)
    run.start()
    until("asked for", lambda: len(out.messages()) == 3)
    assert [message["op"] for message in out.messages()] == ["formed", "start", "start"]
    assert sorted(out.messages()[0]["hosts"]) == ["n1", "n2"]
    for host in ("n1", "n2"):
        run.command({"op": "exit", "host": host, "local_rank": 0, "rc": 1})
    until("told", lambda: out.messages()[-1]["op"] == "done")
    assert (out.messages()[-1]["ok"], out.messages()[-1]["codes"]) == (False, [1, 1])
