"""What becomes of a worker that its library does not let go of after an abort; here no GPU hangs, but a sleep."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elastic.base.errors import EXIT_LINK_LOST
from tests.support.messages import wording
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.horovod]

IN_HOROVOD = """
import pathlib, sys, threading, time
import horovod
from elastic.backends.horovod import abort_timeout as stuck
stuck.ABORTED_S = 0.3
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
from elastic.backends.horovod.sockets import SocketWatch
sockets = SocketWatch()
def aborted():
    thread = threading.Thread(target=stuck.end_if_stuck, args=(sockets, lambda: None))
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


def run(body: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", IN_HOROVOD + body]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=5 * STILL_S)


def test_a_worker_that_nccl_holds_uploads_its_checkpoint_and_ends_as_one_that_lost_its_peers() -> None:
    said = run(ABORTED)
    assert said.returncode == EXIT_LINK_LOST, said.stderr
    assert said.stdout == "shipped\n"
    assert said.stderr == wording("elastic.stuck.not_let_go", ABORTED_S=0.3)


def test_a_worker_that_is_at_work_or_already_begins_anew_is_left_alone() -> None:
    said = run(GOES_ON)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
