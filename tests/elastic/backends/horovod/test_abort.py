"""Breaking a hung collective by shutting the right sockets, and the end of a worker that its library holds on to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastic.backends.horovod.abort import SocketWatch, connected_sockets
from elastic.base.errors import EXIT_LINK_LOST
from tests.support.messages import wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        yield server


def connect(server: socket.socket) -> tuple[socket.socket, socket.socket]:
    one = socket.create_connection(server.getsockname())
    one.settimeout(20)
    return one, server.accept()[0]


def test_sockets_opened_inside_the_block_are_shut_and_no_others(server: socket.socket) -> None:
    before, before_peer = connect(server)
    watch = SocketWatch()
    with watch.opening():
        inside, inside_peer = connect(server)
    after, after_peer = connect(server)
    assert watch.shut() == 2
    assert inside.recv(1) == b""
    for one, other in ((before, before_peer), (after, after_peer)):
        other.sendall(b"x")
        assert one.recv(1) == b"x"
    for sock in (before, before_peer, inside, inside_peer, after, after_peer):
        sock.close()


def test_a_descriptor_that_became_somebody_elses_is_left_alone(server: socket.socket) -> None:
    watch = SocketWatch()
    with watch.opening():
        inside, inside_peer = connect(server)
    numbers = {inside.fileno(), inside_peer.fileno()}
    inside.close()
    inside_peer.close()
    one, other = connect(server)
    assert {one.fileno(), other.fileno()} == numbers
    assert watch.shut() == 0
    other.sendall(b"x")
    assert one.recv(1) == b"x"
    one.close()
    other.close()


def test_after_an_orderly_goodbye_nothing_is_shut(server: socket.socket) -> None:
    watch = SocketWatch()
    with watch.opening():
        one, other = connect(server)
    watch.forget()
    assert watch.shut() == 0
    one.close()
    other.close()


def test_looking_for_sockets_leaves_no_descriptor_behind(server: socket.socket) -> None:
    with open(os.devnull) as _, socket.socketpair()[0]:
        before = set(os.listdir("/proc/self/fd"))
        connected_sockets()
        # the collector may close what other tests have dropped
        assert set(os.listdir("/proc/self/fd")) <= before


def test_listeners_files_and_unix_sockets_are_no_connections(server: socket.socket) -> None:
    found = connected_sockets()
    with socket.socketpair()[0] as local:
        assert connected_sockets() == found
        assert not {server.fileno(), local.fileno()} & set(found)


# Here no GPU hangs, but a sleep.
IN_HOROVOD = """
import pathlib, sys, threading, time
import horovod
from elastic.backends.horovod import abort
abort.ABORTED_S = 0.3
file = str(pathlib.Path(horovod.__file__).parent / "torch" / "mpi_ops.py")
horovods = {"time": time}
exec(compile("def synchronize(for_s): time.sleep(for_s)", file, "exec"), horovods)
"""

ABORTED = """
import elastic.horovod
from elastic.backends.horovod import script
script.hvd.nccl_built = lambda: 22100
script._session.current().upload = lambda: print("shipped", flush=True)
script._abort()
horovods["synchronize"](60)
"""

GOES_ON = """
from elastic.backends.horovod.abort import SocketWatch
sockets = SocketWatch()
def aborted():
    thread = threading.Thread(target=abort.end_if_stuck, args=(sockets, lambda: None))
    thread.start()
    return thread
thread = aborted()
time.sleep(1)  # the script's own work
thread.join()
thread = aborted()
with sockets.opening():  # hvd.init: it got out
    horovods["synchronize"](1)
thread.join()
"""


def run_aborted(body: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", IN_HOROVOD + body]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=5 * STILL_S)


@pytest.mark.horovod
def test_a_worker_that_nccl_holds_uploads_its_checkpoint_and_ends_as_one_that_lost_its_peers() -> None:
    said = run_aborted(ABORTED)
    assert said.returncode == EXIT_LINK_LOST, said.stderr
    assert said.stdout == "shipped\n"
    assert said.stderr == wording("elastic.stuck.not_let_go", ABORTED_S=0.3)


@pytest.mark.horovod
def test_a_worker_that_is_at_work_or_already_begins_anew_is_left_alone() -> None:
    said = run_aborted(GOES_ON)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
