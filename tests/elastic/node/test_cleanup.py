"""Between one worker and the next: that the end of one is heard of, and that nothing of it is in the next one's way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

NODE = """
import multiprocessing, os, signal, sys, time
from multiprocessing.connection import wait
from elastic.link.child_process import adopt_orphans
from elastic.node.cleanup import NodeCleanup, exit_code
adopt_orphans()
fork = multiprocessing.get_context("fork")
upkeep = NodeCleanup()

def started(do, *arguments):
    process = fork.Process(target=do, args=arguments)
    process.start()
    return process

def ended(process):
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

def forks_and_ends(code):
    if os.fork() == 0:
        time.sleep(1000)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)
"""


def said_by_node(body: str) -> str:
    said = subprocess.run(
        [sys.executable, "-c", NODE + body], capture_output=True, text=True, timeout=STILL_S, check=False
    )
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_the_end_of_a_worker_is_heard_of_though_a_fork_of_its_own_lives_on() -> None:
    """multiprocessing waits for a pipe that every fork of the worker holds open."""
    body = """
for code in (3, -9):
    worker = started(forks_and_ends, code)
    ended(worker)
    assert not wait([worker.sentinel], 0.2), "the fork is gone by itself"
    print(list(upkeep.look([worker.pid]).values()))
    assert wait([worker.sentinel], 20)
    worker.join()
    print(worker.exitcode, list(upkeep.look([]).values()))
"""
    assert said_by_node(body) == "[3]\n3 []\n[-9]\n-9 []\n"


def test_what_a_dead_worker_had_is_over_before_the_next_one_starts_and_the_living_ones_keep_theirs() -> None:
    body = """
def holds():
    if os.fork() == 0:
        time.sleep(1000)
    time.sleep(1000)

def below(pid):
    return [int(child) for child in open(f"/proc/{pid}/task/{pid}/children").read().split()]

one, other = started(holds), started(holds)
while not (below(one.pid) and below(other.pid)):
    time.sleep(0.01)
[lost], [kept] = below(one.pid), below(other.pid)
upkeep.kill([one.pid], [one.pid, other.pid])
one.join()
upkeep.settle([other.pid])
print(os.path.exists(f"/proc/{lost}"), below(other.pid) == [kept], exit_code(other.pid))
upkeep.kill([other.pid], [other.pid])
other.join()
upkeep.settle([])
print(os.path.exists(f"/proc/{kept}"))
"""
    assert said_by_node(body) == "False True None\nFalse\n"


def test_pythons_own_tracker_removes_what_a_worker_left_that_died_by_itself() -> None:
    """Nobody looked which shared memory was whose before the worker died."""
    body = """
from multiprocessing import resource_tracker, shared_memory

def dies(names):
    names.send(shared_memory.SharedMemory(create=True, size=4096).name)
    tracker = resource_tracker._resource_tracker._pid
    while b"resource_tracker" not in open(f"/proc/{tracker}/cmdline", "rb").read():
        time.sleep(0.01)  # until then it is a fork of this worker like any other
    os.kill(os.getpid(), signal.SIGKILL)

ours, theirs = multiprocessing.Pipe()
worker = started(dies, theirs)
name = ours.recv()
worker.join()
upkeep.settle([])
while upkeep._leftovers.remain:  # on a busy machine a tracker may need seconds
    upkeep.settle([])
print(os.path.exists(f"/dev/shm/{name}"))
"""
    assert said_by_node(body) == "False\n"


def test_regression_a_tracker_that_a_busy_machine_kept_waiting_was_killed_and_what_it_should_remove_stayed() -> None:
    body = """
from multiprocessing import resource_tracker, shared_memory
from elastic.node import orphans as leftovers, cleanup as module

def waits(names):
    name = shared_memory.SharedMemory(create=True, size=4096).name
    names.send((name, resource_tracker._resource_tracker._pid))
    time.sleep(1000)

ours, theirs = multiprocessing.Pipe()
worker = started(waits, theirs)
name, tracker = ours.recv()
os.kill(tracker, signal.SIGSTOP)
os.kill(worker.pid, signal.SIGKILL)
worker.join()
leftovers._SETTLE_S = module.SAMPLE_S = 0.01
upkeep.settle([])
print(os.path.exists(f"/proc/{tracker}"), os.path.exists(f"/dev/shm/{name}"))
os.kill(tracker, signal.SIGCONT)
deadline_s = time.monotonic() + 20
while os.path.exists(f"/proc/{tracker}") and time.monotonic() < deadline_s:
    upkeep.look([])
    time.sleep(0.01)
print(os.path.exists(f"/proc/{tracker}"), os.path.exists(f"/dev/shm/{name}"))
"""
    assert said_by_node(body) == "True True\nFalse False\n"


def test_what_only_calls_itself_a_tracker_is_ended_after_a_while() -> None:
    body = """
import subprocess
from elastic.node import orphans as leftovers, cleanup as module

def leaves(pids):
    argv = [sys.executable, "-c", "import time; time.sleep(1000)", "multiprocessing.resource_tracker"]
    pids.send(subprocess.Popen(argv).pid)
    os._exit(0)

ours, theirs = multiprocessing.Pipe()
worker = started(leaves, theirs)
pid = ours.recv()
worker.join()
leftovers._SETTLE_S = leftovers._TRACKER_S = module.SAMPLE_S = 0.01
deadline_s = time.monotonic() + 20
upkeep.settle([])
while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline_s:
    upkeep.look([])
    time.sleep(0.02)
print(os.path.exists(f"/proc/{pid}"))
"""
    assert said_by_node(body) == "False\n"


def test_a_worker_that_takes_its_time_to_die_is_waited_for_before_the_next_one_starts() -> None:
    """With gigabytes of pinned memory a killed process is there for seconds, and its GPU's memory with it."""
    body = """
import threading
from elastic.node import cleanup as module
worker = started(time.sleep, 1000)
real, module.kill_trees = module.kill_trees, lambda doomed: None
upkeep.kill([worker.pid], [worker.pid])
threading.Timer(0.3, real, [[worker.pid]]).start()
began_s = time.monotonic()
upkeep.wait_for_killed()
print(time.monotonic() - began_s > 0.2, list(upkeep.look([worker.pid]).values()))
worker.join()
upkeep.wait_for_killed()
print(list(upkeep.look([]).values()))
module.KILLED_S = 0.1
worker = started(time.sleep, 1000)
upkeep.kill([worker.pid], [worker.pid])
upkeep.wait_for_killed()
print("not for ever")
real([worker.pid])
"""
    assert said_by_node(body) == "True [-9]\n[]\nnot for ever\n"
