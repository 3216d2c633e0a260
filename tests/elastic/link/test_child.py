"""How a process that runs user code is prepared: with real forks, because each line of it was once forgotten."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

from elastic.link.child import die_with_parent, prepare_child

LIMIT_S = 20.0
REPORT = "print(open('/proc/self/status').read(), open('/proc/self/limits').read())"
PARENT = f"""
import subprocess, sys, time
from elastic.link.child import prepare_child
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
    deadline_s = time.monotonic() + LIMIT_S / 2
    while orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, "the child outlived its parent"
        time.sleep(0.01)


def test_a_child_whose_parent_ended_before_it_could_ask_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([4242, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
