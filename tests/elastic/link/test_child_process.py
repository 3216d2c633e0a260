"""How a process that runs user code is prepared: with real forks, because each line of it was once forgotten."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from elastic.link.child_process import adopt_orphans, die_with_parent, outlast_notice, prepare_child
from tests.support.waiting import until

LIMIT_S = 20.0
REPORT = "print(open('/proc/self/status').read(), open('/proc/self/limits').read())"
PARENT = f"""
import subprocess, sys, time
from elastic.link.child_process import prepare_child
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); import time; time.sleep({LIMIT_S})"],
                         preexec_fn=prepare_child, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep({LIMIT_S})
"""


def signals(field: str, status: str) -> set[int]:
    """The signals of one line of /proc/PID/status."""
    line = next(line for line in status.splitlines() if line.startswith(field))
    mask = int(line.split()[1], 16)
    return {number for number in range(1, 65) if mask & 1 << (number - 1)}


def test_a_prepared_child_ignores_sigterm_blocks_nothing_and_writes_no_core() -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1})
    core = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (core[1], core[1]))
        said = subprocess.run(
            [sys.executable, "-c", REPORT], preexec_fn=prepare_child, capture_output=True, text=True, check=True
        ).stdout
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        resource.setrlimit(resource.RLIMIT_CORE, core)
    assert signal.SIGTERM in signals("SigIgn", said)
    assert signal.SIGINT not in signals("SigIgn", said)
    assert signals("SigBlk", said) == set()
    limit = next(line for line in said.splitlines() if line.startswith("Max core file size"))
    assert limit.split()[4:6] == ["0", "0"]


def test_a_prepared_child_dies_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until("the child ends with its parent", lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE)


def test_a_child_whose_parent_ended_before_it_could_ask_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([4242, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def in_a_fork(do: Callable[[], int]) -> int:
    """What `do` returns in a process of its own, as that process's exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = do()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_process_that_outlasts_the_notice_hands_no_ignored_sigterm_on() -> None:
    """Through exec, through fork and through both; an ignored signal would stay ignored in all of them."""

    def do() -> int:
        prepare_child()
        outlast_notice()
        os.kill(os.getpid(), signal.SIGTERM)
        said = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True).stdout
        executed = signal.SIGTERM not in signals("SigIgn", said)
        forked = in_a_fork(lambda: os.kill(os.getpid(), signal.SIGTERM) or 1)
        return 0 if executed and forked == -signal.SIGTERM else 1

    assert in_a_fork(do) == 0


def test_a_handler_of_the_scripts_own_stays_in_its_forks() -> None:
    def do() -> int:
        outlast_notice()
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        return in_a_fork(lambda: os.kill(os.getpid(), signal.SIGTERM) or 1)

    assert in_a_fork(do) == 7


def test_a_sigterm_that_reaches_a_fork_at_its_very_first_moment_is_not_lost() -> None:
    """A pool's worker was asked to end as soon as it was started, did not, and was waited for for ever."""

    def do() -> int:
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
        outlast_notice()
        code = in_a_fork(lambda: 1)
        return 0 if code == -signal.SIGTERM and not signal.pthread_sigmask(signal.SIG_BLOCK, []) else 1

    assert in_a_fork(do) == 0


def test_a_fork_by_a_side_thread_obeys_sigterm_too() -> None:
    def do() -> int:
        outlast_notice()
        with ThreadPoolExecutor(1) as pool:
            code = pool.submit(in_a_fork, lambda: os.kill(os.getpid(), signal.SIGTERM) or 1).result()
        return 0 if code == -signal.SIGTERM else 1

    assert in_a_fork(do) == 0


def test_a_daemons_parent_is_who_adopted_it() -> None:
    def do() -> int:
        adopt_orphans()
        ours, theirs = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                os.write(theirs, b"x")
                time.sleep(LIMIT_S)
            os._exit(0)
        os.waitpid(middle, 0)
        os.read(ours, 1)
        [daemon] = psutil.Process().children()
        daemon.kill()
        return 0

    assert in_a_fork(do) == 0
