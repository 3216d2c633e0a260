"""What the kernel says of real processes, and who is ended for it."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elastic.base.timing import BUSY_TIMES
from elastic.node import hang_detection
from elastic.node.hang_detection import HangDetector, Vitals, descends, kill, vitals_of
from tests.support.messages import wording
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

FROZEN_S = 10.0

SPIN = "while True: pass"
WAIT = "import time; time.sleep(1000)"
READ = "f = open('/dev/zero', 'rb', buffering=0); import time\nwhile True: f.read(1); time.sleep(0.05)"


class Worker:
    """A process that is silent to the driver, judged by a watcher whose clock the test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.answered_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.watcher = HangDetector(FROZEN_S, clock=lambda: self.now_s)
        # as old as any silence; how old a process is has a test of its own
        monkeypatch.setattr(HangDetector, "age_s", lambda _, seen: 1e9)

    def start(self, script: str) -> int:
        self.process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{script}"], stdout=subprocess.PIPE)
        assert self.process.stdout
        self.process.stdout.readline()
        return self.process.pid

    def silent(
        self, pid: int, length_s: float, *, stepped: bool = True, every_s: float = 2.0, works: bool = False
    ) -> list[dict[str, Any]]:
        """The silence goes on for so long; what the driver is told. One that `works` has the time to."""
        told = []
        for _ in range(round(length_s / every_s)):
            self.now_s += every_s
            before = vitals_of(pid)
            time.sleep(0.05)  # what runs uses its CPU meanwhile
            if works and before:
                until_it_worked(pid, before, 0.015 * every_s)
            look = {"op": "look", "pid": pid, "silent_s": self.now_s - self.answered_s, "stepped": stepped}
            if said := self.watcher.look(os.getpid(), look):
                told.append(said)
        return told

    def end(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout
            self.process.stdout.close()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    worker = Worker(monkeypatch)
    yield worker
    worker.end()


def until_it_worked(pid: int, before: Vitals, cpu_s: float) -> None:
    """It has used so much of a CPU, or read something: a busy machine may let it wait for its turn."""
    deadline_s = time.monotonic() + STILL_S
    while (seen := vitals_of(pid)) and seen.cpu_s - before.cpu_s <= max(cpu_s, 0.02) and seen.work <= before.work:
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.01)


def until_state(pid: int, states: str) -> None:
    until("its state", lambda: (seen := vitals_of(pid)) is not None and seen.state in states)


def test_a_stopped_worker_is_killed_once_it_was_silent_for_long_enough(worker: Worker) -> None:
    pid = worker.start(SPIN)
    os.kill(pid, signal.SIGSTOP)
    until_state(pid, "T")
    assert worker.silent(pid, FROZEN_S - 2.0) == []
    [told] = worker.silent(pid, 2.0)
    assert (told["verdict"], told["why"], told["pid"]) == ("killed", "it is stopped", pid)
    assert worker.process
    assert worker.process.wait(STILL_S) == -signal.SIGKILL
    assert worker.silent(pid, 4.0) == [], "there is nobody any more"


def test_a_worker_that_waits_without_a_sign_of_life_is_killed_later(worker: Worker) -> None:
    pid = worker.start(WAIT)
    assert worker.silent(pid, FROZEN_S) == []
    [told] = worker.silent(pid, 4.0)
    assert told["verdict"] == "killed"
    assert told["why"] == wording("elastic.vitals.did_nothing", still_s=10)
    assert worker.process
    assert worker.process.wait(STILL_S) == -signal.SIGKILL


def test_a_worker_that_waits_before_its_first_step_is_left_alone_but_a_stopped_one_is_not(worker: Worker) -> None:
    pid = worker.start(WAIT)
    assert worker.silent(pid, FROZEN_S * 3, stepped=False) == []
    os.kill(pid, signal.SIGSTOP)
    until_state(pid, "T")
    assert [told["why"] for told in worker.silent(pid, FROZEN_S, stepped=False)] == ["it is stopped"]


@pytest.mark.parametrize("script", [SPIN, READ], ids=["computes", "reads"])
def test_a_worker_at_work_is_left_alone_and_told_as_busy(worker: Worker, script: str) -> None:
    pid = worker.start(script)
    told = worker.silent(pid, FROZEN_S * 3, every_s=1.0, works=True)
    assert {(said["verdict"], said["why"]) for said in told} == {("busy", wording("elastic.vitals.at_work"))}
    assert worker.process
    assert worker.process.poll() is None


def test_a_worker_that_spins_for_ever_is_killed_in_the_end(worker: Worker) -> None:
    pid = worker.start(SPIN)
    told = worker.silent(pid, BUSY_TIMES * FROZEN_S + 40.0, every_s=20.0)
    assert [said["verdict"] for said in told][-1] == "killed"
    assert told[-1]["silent_s"] >= BUSY_TIMES * FROZEN_S
    assert worker.process
    assert worker.process.wait(STILL_S) == -signal.SIGKILL


def test_regression_reading_a_data_set_in_one_call_was_death(worker: Worker) -> None:
    """The side thread is silent while json.loads holds Python's lock, and the kernel sees a process at work."""
    silence, over = [0.0], threading.Event()

    def side() -> None:
        last_s, is_over = time.monotonic(), False
        while not is_over:  # and once more at the end: what is over when this thread wakes counts too
            is_over = over.wait(0.005)
            now_s = time.monotonic()
            silence[0], last_s = max(silence[0], now_s - last_s), now_s

    sentence = json.dumps([{"id": number, "tokens": list(range(20))} for number in range(10_000)])[1:-1]
    call_s, times, text = 0.0, 1, ""
    while call_s < 0.4:  # as many as this machine needs to be long at it, however fast it is
        times *= 2
        text = f"[{','.join([sentence] * times)}]"
        began_s = time.monotonic()
        json.loads(text)
        call_s = time.monotonic() - began_s
    thread = threading.Thread(target=side, daemon=True)
    gc.disable()  # hypothesis looks at every collection, in Python: the lock would change hands within the call
    thread.start()
    before = vitals_of(os.getpid())
    began_s = time.monotonic()
    json.loads(text)
    call_s = time.monotonic() - began_s
    after = vitals_of(os.getpid())
    gc.enable()
    over.set()
    thread.join()
    assert before
    assert after
    assert silence[0] > call_s / 2, "nothing of this process answered meanwhile"
    assert after.cpu_s - before.cpu_s > hang_detection._LIVELY_SHARE * silence[0]


def test_after_an_answer_the_watch_begins_anew(worker: Worker) -> None:
    pid = worker.start(WAIT)
    worker.silent(pid, FROZEN_S)
    worker.answered_s = worker.now_s - 1.0
    worker.now_s += 4.0
    assert worker.silent(pid, FROZEN_S - 2.0) == []
    assert [told["verdict"] for told in worker.silent(pid, 6.0)] == ["killed"]


def test_only_what_the_node_process_started_is_ever_killed(worker: Worker) -> None:
    pid = worker.start(WAIT)
    node = subprocess.Popen([sys.executable, "-c", WAIT])
    try:
        for now_s in range(2, 100, 2):
            worker.now_s = float(now_s)
            look = {"op": "look", "pid": pid, "silent_s": float(now_s), "stepped": True}
            assert worker.watcher.look(node.pid, look) is None
            assert worker.watcher.look(node.pid, {**look, "pid": 1}) is None
            assert worker.watcher.look(node.pid, {**look, "pid": 2**22 + 1}) is None
        assert worker.process
        assert worker.process.poll() is None
    finally:
        node.kill()
        node.wait()


def test_a_process_that_is_younger_than_the_silence_is_not_the_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch)
    monkeypatch.undo()
    try:
        pid = worker.start(WAIT)
        assert worker.silent(pid, FROZEN_S * 3) == []
        assert worker.process
        assert worker.process.poll() is None
    finally:
        worker.end()


def test_a_kill_never_reaches_another_process_of_the_same_id(worker: Worker) -> None:
    pid = worker.start(WAIT)
    seen = vitals_of(pid)
    assert seen
    assert not kill(pid, seen.began_s - 1.0)
    assert not kill(2**22 + 1, seen.began_s)
    assert worker.process
    assert worker.process.poll() is None
    assert kill(pid, seen.began_s)
    assert worker.process.wait(STILL_S) == -signal.SIGKILL


def test_the_name_of_a_process_cannot_pretend_to_be_its_state() -> None:
    script = "open('/proc/self/comm', 'w').write(') T 1 0 0'); print(flush=True); import time; time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        seen = vitals_of(process.pid)
        assert seen
        assert (seen.parent, seen.stopped) == (os.getpid(), False)
    finally:
        process.kill()
        process.communicate()


def test_descent_goes_through_what_stands_in_between() -> None:
    script = f"sleep 1000 & echo $!; wait; {sys.executable}"
    shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert shell.stdout
        grandchild = int(shell.stdout.readline())
        assert descends(grandchild, os.getpid())
        assert descends(grandchild, shell.pid)
        assert not descends(os.getpid(), shell.pid)
        assert not descends(shell.pid, grandchild)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


def test_a_node_process_that_is_stopped_for_a_while_is_frozen_and_one_that_goes_on_is_not(worker: Worker) -> None:
    pid = worker.start(WAIT)
    assert not worker.watcher.node_is_frozen(pid)
    os.kill(pid, signal.SIGSTOP)
    until_state(pid, "T")
    assert not worker.watcher.node_is_frozen(pid)
    worker.now_s += FROZEN_S - 1
    assert not worker.watcher.node_is_frozen(pid)
    os.kill(pid, signal.SIGCONT)
    until_state(pid, "SR")
    worker.now_s += 2
    assert not worker.watcher.node_is_frozen(pid)
    os.kill(pid, signal.SIGSTOP)
    until_state(pid, "T")
    assert not worker.watcher.node_is_frozen(pid)
    worker.now_s += FROZEN_S
    assert worker.watcher.node_is_frozen(pid)
