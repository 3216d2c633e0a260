"""A worker's link to its driver, with the test as the driver."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from elastic.base.errors import EXIT_LINK_LOST, CheckpointError, LinkLostError
from elastic.link.bulk import Incoming, send_file
from elastic.link.wire import Message
from elastic.worker import download as downloading_
from elastic.worker import driver_link as sessions
from elastic.worker.driver_link import Download, DriverLink, PendingCheckpoint, new_page, read_page
from tests.elastic.far_end import SECRET, FarEnd, accepted
from tests.support.messages import pattern, wording
from tests.support.waiting import STILL_S


class Driver:
    """The other end of one worker's connection."""

    def __init__(self, folder: str = "") -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(STILL_S)
        self.page = new_page()
        environ = {
            "BFT_DRIVER": f"127.0.0.1:{self._server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_LEASE": "n1.3",
            "BFT_LOCAL_RANK": "2",
            "BFT_GENERATION": "5",
            "TMPDIR": folder,
        }
        with ThreadPoolExecutor() as pool:
            accepting = pool.submit(accepted, self._server)
            self.session = DriverLink.connect(environ, self.page)
            self.channel, self.hello = accepting.result(STILL_S)

    def next(self) -> Message:
        message = self.channel.receive()
        assert message is not None
        return message

    def transfer_connection(self) -> tuple[FarEnd, Message]:
        """The next connection that is for a checkpoint, and its hello."""
        channel, hello = accepted(self._server)
        assert (hello["role"], hello["lease"], hello["local_rank"]) == ("state", "n1.3", 2)
        return channel, hello

    def next_checkpoint(self, answer: str = "kept") -> tuple[Message, bytes]:
        """A checkpoint that comes; kept, unless another answer is to be given, or "" for none."""
        channel, hello = self.transfer_connection()
        incoming = Incoming(channel)
        content = b"".join(map(bytes, incoming.pieces()))
        if answer:
            channel.send({"op": answer})
        channel.close()
        return hello, content

    def offer(self, content: bytes, digest: str = "") -> Message:
        """Answers the question for a checkpoint with one of this content."""
        about = {"step": 5, "samples": 50, "sha256": digest or hashlib.sha256(content).hexdigest()}
        self.channel.send({"op": "fetched", **about, "size": len(content)})
        return {"op": "sending", **about, "bytes": len(content)}

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown()
        self.channel.close()
        self._server.close()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[int]:
    """The codes that workers would have ended this process with."""
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(sessions, "_exit", codes.put)
    monkeypatch.setattr(sessions, "LINK_LOST_S", 0.01)
    return codes


@pytest.fixture
def driver(exits: queue.SimpleQueue[int]) -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.session.ended(1)
    driver.hang_up()


def saved(step: int, payload: bytes = b"weights") -> PendingCheckpoint:
    return PendingCheckpoint(step, step * 10, writing(payload))


def writing(payload: bytes) -> Callable[[BinaryIO], None]:
    """How a checkpoint of these bytes is written."""

    def write(file: BinaryIO) -> None:
        file.write(payload)

    return write


def test_a_worker_says_who_it_is_before_anything_else(driver: Driver) -> None:
    own = {"lease": "n1.3", "incarnation": 0, "local_rank": 2, "pid": os.getpid()}
    until_1_1 = {"host": "n1.3.0"}  # what a driver of 0.1, which may outlive an upgrade, knows the worker by
    assert driver.hello == {"op": "hello", "role": "worker", **own, **until_1_1, "nonce": driver.hello["nonce"]}


def test_the_last_step_is_in_memory_that_outlives_a_kill() -> None:
    page = new_page()
    assert read_page(page) == (-1, 0.0)
    child = os.fork()
    if child == 0:
        DriverLink(None, page).step(41, 410, 0, 1, None)
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
    assert (first["generation"], again["generation"]) == ("5", "5")
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


def test_a_step_tells_what_was_saved_and_a_farewell_that_it_is_the_last(driver: Driver) -> None:
    driver.session.commit(saved(5))
    driver.session.step(7, 70, 0, 1, None)
    driver.session.farewell()
    step, farewell = driver.next(), driver.next()
    for message in (step, farewell):
        assert (message["step"], message["saved_step"], message["saved_samples"]) == (7, 5, 50)
    assert (farewell["first"], farewell["final"]) == (False, True)
    assert "final" not in step


def test_a_checkpoint_is_uploaded_once_and_a_newer_one_again(driver: Driver) -> None:
    driver.session.commit(saved(5, b"five"))
    driver.channel.send({"op": "ship"})
    message, payload = driver.next_checkpoint()
    assert (message["step"], message["samples"], payload) == (5, 50, b"five")
    driver.channel.send({"op": "ship"})
    assert driver.next() == {"op": "shipped", "step": 5}
    driver.session.commit(saved(6, b"six"))
    driver.channel.send({"op": "ship"})
    assert driver.next_checkpoint()[1] == b"six"


def test_regression_a_horovod_checkpoint_that_was_slow_to_send_was_sent_without_a_pause(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.worker.upload.UPLOAD_APART_S", 1000.0)
    driver.session.commit(saved(5, b"five"))
    driver.channel.send({"op": "ship", "soon": True})
    assert driver.next_checkpoint()[1] == b"five"
    driver.session.commit(saved(6, b"six"))
    driver.channel.send({"op": "ship", "soon": True})
    driver.session.commit(saved(7, b"seven"))
    driver.channel.send({"op": "ship"})
    assert driver.next_checkpoint()[1] == b"seven", "the one between had to wait, and is not waited for"


def test_regression_of_two_saves_at_one_step_the_second_was_not_sent(driver: Driver) -> None:
    for payload in (b"trained", b"trained and evaluated"):
        driver.session.commit(saved(5, payload))
        driver.channel.send({"op": "ship"})
        assert driver.next_checkpoint()[1] == payload


@pytest.mark.parametrize("code", [0, 3])
def test_regression_what_was_saved_just_before_the_end_was_not_uploaded(driver: Driver, code: int) -> None:
    driver.session.commit(saved(5))
    driver.session.upload_soon()
    with ThreadPoolExecutor() as pool:
        ending = pool.submit(driver.session.ended, code)
        assert driver.next_checkpoint()[1] == b"weights"
        assert ending.result(STILL_S) == code


def test_of_a_script_that_ended_well_rank_0_sends_its_last_checkpoint_unasked(driver: Driver) -> None:
    driver.session.commit(saved(5))
    driver.session.step(5, 50, 1, 2, None)
    driver.session.ended(0)
    driver.session.step(6, 60, 0, 2, None)
    with ThreadPoolExecutor() as pool:
        ending = pool.submit(driver.session.ended, 0)
        assert driver.next_checkpoint()[1] == b"weights"
        assert ending.result(STILL_S) == 0
    assert driver.next()["rank"] == 1


def test_a_checkpoint_that_the_driver_could_not_keep_is_uploaded_again(driver: Driver) -> None:
    driver.session.commit(saved(5, b"five"))
    for _ in range(2):
        driver.channel.send({"op": "ship"})
        channel, _ = driver.transfer_connection()
        driver.channel.send({"op": "unsaved", "step": 5})
        driver.channel.send({"op": "ping"})
        assert driver.next() == {"op": "pong"}
        channel.close()
    driver.channel.send({"op": "ship"})
    assert driver.next_checkpoint()[1] == b"five"


def test_a_worker_that_saved_nothing_says_so_instead_of_keeping_the_driver_waiting(driver: Driver) -> None:
    driver.channel.send({"op": "ship"})
    assert driver.next() == {"op": "nothing_saved"}


def test_commands_are_answered_while_the_main_thread_hangs_in_a_collective(driver: Driver) -> None:
    aborted = threading.Event()
    driver.session.on_abort = aborted.set
    driver.channel.send({"op": "ping"})
    assert driver.next() == {"op": "pong"}
    driver.channel.send({"op": "abort"})
    assert aborted.wait(STILL_S)
    driver.channel.send({"op": "pause"})
    assert driver.session.pause_requested.wait(STILL_S)


def test_saving_in_the_background_uploads_the_newest_checkpoint(driver: Driver) -> None:
    driver.session.commit(saved(1, b"one"))
    driver.session.upload_soon()
    assert driver.next_checkpoint()[1] == b"one"
    driver.session.commit(saved(2, b"two"))
    driver.session.upload_soon()
    assert driver.next_checkpoint()[1] == b"two"


def test_a_paused_worker_uploads_says_so_and_makes_no_further_step(driver: Driver) -> None:
    driver.session.commit(saved(8, b"eight"))
    resting = threading.Thread(target=driver.session.rest, daemon=True)
    resting.start()
    assert driver.next_checkpoint()[1] == b"eight"
    assert driver.next() == {"op": "paused"}
    driver.channel.send({"op": "ping"})
    assert driver.next() == {"op": "pong"}
    assert resting.is_alive()


def test_regression_steps_since_the_last_report_counted_as_stall_of_a_resize(driver: Driver) -> None:
    for step in (1, 2, 3):
        driver.session.step(step, step * 10, 0, 2, None)
    driver.session.commit(saved(3))
    threading.Thread(target=driver.session.rest, daemon=True).start()
    first, last = driver.next(), driver.next()
    assert (first["step"], first["first"]) == (1, True)
    assert (last["op"], last["step"], last["first"]) == ("step", 3, False)
    assert last["at_s"] == read_page(driver.page)[1]
    assert driver.next_checkpoint()[0]["step"] == 3
    assert driver.next()["op"] == "paused"


@pytest.mark.parametrize("shared", [True, False])
def test_the_checkpoint_of_a_suspended_trainer_is_downloaded_as_a_file(tmp_path: Path, shared: bool) -> None:
    driver = Driver(str(tmp_path) if shared else "")
    about = driver.offer(b"the checkpoint")
    with ThreadPoolExecutor() as pool:
        downloading = pool.submit(driver.session.download_checkpoint)
        assert driver.next() == {"op": "fetch"}
        channel, hello = driver.transfer_connection()
        assert hello["what"] == "fetch"
        kept = tmp_path / "kept"
        kept.write_bytes(b"the checkpoint")
        with kept.open("rb") as content:
            assert send_file(channel, about, content)
        file = downloading.result(STILL_S).file
    assert file is not None
    assert file.read() == b"the checkpoint"
    assert mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:3] == b"the"
    assert [path.name for path in tmp_path.glob("bft-state/state-*")] == [f"state-5-{about['sha256']}"] * shared
    driver.session.step(6, 60, 0, 1, None)  # by now all have it open, and the node's disk is for others too
    until_s = time.monotonic() + STILL_S
    while list(tmp_path.glob("bft-state/state-*")):
        assert time.monotonic() < until_s
        time.sleep(0.001)
    file.seek(0)
    assert file.read() == b"the checkpoint"
    assert driver.session.costs["load_bytes"] == 14
    assert driver.session.ended(0) == 0
    channel.close()
    driver.hang_up()


def test_a_first_start_downloads_nothing(driver: Driver) -> None:
    driver.channel.send({"op": "fetched", "none": True})
    assert driver.session.download_checkpoint() == Download()


# -- what must never be taken for a first start ---


def test_regression_a_checkpoint_that_could_not_be_read_was_taken_for_none(driver: Driver) -> None:
    driver.channel.send({"op": "fetched", "error": "state.pt: Stale file handle"})
    with pytest.raises(CheckpointError, match=r"state\.pt: Stale file handle; it is kept"):
        driver.session.download_checkpoint()
    driver.channel.send({"op": "fetched"})
    with pytest.raises(CheckpointError, match="cannot be understood"):
        driver.session.download_checkpoint()
    driver.channel.send({"op": "fetched", "none": True})
    assert driver.session.download_checkpoint() == Download(), "a try later may find out"


def test_regression_a_link_that_went_during_a_download_was_taken_for_a_first_start(
    driver: Driver, exits: queue.SimpleQueue[int]
) -> None:
    with ThreadPoolExecutor() as pool:
        downloading = pool.submit(driver.session.download_checkpoint)
        assert driver.next() == {"op": "fetch"}
        driver.channel.shutdown()
        with pytest.raises(LinkLostError, match="is gone"):
            downloading.result(STILL_S)
    assert exits.get(timeout=STILL_S) == EXIT_LINK_LOST
    with pytest.raises(LinkLostError):
        driver.session.download_checkpoint()


@pytest.mark.parametrize("how", ["cut short", "altered"])
def test_a_checkpoint_that_comes_cut_short_or_altered_is_never_loaded(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(downloading_, "_AGAIN_S", 0.0)
    with ThreadPoolExecutor() as pool:
        downloading = pool.submit(driver.session.download_checkpoint)
        for _ in range(3):
            assert driver.next() == {"op": "fetch"}
            about = driver.offer(b"weights")
            channel, _ = driver.transfer_connection()
            channel.send(about)
            channel.send_raw(b"wei" if how == "cut short" else b"WEIGHTS")
            channel.shutdown() if how == "cut short" else None
            assert (channel.receive() or {}).get("op") == (None if how == "cut short" else "altered")
            channel.close()
        if how == "cut short":
            assert driver.next() == {"op": "fetch"}, "the link holds, so it tries on"
            driver.channel.send({"op": "fetched", "none": True})
            assert downloading.result(STILL_S) == Download()
        else:
            with pytest.raises(
                CheckpointError,
                match=pattern("elastic.download.altered", error=wording("elastic.payload.altered"), altered=3),
            ):
                downloading.result(STILL_S)


# -- a worker without its link ---


def test_regression_a_worker_without_its_link_trained_on_and_dropped_every_save(
    driver: Driver, exits: queue.SimpleQueue[int], capfd: pytest.CaptureFixture[str]
) -> None:
    driver.session.commit(saved(5))
    driver.channel.shutdown()
    assert exits.get(timeout=STILL_S) == EXIT_LINK_LOST
    assert driver.session.attached
    driver.session.upload()
    assert not driver.session._uploader.arrived, "nobody has it"
    assert capfd.readouterr().err.count(wording("elastic.session.link_lost")) == 1


def test_a_failed_send_is_noticed_too(driver: Driver, exits: queue.SimpleQueue[int]) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError

    driver.session._channel.send = fail  # type: ignore[union-attr, method-assign]
    driver.session.step(1, 10, 0, 1, None)
    assert exits.get(timeout=STILL_S) == EXIT_LINK_LOST


@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_has_ended_keeps_its_code_when_the_driver_hangs_up_then(
    driver: Driver, exits: queue.SimpleQueue[int], code: int
) -> None:
    assert driver.session.ended(code) == code
    driver.channel.shutdown()
    assert driver.session._lost.wait(STILL_S)
    time.sleep(0.1)  # more than LINK_LOST_S here
    assert exits.empty()


def test_a_script_that_fails_for_want_of_the_link_did_not_fail_by_itself(driver: Driver) -> None:
    driver.channel.shutdown()
    assert driver.session._lost.wait(STILL_S)
    assert driver.session.ended(1) == EXIT_LINK_LOST
    assert driver.session.ended(0) == 0, "a script that came to its end has"


def test_regression_a_script_waited_for_an_answer_on_a_lost_link_until_its_output_was_cut_off(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FAREWELL_S", 10 * STILL_S)
    driver.channel.shutdown()
    assert driver.session._lost.wait(STILL_S)
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(driver.session.failed, "no link")
        try:
            failing.result(STILL_S)
        finally:
            driver.session._heard.set()


def test_a_script_that_chooses_the_code_of_a_lost_link_itself_says_so(driver: Driver) -> None:
    with ThreadPoolExecutor() as pool:
        ending = pool.submit(driver.session.ended, EXIT_LINK_LOST)
        assert driver.next() == {"op": "error", "text": "sys.exit(75)"}
        assert ending.result(STILL_S) == EXIT_LINK_LOST


def test_a_driver_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_PAUSES_S", (0.0, 0.0))
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        environ = {
            "BFT_DRIVER": f"127.0.0.1:{server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_LEASE": "n1.3",
            "BFT_LOCAL_RANK": "2",
        }
        connecting = pool.submit(DriverLink.connect, environ, None)
        for _ in range(2):
            server.accept()[0].close()
        channel, hello = accepted(server)
        session = connecting.result(STILL_S)
        assert hello["lease"] == "n1.3"
        assert session.ended(0) == 0
        channel.close()


def test_regression_steps_and_pongs_waited_for_a_checkpoint_on_its_way(driver: Driver) -> None:
    written, go_on = threading.Event(), threading.Event()

    def write(file: BinaryIO) -> None:
        file.write(b"giga")
        written.set()
        assert go_on.wait(STILL_S)
        file.write(b"bytes")

    driver.session.commit(PendingCheckpoint(1, 10, write))
    driver.session.upload_soon()
    with ThreadPoolExecutor() as pool:
        coming = pool.submit(driver.next_checkpoint)
        assert written.wait(STILL_S)
        driver.session.step(1, 10, 0, 1, None)
        driver.session.commit(saved(2, b"newer"))
        driver.channel.send({"op": "ship"})
        driver.channel.send({"op": "ping"})
        assert [driver.next()["op"], driver.next()["op"]] == ["step", "pong"]
        go_on.set()
        assert coming.result(STILL_S)[1] == b"gigabytes"
        hello, content = driver.next_checkpoint()
        assert (hello["step"], hello["last"], content) == (2, True, b"newer")


def test_a_checkpoint_that_cannot_be_serialized_is_told_of_and_does_not_end_the_side_thread(
    driver: Driver, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(file: BinaryIO) -> None:
        raise TypeError("cannot pickle a lock")

    driver.session.commit(PendingCheckpoint(5, 50, fail))
    for _ in range(2):
        driver.channel.send({"op": "ship"})
        channel, _ = driver.transfer_connection()
        assert driver.next() == {"op": "nothing_saved"}
        channel.close()
    driver.channel.send({"op": "ping"})
    assert driver.next() == {"op": "pong"}
    assert capfd.readouterr().err.count("cannot pickle a lock") == 1


def test_outside_bftd_a_session_does_nothing() -> None:
    session = DriverLink()
    session.step(1, 1, 0, 1, None)
    session.farewell()
    session.commit(saved(1))
    session.upload()
    assert session.download_checkpoint() == Download()
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
    assert ended.wait(STILL_S)


def test_a_driver_that_does_not_hear_holds_a_failing_worker_up_for_a_moment_only(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FAREWELL_S", 0.01)
    driver.session.failed("ValueError: no layer")
    DriverLink().failed("outside bftd")


def test_what_is_to_be_done_at_a_scripts_end_is_done_before_the_end_is_told() -> None:
    session = DriverLink()
    codes: list[int] = []
    session.on_end.append(codes.append)
    assert (session.ended(0), session.ended(3), codes) == (0, 3, [0, 3])
