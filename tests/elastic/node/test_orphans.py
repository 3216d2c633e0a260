"""Which processes are an ended worker's, and that all of them are ended: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from elastic.node import orphans
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

# Adopts orphans as the node process does, does what a test says, and answers with what it finds.
NODE = """
import os, signal, subprocess, sys, time
from elastic.link.child_process import adopt_orphans
from elastic.node.orphans import Leftovers, below, kill_all_below, kill_trees
adopt_orphans()

def worker(script):
    script = "from elastic.link.child_process import adopt_orphans; adopt_orphans()\\n" + script
    return subprocess.Popen([sys.executable, "-c", script],
                            stdout=subprocess.PIPE, text=True)

def pid_of(process):
    return int(process.stdout.readline())

def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

CHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '99']).pid, flush=True); time.sleep(99)"
DAEMON = '''
import os, time
ours, theirs = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(theirs, str(os.getpid()).encode())
        os.execvp("sleep", ["sleep", "99"])
    os._exit(0)
os.wait()
print(os.read(ours, 9).decode(), flush=True)
time.sleep(99)
'''
"""


def said_by_node(body: str) -> str:
    """What a node process prints that does `body`."""
    said = subprocess.run(
        [sys.executable, "-c", NODE + body], capture_output=True, text=True, timeout=STILL_S, check=False
    )
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(*argv: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_tree_is_all_that_is_below_whatever_its_processes_are_called(
    sleeper: Callable[..., subprocess.Popen[str]],
) -> None:
    inner = "import ctypes, subprocess, time; ctypes.CDLL(None).prctl(15, b'a) Z 1 (b', 0, 0, 0)\n"
    inner += "print(subprocess.Popen(['sleep', '99']).pid, flush=True); time.sleep(99)"
    process = sleeper(sys.executable, "-c", inner)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    assert orphans.below([process.pid]) == [grandchild]
    assert {process.pid, grandchild} <= set(orphans.below([os.getpid()]))


def test_a_helper_of_a_killed_worker_goes_with_it(sleeper: Callable[..., subprocess.Popen[str]]) -> None:
    inner = "import subprocess, time; print(subprocess.Popen(['sleep', '99'], start_new_session=True).pid, flush=True)"
    process = sleeper(sys.executable, "-c", f"{inner}; time.sleep(99)")
    assert process.stdout is not None
    helper = psutil.Process(int(process.stdout.readline()))
    orphans.kill_trees([process.pid])
    assert process.wait(STILL_S) == -signal.SIGKILL
    until("the helper ends", lambda: not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("kind", ["CHILD", "DAEMON"])
def test_what_a_worker_left_that_died_by_itself_is_ended_and_buried(kind: str) -> None:
    body = f"""
leftovers = Leftovers()
one = worker({kind})
helper = pid_of(one)
os.kill(one.pid, signal.SIGKILL)
os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
leftovers.settle([one.pid])
print(alive(helper), os.path.exists(f"/proc/{{helper}}"), one.wait())
"""
    assert said_by_node(body) == "False False -9\n"


@pytest.mark.parametrize("kind", ["CHILD", "DAEMON"])
def test_what_a_living_worker_started_stays_also_where_it_went_into_the_background(kind: str) -> None:
    body = f"""
own = subprocess.Popen(["sleep", "99"])
leftovers = Leftovers()
one, other = worker(CHILD), worker({kind})
helpers = [pid_of(one), pid_of(other)]
kill_trees([one.pid])
one.wait()
leftovers.settle([other.pid])
print([alive(pid) for pid in helpers], alive(own.pid))
kill_all_below(os.getpid())
"""
    assert said_by_node(body) == "[False, True] True\n"


def test_nothing_below_outlives_the_end_whatever_session_or_group_it_is_in() -> None:
    body = """
workers = [worker(CHILD), worker(DAEMON)]
helpers = [pid_of(one) for one in workers]
os.kill(workers[0].pid, signal.SIGKILL)
workers[0].wait()
killed = kill_all_below(os.getpid())
time.sleep(0.3)
print([alive(pid) for pid in (*helpers, workers[1].pid)], set(helpers) <= killed)
"""
    assert said_by_node(body) == "[False, False, False] True\n"


def test_a_tree_that_forks_while_it_is_killed_is_ended_all_the_same() -> None:
    body = """
FORKING = '''
import os, time
print(1, flush=True)
for _ in range(1000):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.01)
'''
one = worker(FORKING)
pid_of(one)
for _ in range(20):
    kill_all_below(os.getpid())
print(len([pid for pid in below([os.getpid()])]))
"""
    assert said_by_node(body) == "0\n"
