"""A worker's link to its driver, with the test as the driver."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic import session as sessions
from elastic.link.wire import Message
from elastic.session import Saved, Session, new_page, read_page
from tests.elastic.far_end import LIMIT_S, SECRET, accepted


class Driver:
    """The other end of one worker's connection."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.page = new_page()
        environ = {
            "BFT_DRIVER": f"127.0.0.1:{self._server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_HOST": "n1.3.0",
            "BFT_LOCAL_RANK": "2",
        }
        with ThreadPoolExecutor() as pool:
            accepting = pool.submit(accepted, self._server)
            self.session = Session.connect(environ, self.page)
            self.channel, self.hello = accepting.result(LIMIT_S)

    def next(self) -> Message:
        message = self.channel.receive()
        assert message is not None
        return message

    def next_state(self) -> tuple[Message, bytes]:
        message = self.next()
        assert message["op"] == "state", message
        return message, self.channel.receive_payload(message["bytes"])

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown()
        self.channel.close()
        self._server.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.hang_up()


def saved(step: int, payload: bytes = b"weights") -> Saved:
    return Saved(step, step * 10, lambda: payload)


def test_a_worker_says_who_it_is_before_anything_else(driver: Driver) -> None:
    expected = {"op": "hello", "role": "worker", "host": "n1.3.0", "local_rank": 2}
    assert driver.hello == {**expected, "pid": os.getpid(), "nonce": driver.hello["nonce"]}


def test_the_last_step_is_in_memory_that_outlives_a_kill() -> None:
    page = new_page()
    assert read_page(page) == (-1, 0.0)
    child = os.fork()
    if child == 0:
        Session(None, page).step(41, 410, 0, 1, None)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    step, at_s = read_page(page)
    assert step == 41
    assert at_s > 0


def test_the_first_step_of_a_group_is_told_at_once_and_others_once_in_a_while(driver: Driver) -> None:
    for step in (1, 2, 3):
        driver.session.step(step, step * 10, 0, 2, 0.5)
    driver.session.regrouped()
    driver.session.step(4, 40, 0, 3, 0.25, steps_lost=2)
    first, again = driver.next(), driver.next()
    assert (first["step"], first["first"], first["size"], first["loss"]) == (1, True, 2, 0.5)
    assert "previous_s" not in first
    assert (again["step"], again["first"], again["size"], again["steps_lost"]) == (4, True, 3, 2)
    assert again["previous_s"] <= again["at_s"]
    assert read_page(driver.page)[0] == 4


def test_only_rank_0_tells_of_later_steps(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REPORT_S", 0.0)
    driver.session.step(1, 10, 1, 2, None)
    driver.session.step(2, 20, 1, 2, None)
    driver.session.step(3, 30, 0, 2, None)
    assert [driver.next()["step"], driver.next()["step"]] == [1, 3]


def test_a_step_tells_what_was_saved_and_a_farewell_counts_what_was_not(driver: Driver) -> None:
    driver.session.commit(saved(5))
    driver.session.step(7, 70, 0, 1, None)
    driver.session.farewell()
    step, farewell = driver.next(), driver.next()
    assert (step["saved_step"], step["saved_samples"]) == (5, 50)
    assert (farewell["saved_step"], farewell["saved_samples"], farewell["first"]) == (7, 70, False)


def test_a_state_is_shipped_once_and_a_newer_one_again(driver: Driver) -> None:
    driver.session.commit(saved(5, b"five"))
    driver.channel.send({"op": "ship"})
    message, payload = driver.next_state()
    assert (message["step"], message["samples"], payload) == (5, 50, b"five")
    driver.channel.send({"op": "ship"})
    assert driver.next() == {"op": "shipped", "step": 5}
    driver.session.commit(saved(6, b"six"))
    driver.channel.send({"op": "ship"})
    assert driver.next_state()[1] == b"six"


def test_a_worker_that_saved_nothing_says_so_instead_of_keeping_the_driver_waiting(driver: Driver) -> None:
    driver.channel.send({"op": "ship"})
    assert driver.next() == {"op": "nothing_saved"}


def test_commands_are_answered_while_the_main_thread_hangs_in_a_collective(driver: Driver) -> None:
    aborted = threading.Event()
    driver.session.on_abort = aborted.set
    driver.channel.send({"op": "ping"})
    assert driver.next() == {"op": "pong"}
    driver.channel.send({"op": "abort"})
    assert aborted.wait(LIMIT_S)
    driver.channel.send({"op": "pause"})
    assert driver.session.pause_requested.wait(LIMIT_S)


def test_saving_in_the_background_ships_the_newest_state(driver: Driver) -> None:
    driver.session.commit(saved(1, b"one"))
    driver.session.ship_soon()
    assert driver.next_state()[1] == b"one"
    driver.session.commit(saved(2, b"two"))
    driver.session.ship_soon()
    assert driver.next_state()[1] == b"two"


def test_shipping_in_passing_stays_a_small_share_of_the_work(driver: Driver) -> None:
    driver.session.commit(saved(1, b"one"))
    driver.session.ship_in_passing()
    assert driver.next_state()[1] == b"one"
    while driver.session._next_ship_s == 0.0:
        time.sleep(0.001)
    driver.session.commit(saved(2, b"two"))
    driver.session.ship_in_passing()
    driver.channel.send({"op": "ping"})
    assert driver.next() == {"op": "pong"}
    driver.session._next_ship_s = 0.0
    driver.session.ship_in_passing()
    assert driver.next_state()[1] == b"two"


def test_a_paused_worker_ships_says_so_and_makes_no_further_step(driver: Driver) -> None:
    driver.session.commit(saved(8, b"eight"))
    resting = threading.Thread(target=driver.session.rest, daemon=True)
    resting.start()
    assert driver.next_state()[1] == b"eight"
    assert driver.next() == {"op": "paused"}
    driver.channel.send({"op": "ping"})
    assert driver.next() == {"op": "pong"}
    assert resting.is_alive()


def test_the_state_of_a_suspended_trainer_is_fetched(driver: Driver) -> None:
    driver.channel.send({"op": "fetched"}, b"the state")
    assert driver.session.fetch_state() == b"the state"
    assert driver.next() == {"op": "fetch"}


def test_a_first_start_fetches_nothing(driver: Driver) -> None:
    driver.channel.send({"op": "fetched", "bytes": 0})
    assert driver.session.fetch_state() is None


def test_training_goes_on_when_the_driver_hangs_up(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REPORT_S", 0.0)
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    driver.hang_up()
    step = 0
    while driver.session.attached:
        step += 1
        driver.session.step(step, step, 0, 1, None)
        assert step < 1_000_000
    driver.session.commit(saved(step))
    driver.session.ship()
    assert driver.session.fetch_state() is None
    assert failures == []


def test_outside_bftd_a_session_does_nothing() -> None:
    session = Session()
    session.step(1, 1, 0, 1, None)
    session.farewell()
    session.commit(saved(1))
    session.ship()
    assert session.fetch_state() is None
    assert not session.attached


def test_a_script_that_fails_is_told_of_before_its_worker_goes_on_to_its_end(driver: Driver) -> None:
    ended = threading.Event()

    def fail() -> None:
        driver.session.failed("ä line\n" * 5000 + "ValueError: no layer\n")
        ended.set()

    threading.Thread(target=fail, daemon=True).start()
    message = driver.next()
    assert message["op"] == "error"
    assert len(message["text"].encode()) <= sessions.ERROR_BYTES
    assert len(message["text"].encode()) > sessions.ERROR_BYTES - 20
    assert message["text"].startswith("ä line\n")
    assert message["text"].endswith("ä line\nValueError: no layer\n")
    assert not ended.is_set()
    driver.channel.send({"op": "heard"})
    assert ended.wait(LIMIT_S)


def test_a_driver_that_does_not_hear_holds_a_failing_worker_up_for_a_moment_only(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FAREWELL_S", 0.01)
    driver.session.failed("ValueError: no layer")
    Session().failed("outside bftd")
