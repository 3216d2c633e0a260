"""A node through a hundred resizes, with real workers that leave behind whatever a process can leave behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic.link.wire import Message, decode, encode
from tests.elastic.far_end import SECRET, accepted
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

# What the node process is without torch: the script needs none.
NODE = """
import sys
import {module}
from elastic.link.child_process import adopt_orphans, die_with_parent
from elastic.node.link import AgentLink
die_with_parent()
adopt_orphans()
{module}.{kind}(AgentLink(int(sys.argv[1])), sys.argv[2:]).run()
"""

# A helper in a session of its own, a daemon, a fork that keeps all files open, named shared memory and a semaphore of
# Python's, shared memory of a library's that Python knows nothing of, and open files.
SCRIPT = """
import mmap, multiprocessing, os, subprocess, sys, time
from multiprocessing import shared_memory
import elastic

helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
if os.fork() == 0:
    time.sleep(1000)
memory = shared_memory.SharedMemory(f"{sys.argv[2]}{os.getpid()}", create=True, size=1 << 20)
lock = multiprocessing.get_context("spawn").Lock()
with open(f"{sys.argv[1]}/semaphores", "a") as names:
    print(lock._semlock.name.strip("/"), file=names)
with open(f"/dev/shm/{sys.argv[2]}library-{os.getpid()}", "w+b") as file:
    file.truncate(1 << 20)
    library = mmap.mmap(file.fileno(), 0)
files = [open(f"{sys.argv[1]}/file{number}", "w") for number in range(5)]
elastic.step()
time.sleep(1000)
"""


OURS = f"resizes-{os.getpid()}-"
"""How the names of the workers' shared memory begin; another run of this test has its own."""


class Node:
    """A node process, with the test as its agent and its workers' driver."""

    def __init__(self, folder: Path, module: str, kind: str) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=50)
        ours, theirs = socket.socketpair()
        environ = os.environ | {
            "BFT_DRIVER": f"127.0.0.1:{self.server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_LEASE": "n1.1",
            "BFT_WORKERS_PER_NODE": "1",
            "TMPDIR": str(folder),
        }
        argv = [sys.executable, "-c", NODE.format(module=module, kind=kind), str(theirs.fileno()), str(script)]
        self.process = subprocess.Popen([*argv, str(folder), OURS], env=environ, pass_fds=[theirs.fileno()])
        theirs.close()
        self._socket = ours
        self._socket.settimeout(STILL_S)
        self._file = ours.makefile("rb")

    def tell(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def hear(self, op: str) -> Message:
        while (message := decode(self._file.readline()))["op"] != op:
            pass
        return message

    def worker(self) -> int:
        """The process id of the next worker, once it has done all that it does."""
        channel, hello = accepted(self.server)
        message = channel.receive()
        assert message is not None
        assert message["op"] == "step"
        # its end is what the driver hears of it; until then the connection stays
        threading.Thread(target=lambda: (channel.receive(), channel.close()), daemon=True).start()
        return int(hello["pid"])

    def below(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}

    def descriptors(self) -> int:
        return psutil.Process(self.process.pid).num_fds()

    def close(self) -> None:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            child.kill()
        self.process.kill()
        self.process.wait()
        self._file.close()
        self._socket.close()
        self.server.close()


def shared_memory(folder: Path) -> set[str]:
    """What is there of the workers'; other programs have their own."""
    semaphores = {f"sem.{name}" for name in (folder / "semaphores").read_text().split()}
    return {name for name in os.listdir("/dev/shm") if name.startswith(OURS) or name in semaphores}


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    node = Node(tmp_path, *request.param)
    yield node
    node.close()
    for name in shared_memory(tmp_path):
        os.unlink(f"/dev/shm/{name}")


@pytest.mark.parametrize("node", [("elastic.backends.horovod.node", "HorovodNode")], indirect=True)
def test_a_hundred_resizes_leave_no_process_no_descriptor_and_no_shared_memory_behind(
    node: Node, tmp_path: Path
) -> None:
    """A worker in three dies by itself, as by the kernel's hand when memory is short: nobody looked before."""
    descriptors = 0
    for resize in range(100):
        node.tell(
            {"op": "start", "host": f"n1.1.{resize}", "local_rank": 0, "env": {"HOROVOD_RANK": "0"}, "defaults": {}}
        )
        worker = node.worker()
        assert len(node.below()) >= 4
        assert len(shared_memory(tmp_path)) >= 3
        if resize % 3:
            node.tell({"op": "kill", "host": f"n1.1.{resize}"})
        else:
            # shared memory of a library's is looked for every two seconds; see elastic.node.shared_memory
            os.unlink(f"/dev/shm/{OURS}library-{worker}")
            os.kill(worker, signal.SIGKILL)
        assert node.hear("exit")["rc"] == -signal.SIGKILL
        if resize == 5:
            until("all of the first ones are gone", lambda: not node.below())
            descriptors = node.descriptors()
    until("all processes are gone", lambda: not node.below())
    until("all shared memory is gone", lambda: not shared_memory(tmp_path))
    until("all descriptors are closed", lambda: node.descriptors() <= descriptors)
